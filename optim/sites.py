"""What a pass would change in a recorded trace: rows of `optim.base.COLUMNS`, of the steps of its busiest device."""

import re

import numpy as np
import pandas as pd

from ling_prof.analyses import layers
from ling_prof.calls import GRAPH_LAUNCH, LAUNCH, matching
from ling_prof.roles import ROLES, layer_kind, short_name
from ling_prof.timeline import CLASSES
from ling_prof.trace import Trace
from ling_prof.view import View, view
from optim.base import COLUMNS


def kernels(trace: Trace, edit: str, name: str = "", role: str | None = None, layer: str | None = None) -> pd.DataFrame:
    """Kernels by a pattern of their name, their role, and a pattern of all of their layer's kind ('layer N (kda|mla)').

    Raises Missing when a layer is asked for and the trace names none.
    """
    seen = view(trace)
    keep = (seen.step_of(seen.ops.start) >= 0) & seen.ops.is_kernel & matching(seen.ops.names, re.compile(name))
    if role is not None:
        keep &= seen.ops.role == ROLES.index(role)
    if layer is not None:
        keep &= _in_layer(seen, layer)
    rows = np.flatnonzero(keep)
    names = [short_name(seen.ops.name(int(i))) for i in rows]
    return _per_step(seen, names, seen.ops.end[rows] - seen.ops.start[rows], edit)


def idle(trace: Trace, edit: str, *classes: str, layer: str | None = None) -> pd.DataFrame:
    """Idle time of these classes, by class; with a layer only before its ops, as in `kernels`."""
    seen = view(trace)
    pieces, _ = seen.pieces_in(seen.chosen)
    keep = np.isin(pieces.cls, [CLASSES.index(c) for c in classes])
    if layer is not None:
        keep &= _in_layer(seen, layer)[pieces.op]
    return _per_step(seen, [CLASSES[c] for c in pieces.cls[keep]], pieces.length[keep], edit)


def _in_layer(seen: View, layer: str) -> np.ndarray:
    """Of each op."""
    names = layers.of_ops(seen)
    fits = {name: re.fullmatch(layer, layer_kind(name)) is not None for name in set(names)}
    return np.array([fits[name] for name in names], bool)


def launches(trace: Trace, edit: str) -> pd.DataFrame:
    """Calls that launch one kernel each, between the borders of the chosen steps."""
    seen = view(trace)
    api = trace.api
    single = matching(api["name"].array, LAUNCH) & ~matching(api["name"].array, GRAPH_LAUNCH)
    inside = single & (seen.step_of_call(api["start"].to_numpy(), seen.chosen) >= 0)
    rows = api[inside]
    return _per_step(seen, rows["name"].astype(str).tolist(), (rows["end"] - rows["start"]).to_numpy(), edit)


def _per_step(seen: View, names: list[str], lengths: np.ndarray, edit: str) -> pd.DataFrame:
    frame = pd.DataFrame({"site": names, "length": lengths})
    rounds = max(1, seen.n_rounds)
    out = frame.groupby("site")["length"].agg(["size", "sum"]).reset_index()
    out = out.assign(count=out["size"] / rounds, time_ns=(out["sum"] / rounds).round().astype("int64"), edit=edit)
    return out.sort_values("time_ns", ascending=False, ignore_index=True)[list(COLUMNS)]

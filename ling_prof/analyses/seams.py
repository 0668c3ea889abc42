"""Which host code keeps the device waiting?

One row per function or operator, costliest first: the host_bound idle time of the chosen steps while the launching
thread was in it (innermost function of the user's own code; without Python stacks the operator).
"""

import numpy as np
import pandas as pd

from ling_prof.host import place
from ling_prof.roles import layer_kind
from ling_prof.timeline import HOST_BOUND
from ling_prof.view import View

COLUMNS = {
    "site": "function (file:line), operator or range; empty: in none",
    "steps": "chosen steps in which it costs",
    "idle_ns": "idle time, chosen steps",
    "share": "of host_bound, 0 to 1",
}


def rows(view: View) -> pd.DataFrame:
    pieces, at = view.pieces_in(view.chosen)
    late = np.flatnonzero(pieces.cls == HOST_BOUND)
    if not len(late):
        return pd.DataFrame(columns=list(COLUMNS))
    row, length, piece = view.host.function_at(view.ops.thread[pieces.op[late]], pieces.start[late], pieces.end[late])
    frame = pd.DataFrame({"site": _sites(view, row), "step": at[late][piece], "idle_ns": length})
    out = frame.groupby("site").agg(steps=("step", "nunique"), idle_ns=("idle_ns", "sum")).reset_index()
    out["share"] = out["idle_ns"] / max(1, int(out["idle_ns"].sum()))
    return out.sort_values("idle_ns", ascending=False, ignore_index=True)[list(COLUMNS)]


def _sites(view: View, row: np.ndarray) -> np.ndarray:
    if view.host.table is None:
        return np.full(len(row), "", object)
    own = np.where(row >= 0, view.host.own_function[row], -1)
    shown = np.where(own >= 0, own, row)
    names = view.host.table["name"].array
    steps = set(view.steps.table["name"])
    places = np.array([layer_kind(n) if n in steps else place(str(n)) for n in names.categories], object)
    return np.where(shown >= 0, places[names.codes[shown]], "")

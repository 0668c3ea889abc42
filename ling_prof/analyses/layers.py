"""Which layers take the busy time, and through which roles?

One row per (layer, role) of the chosen steps, costliest first. A kernel's layer is the part of a decoder layer
(attention, MLP, norm: the nn.Module right below the layer) or else the innermost range around its launch; for a
replayed graph node, around its capture.
"""

import re

import numpy as np
import pandas as pd

from ling_prof.captured import host_rows
from ling_prof.errors import Missing
from ling_prof.roles import ROLES, layer_kind
from ling_prof.timeline import BUSY
from ling_prof.view import View

COLUMNS = {
    "layer": "range or module, numbers replaced by N",
    "role": "what its kernels are for",
    "layers": "distinct layers of this kind",
    "kernels": "in the chosen steps",
    "exclusive_ns": "busy time",
    "share": "of the busy time, 0 to 1",
}
MODULE = re.compile(r"^nn\.Module: (\w+)")
CONTAINER = re.compile(r"(Layer|Block|Model|ForCausalLM|LMHeadModel|ModuleList|Sequential)(_\d+)?$")
NOT_A_LAYER = re.compile(r"^(##|Torch-Compiled|scheduler\.|copy_result|Optimizer|ProfilerStep|cub::|nccl:|TorchDynamo)")
UNNAMED = "(outside any range)"


def rows(view: View) -> pd.DataFrame:
    layer = of_ops(view)
    pieces, _ = view.pieces_in(view.chosen)
    busy = np.flatnonzero(pieces.cls == BUSY)
    op = pieces.op[busy]
    frame = pd.DataFrame(
        {
            "name": layer[op],
            "role": np.array(ROLES, object)[view.ops.role[op]],
            "op": op,
            "exclusive_ns": pieces.length[busy],
        }
    )
    frame["layer"] = frame["name"].map({n: layer_kind(n) for n in frame["name"].unique()})
    out = (
        frame.groupby(["layer", "role"])
        .agg(layers=("name", "nunique"), kernels=("op", "nunique"), exclusive_ns=("exclusive_ns", "sum"))
        .reset_index()
    )
    out["share"] = out["exclusive_ns"] / max(1, int(out["exclusive_ns"].sum()))
    return out.sort_values("exclusive_ns", ascending=False, ignore_index=True)[list(COLUMNS)]


def of_ops(view: View) -> np.ndarray:
    """The layer name of every op of the device. Raises Missing when no range or module can name one."""
    at = np.where(view.ops.launch >= 0, view.ops.launch_start, -1)
    row = view.host.at(view.ops.thread, at)
    row = np.where(view.ops.launch >= 0, row, -1)
    captured = host_rows(view)
    inside = captured >= 0
    row[inside] = captured[inside]
    names = _told(view, _names(view, row), inside)
    named = (names != UNNAMED) & (view.step_of(view.ops.start) >= 0)
    if named.sum() < 0.5 * max(1, (view.step_of(view.ops.start) >= 0).sum()):
        hidden = " (graph replays hide it)" if (view.ops.graph_launch >= 0).any() else ""
        raise Missing(
            "the layer of a kernel",
            f"for most ops no NVTX range, annotation or nn.Module encloses the launch{hidden}",
            "record with with_stack=True and with_modules=True, mark layers by ranges and capture the graph while "
            "recording, or trace once with graphs off and give that file with --layers-from",
        )
    return names


def _told(view: View, names: np.ndarray, captured: np.ndarray) -> np.ndarray:
    """`names`, with what another recording tells of ops that have none; a range around a replay is not theirs."""
    if view.trace.layers is None:
        return names
    told = np.asarray(view.trace.layers, object)[view.ops.row]
    hidden = (names == UNNAMED) | ((view.ops.graph_launch >= 0) & ~captured)
    return np.where(hidden & (told != ""), told, names)


def _names(view: View, row: np.ndarray) -> np.ndarray:
    host = view.host
    if host.table is None:
        return np.full(len(row), UNNAMED, object)
    found = np.where(row >= 0, host.nearest(_is_layer(view))[row], -1)
    names = host.table["name"].array
    bare = np.array([MODULE.sub(r"\1", n) for n in names.categories], object)
    return np.where(found >= 0, bare[names.codes[found]], UNNAMED)


def _is_layer(view: View) -> np.ndarray:
    """Host rows that name a layer: ranges other than steps, and modules that sit right below a container."""
    host, steps = view.host, set(view.steps.table["name"])
    module = host.where("name", lambda n: bool(MODULE.match(n)))
    container = module & host.where("name", lambda n: bool(CONTAINER.search(n)))
    above = np.where(host.parent >= 0, host.nearest(module)[host.parent], -1)
    part = module & ~container & ((above < 0) | container[above])
    ranges = host.where("kind", lambda k: k in ("nvtx", "annotation")) & host.where(
        "name", lambda n: n not in steps and not NOT_A_LAYER.match(n)
    )
    return part | ranges

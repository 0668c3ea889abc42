"""What is copied, set or cast, and what does that cost?

One row per kind of copy or cast of the chosen steps, costliest first.
"""

import re

import numpy as np
import pandas as pd

from ling_prof.calls import matching
from ling_prof.ops import COPY
from ling_prof.roles import short_name
from ling_prof.view import View

COLUMNS = {
    "what": "copy direction and memory, memset, graph copy node, or cast kernel",
    "calls": "in the chosen steps",
    "per_step": "calls a token round",
    "duration_ns": "sum of durations",
    "bytes": "moved; -1 where not recorded",
}
CAST = re.compile(r"direct_copy_kernel|_copy_kernel_cuda|triton_\w+?_fused_+to_copy(_\d+)?$|\bcast|convert", re.I)


def rows(view: View) -> pd.DataFrame:
    ops, gpu = view.ops, view.trace.gpu.iloc[view.ops.row]
    is_cast = matching(ops.names, CAST)
    inside = (view.step_of(ops.start) >= 0) & ((ops.resource == COPY) | is_cast)
    frame = gpu[inside].assign(duration_ns=(ops.end - ops.start)[inside], what=_what(gpu[inside]))
    grouped = frame.groupby("what")
    out = grouped.agg(
        calls=("duration_ns", "size"),
        duration_ns=("duration_ns", "sum"),
        bytes=("bytes", "sum"),
        least=("bytes", "min"),
    ).reset_index()
    out["bytes"] = np.where(out["least"] < 0, -1, out["bytes"])
    out["per_step"] = out["calls"] / max(1, view.n_rounds)
    return out.sort_values("duration_ns", ascending=False, ignore_index=True)[list(COLUMNS)]


def _what(gpu: pd.DataFrame) -> np.ndarray:
    text = {key: np.asarray(gpu[key], object) for key in ("kind", "name", "copy_kind", "src_mem", "dst_mem")}
    copy = [
        f"copy {k} ({s or '?'} -> {d or '?'})"
        for k, s, d in zip(text["copy_kind"], text["src_mem"], text["dst_mem"], strict=True)
    ]
    cast = [f"cast {short_name(n)}" for n in text["name"]]
    node = np.array([n.startswith("memcpy") for n in text["name"]], bool)
    memset, graph_copy = np.array("memset", object), np.array("graph copy node", object)
    kinds = [text["kind"] == "memcpy", text["kind"] == "memset", node]
    return np.select(kinds, [np.array(copy, object), memset, graph_copy], np.array(cast, object))

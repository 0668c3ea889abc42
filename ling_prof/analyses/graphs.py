"""Which CUDA graphs run, how full are they, and what does launching them cost?

One row per kind of graph launch of the chosen steps. A graph traced whole (opaque) shows no kernels and no gaps.
"""

import numpy as np
import pandas as pd

from ling_prof import intervals as iv
from ling_prof.view import View

COLUMNS = {
    "graph": "number in order of first launch",
    "launches": "whose first node starts in the chosen steps",
    "kernels": "per launch; -1 when opaque",
    "nodes": "kernels, copies and memsets per launch; -1 when opaque",
    "span_ns": "median, first start to last end",
    "busy_ns": "median, union of its nodes",
    "gaps_ns": "median, span minus busy; -1 when opaque",
    "call_ns": "median host time in the launching call",
    "first_kernel": "its first node",
}


def rows(view: View) -> pd.DataFrame:
    launches = pd.DataFrame(
        _launches(view), columns=["signature", "opaque", "kernels", "nodes", "span", "busy", "call", "first"]
    )
    if not len(launches):
        return pd.DataFrame(columns=list(COLUMNS))
    out = []
    for number, (_, group) in enumerate(launches.groupby("signature", sort=False)):
        opaque, head = bool(group["opaque"].iat[0]), group.iloc[0]
        span, busy = int(group["span"].median()), int(group["busy"].median())
        out.append(
            {
                "graph": number,
                "launches": len(group),
                "kernels": -1 if opaque else int(head["kernels"]),
                "nodes": -1 if opaque else int(head["nodes"]),
                "span_ns": span,
                "busy_ns": busy,
                "gaps_ns": -1 if opaque else int((group["span"] - group["busy"]).median()),
                "call_ns": int(group["call"].median()),
                "first_kernel": head["first"],
            }
        )
    return pd.DataFrame(out, columns=list(COLUMNS))


def _launches(view: View) -> list[tuple]:
    ops = view.ops
    inside = np.flatnonzero(ops.graph_launch >= 0)
    order = np.argsort(ops.graph_launch[inside], kind="stable")
    calls = ops.graph_launch[inside][order]
    groups = np.split(inside[order], np.flatnonzero(np.diff(calls)) + 1)
    found = []
    chosen = view.step_of(ops.start) >= 0
    for nodes in sorted((g for g in groups if len(g) and chosen[g[0]]), key=lambda g: g[0]):
        head, opaque = nodes[0], bool(ops.is_opaque[nodes[0]])
        kernels, span = int(ops.is_kernel[nodes].sum()), int(ops.end[nodes].max() - ops.start[head])
        busy = iv.total(iv.union(ops.start[nodes], ops.end[nodes]))
        call = int(ops.launch_end[head] - ops.launch_start[head])
        found.append(((ops.name(head), len(nodes)), opaque, kernels, len(nodes), span, busy, call, ops.name(head)))
    return found

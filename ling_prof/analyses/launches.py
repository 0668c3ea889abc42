"""How many launches does a step take, and how far does the host run ahead of the device?

One row a chosen step. Run-ahead is the time from the end of a launch to the start of its op: near zero means the
device waits for the host, large means the host has time to spare.
"""

import numpy as np
import pandas as pd

from ling_prof.view import View

COLUMNS = {
    "step": "index of the step",
    "launches": "launching calls, a graph launch counting once",
    "graph_launches": "of them CUDA-graph launches",
    "ops": "kernels, copies and memsets that start in the step",
    "unlinked": "ops without a recorded launch",
    "launch_ns": "host time inside launching calls",
    "ahead_min_ns": "least run-ahead",
    "ahead_median_ns": "median run-ahead",
    "ahead_max_ns": "largest run-ahead",
    "queued_median": "median number of ops launched but not started, at each launch",
    "starved": "launches whose op started within 5 us of the call's return",
}
STARVED = 5_000


def rows(view: View) -> pd.DataFrame:
    view.trace.require("api")
    ops, steps = view.ops, range(len(view.chosen))
    at = view.step_of(ops.start)
    launches = series(view).assign(starved=lambda f: f["ahead_ns"] < STARVED)
    launches["at"] = view.step_of(launches["start"].to_numpy())
    out = launches.groupby("at").agg(
        launches=("start", "size"),
        graph_launches=("is_graph", "sum"),
        launch_ns=("call_ns", "sum"),
        ahead_min_ns=("ahead_ns", "min"),
        ahead_median_ns=("ahead_ns", "median"),
        ahead_max_ns=("ahead_ns", "max"),
        queued_median=("queued", "median"),
        starved=("starved", "sum"),
    )
    out = out.reindex(steps, fill_value=0).astype({"ahead_median_ns": np.int64})
    out["step"] = view.chosen.index
    out["ops"] = np.bincount(at[at >= 0], minlength=len(steps))
    out["unlinked"] = np.bincount(at[(at >= 0) & (ops.launch < 0)], minlength=len(steps))
    return out.reset_index(drop=True)[list(COLUMNS)]


def series(view: View) -> pd.DataFrame:
    """One row per launching call: called, start (of its first op), ahead_ns, call_ns, queued, is_graph."""
    ops = view.ops
    linked = np.flatnonzero(ops.launch >= 0)
    head = linked[np.unique(ops.launch[linked], return_index=True)[1]]
    called, returned = ops.launch_start[head], ops.launch_end[head]
    launched = np.searchsorted(np.sort(ops.launch_start[linked]), called, "right")
    started = np.searchsorted(ops.start[linked], called, "right")
    frame = pd.DataFrame(
        {
            "called": called,
            "start": ops.start[head],
            "ahead_ns": np.maximum(ops.start[head] - returned, 0),
            "call_ns": returned - called,
            "queued": np.maximum(launched - started, 0),
            "is_graph": ops.graph_launch[head] >= 0,
        }
    )
    return frame.sort_values("called", ignore_index=True)

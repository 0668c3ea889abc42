"""What are the largest idle gaps, between which kernels, and why?

One row per gap of the chosen steps, the 1000 longest, longest first. Gaps inside an opaque CUDA graph are not visible
and not listed.
"""

import numpy as np
import pandas as pd

from ling_prof.timeline import BUSY, CLASSES, SYNC_STALL
from ling_prof.view import View

COLUMNS = {
    "step": "index of the step",
    "start": "ns from the trace's start",
    "length": "ns",
    "cause": "the class with the largest share",
    "classes": "{class: ns}, adding up to the length",
    "before": "op that ended as the gap began",
    "after": "op whose start ended it",
    "site": "where the host was as the gap ended: the call that was waited in, or the launch",
}


MOST = 1000


def rows(view: View) -> pd.DataFrame:
    gaps, ops = view.timeline.gaps, view.ops
    step = view.step_of(gaps.start)
    order = np.flatnonzero(step >= 0)
    order = order[np.argsort(-(gaps.end - gaps.start)[order], kind="stable")][:MOST]
    by_class, blocker = _classes(view)
    latest = np.argsort(ops.end, kind="stable")
    before = latest[np.searchsorted(ops.end[latest], gaps.start[order])]
    after = gaps.op[order]
    return pd.DataFrame(
        {
            "step": view.chosen.index.to_numpy()[step[order]],
            "start": gaps.start[order],
            "length": gaps.end[order] - gaps.start[order],
            "cause": np.array(CLASSES, object)[by_class[order].argmax(1)],
            "classes": [{c: int(v) for c, v in zip(CLASSES, row, strict=True) if v} for row in by_class[order]],
            "before": [ops.name(int(i)) for i in before],
            "after": [ops.name(int(i)) for i in after],
            "site": _sites(view, after, blocker[order]),
        },
        columns=list(COLUMNS),
    )


def _classes(view: View) -> tuple[np.ndarray, np.ndarray]:
    """(gaps, classes) ns, and the blocking call charged in each gap (-1: none)."""
    pieces, gaps = view.timeline.pieces, view.timeline.gaps
    idle = np.flatnonzero(pieces.cls != BUSY)
    of = np.searchsorted(gaps.start, pieces.start[idle], "right") - 1
    out, blocker = np.zeros((len(gaps.start), len(CLASSES)), np.int64), np.full(len(gaps.start), -1)
    np.add.at(out, (of, pieces.cls[idle]), pieces.length[idle])
    stalls = pieces.cls[idle] == SYNC_STALL
    blocker[of[stalls]] = pieces.blocker[idle[stalls]]
    return out, blocker


def _sites(view: View, op: np.ndarray, blocker: np.ndarray) -> list[str]:
    if not view.trace.has("api"):
        return [""] * len(op)
    call = np.where(blocker >= 0, blocker, view.ops.launch[op])
    known = call >= 0
    row = view.host.at(
        np.where(known, view.ops.thread[op], -1), np.where(known, view.trace.api["start"].to_numpy()[call], -1)
    )
    return [view.host.site(int(r)) if r >= 0 else "" for r in row]

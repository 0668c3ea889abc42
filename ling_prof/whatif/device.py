"""What each op waited for: its launch, the op before it on its stream, an op of another stream."""

import re
from typing import Any

import numpy as np

from ling_prof.calls import matching
from ling_prof.intervals import distinct
from ling_prof.view import View
from ling_prof.whatif.graph import NONE

NEVER = np.iinfo(np.int64).min
STREAM_WAIT = re.compile("StreamWaitEvent")
MOST_NODES = 4096  # launched before a wait, that are looked at for the last on another stream
LATENCY, GAP = 2_000, 1_000  # ns, where the recording shows none of its own


def arrays(view: View, row: np.ndarray, call_of: np.ndarray) -> dict[str, Any]:
    """node, before, gap, other, other_gap, launch, in_call and after of Graph, for the ops `row`; call_of: row of
    trace.api -> call.

    An op was late when its launch returned after all before it had ended: then its launch is what it waited for, and of
    the others it would wait as long as is usual. Else it waited for them as long as recorded, and its launch could have
    come later.
    """
    ops = view.ops
    start, end, node = ops.start[row], ops.end[row], ops.later_node[row]
    before = previous(ops.stream[row])
    seen = _other(start, end, ops.stream[row], before)
    called, returned = ops.launch_start[row], ops.launch_end[row]
    known = (ops.launch[row] >= 0) & ~node & (called <= start)  # else the two clocks disagree
    late = known & (returned > np.where(seen >= 0, end[seen], np.where(before >= 0, end[before], NEVER)))
    freely = (before >= 0) & ~late & (seen < 0)
    gap = np.where(before >= 0, start - end[before], 0)
    usual = np.where(node, _usual(gap[freely & node]), _usual(gap[freely & ~node]))
    other, other_gap = _others(view, row, before, np.where(late, NONE, seen), usual)
    return {
        "node": node,
        "before": before,
        "gap": np.where(freely, gap, np.minimum(gap, usual)),
        "other": other,
        "other_gap": other_gap,
        "launch": np.where(known, call_of[ops.launch[row]], NONE) if len(call_of) else np.full(len(row), NONE),
        **_delays(start, np.where(known, called, start), np.where(known, returned, start), late, before),
    }


def _usual(gaps: np.ndarray) -> int:
    """The median gap, of overlapping ops none."""
    return max(0, int(np.median(gaps))) if len(gaps) else GAP


def _delays(start, called, returned, late, before) -> dict[str, np.ndarray]:
    """in_call and after: of an op that was not late the rest is as long as is usual after a launch."""
    delay = start - called
    in_call = np.minimum(delay, returned - called)
    after = delay - in_call
    usual = after[late & (before >= 0)]
    latency = int(np.median(usual)) if len(usual) else LATENCY
    return {"in_call": in_call, "after": np.where(late, after, np.minimum(after, latency))}


def previous(group: np.ndarray) -> np.ndarray:
    """The entry before each of its group (a stream, a thread); -1 for the first."""
    before = np.full(len(group), NONE)
    for one in distinct(group):
        on = np.flatnonzero(group == one)
        before[on[1:]] = on[:-1]
    return before


def _others(view: View, row: np.ndarray, before: np.ndarray, seen: np.ndarray, usual: np.ndarray) -> Any:
    """other and other_gap: the op that was seen to hold it up, or else the one that it was made to wait for."""
    start, end = view.ops.start[row], view.ops.end[row]
    asked = _asked_for(view, row, before)
    further = (seen < 0) & (asked >= 0) & (end[asked] <= start)
    gap = np.where(further, np.minimum(start - end[asked], usual), np.where(seen >= 0, start - end[seen], 0))
    return np.where(further, asked, seen), gap


def _other(start: np.ndarray, end: np.ndarray, stream: np.ndarray, before: np.ndarray) -> np.ndarray:
    """The op that ended last before each starts, if on another stream, and later than the one before on its own."""
    order = np.argsort(end, kind="stable")
    at = np.searchsorted(end[order], start, "right") - 1
    latest = np.where(at >= 0, order[np.maximum(at, 0)], NONE)
    own = np.where(before >= 0, end[before], NEVER)
    fits = (latest >= 0) & (stream[latest] != stream) & (end[latest] > own) & (latest < np.arange(len(start)))
    return np.where(fits, latest, NONE)


def _asked_for(view: View, row: np.ndarray, before: np.ndarray) -> np.ndarray:
    """The op of another stream that each was made to wait for: a cudaStreamWaitEvent came between the launch before on
    its stream and its own, so it follows what was launched until then. A recording does not say for which event."""
    ops, found = view.ops, np.full(len(row), NONE)
    if not view.trace.has("api"):
        return found
    api = view.trace.api
    waits = np.sort(api["start"].to_numpy()[matching(api["name"].array, STREAM_WAIT)])
    called, stream = ops.launch_start[row], ops.stream[row]
    asked = np.r_[NEVER, waits][np.searchsorted(waits, called)]
    known = (called >= 0) & ~ops.later_node[row] & (asked > np.where(before >= 0, called[before], NEVER))
    order = np.argsort(called, kind="stable")
    for i in np.flatnonzero(known & (asked > NEVER)).tolist():
        upto = order[: np.searchsorted(called[order], asked[i])][-MOST_NODES:]
        others = upto[(stream[upto] != stream[i]) & (called[upto] >= 0) & (upto < i)]
        if len(others):
            found[i] = others[np.argmax(ops.start[row[others]])]
    return found

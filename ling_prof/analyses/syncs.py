"""Which calls make the host wait for the device, from where, and what idle time do they cause?

One row per (call, site), costliest first. A device-side cudaStreamWaitEvent is not a host wait.
"""

import numpy as np
import pandas as pd

from ling_prof.ops import thread_keys
from ling_prof.timeline import SYNC_STALL
from ling_prof.view import View

COLUMNS = {
    "api": "CUDA or HIP call",
    "site": "operator, then the nearest functions of the user's own with file:line",
    "calls": "in the whole recording",
    "steps": "steps of any phase in which it happens",
    "blocked_ns": "host time inside the call, whole recording",
    "idle_caused_ns": "GPU idle time charged to it, whole recording",
    "focus_calls": "in the chosen steps",
    "focus_blocked_ns": "host time inside the call, chosen steps",
    "focus_idle_ns": "GPU idle time charged to it, chosen steps",
    "waited_for": "the op that was last to end before the call returned",
    "ahead_before_ns": "median time by which launches led execution at the call",
    "ahead_after_ns": "the same at the first launch after it",
    "range": "innermost annotation or NVTX range",
    "stack": "full stack, innermost first",
}


def rows(view: View) -> pd.DataFrame:
    api = view.trace.api
    calls = view.timeline.blocking
    if not len(calls):
        return pd.DataFrame(columns=list(COLUMNS))
    start = api["start"].to_numpy()[calls]
    row = view.host.at(thread_keys(api)[calls], start)
    frame = pd.DataFrame(
        {
            "api": np.asarray(api["name"].array[calls], object),
            "site": _per_row(row, lambda r: view.host.site(r) if r >= 0 else ""),
            "chosen": view.step_of_call(start, view.chosen) >= 0,
            "step": view.step_of_call(start, view.steps.table),
            "blocked_ns": api["end"].to_numpy()[calls] - start,
            "idle_caused_ns": _idle_caused(view)[calls],
            "host_row": row,
            "call": calls,
        }
    )
    frame[["ahead_before_ns", "ahead_after_ns"]] = _run_ahead(view, calls)
    out = pd.DataFrame([_group(view, key, group) for key, group in frame.groupby(["api", "site"], sort=False)])
    return out.sort_values(
        ["focus_idle_ns", "focus_blocked_ns", "idle_caused_ns", "blocked_ns"], ascending=False, ignore_index=True
    )[list(COLUMNS)]


def _per_row(row: np.ndarray, text) -> list[str]:
    known = {r: text(r) for r in np.unique(row)}
    return [known[r] for r in row]


def _idle_caused(view: View) -> np.ndarray:
    """Per api row, the idle time of the device charged to it, ns."""
    pieces = view.timeline.pieces
    stalls = pieces.cls == SYNC_STALL
    total = np.zeros(len(view.trace.api), np.int64)
    np.add.at(total, pieces.blocker[stalls], pieces.length[stalls])
    return total


def _run_ahead(view: View, calls: np.ndarray) -> np.ndarray:
    """(calls, 2) ns by which the last launch before, and the first after, each call led its op; -1 where none."""
    api, ops = view.trace.api, view.ops
    linked = np.flatnonzero(ops.launch >= 0)
    order = linked[np.argsort(ops.launch_end[linked], kind="stable")]
    ends, ahead = ops.launch_end[order], np.maximum(ops.start[order] - ops.launch_end[order], 0)
    if not len(order):
        return np.full((len(calls), 2), -1)
    before = np.searchsorted(ends, api["start"].to_numpy()[calls], "right") - 1
    after = np.searchsorted(ends, api["end"].to_numpy()[calls], "right")
    last = len(order) - 1
    return np.stack(
        [
            np.where(before >= 0, ahead[np.maximum(before, 0)], -1),
            np.where(after <= last, ahead[np.minimum(after, last)], -1),
        ],
        axis=1,
    )


def _group(view: View, key: tuple[str, str], group: pd.DataFrame) -> dict[str, object]:
    inside = group[group["chosen"]]
    example = (inside if len(inside) else group).iloc[0]
    row = int(example["host_row"])
    return {
        "api": key[0],
        "site": key[1],
        "calls": len(group),
        "steps": group.loc[group["step"] >= 0, "step"].nunique(),
        "blocked_ns": int(group["blocked_ns"].sum()),
        "idle_caused_ns": int(group["idle_caused_ns"].sum()),
        "focus_calls": len(inside),
        "focus_blocked_ns": int(inside["blocked_ns"].sum()),
        "focus_idle_ns": int(inside["idle_caused_ns"].sum()),
        "waited_for": _waited_for(view, int(example["call"])),
        "ahead_before_ns": int(group["ahead_before_ns"].median()),
        "ahead_after_ns": int(group["ahead_after_ns"].median()),
        "range": view.host.range_name(row) if row >= 0 else "",
        "stack": view.host.stack(row) if row >= 0 else [],
    }


def _waited_for(view: View, call: int) -> str:
    """The op last to end before the call returned, when it was launched before the call began."""
    api, ops = view.trace.api, view.ops
    done = np.flatnonzero(
        (ops.end <= api["end"].iat[call]) & (ops.launch >= 0) & (ops.launch_start < api["end"].iat[call])
    )
    return ops.name(int(done[np.argmax(ops.end[done])])) if len(done) else ""

"""Which calls make the host wait for the device, from where, and what idle time do they cause?

One row per (call, site), costliest first. A device-side cudaStreamWaitEvent is not a host wait.
"""

from collections import Counter

import numpy as np
import pandas as pd

from ling_prof.analyses.launches import series
from ling_prof.intervals import distinct
from ling_prof.timeline import SYNC_STALL, Pieces
from ling_prof.trace import thread_keys
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
    "focus_idle_ns": "GPU idle time in the chosen steps charged to it",
    "waited_for": "op that usually ended last while the call waited; empty: none was running",
    "ahead_before_ns": "median time by which the last launch before led its op; -1: none",
    "ahead_after_ns": "the same for the first launch after it",
    "range": "innermost annotation or NVTX range",
    "stack": "full stack, innermost first",
}
COST = ["focus_idle_ns", "focus_blocked_ns", "idle_caused_ns", "blocked_ns"]
EXAMPLES = 200  # calls of a site that are looked at for what they waited for


def rows(view: View) -> pd.DataFrame:
    api = view.trace.api
    calls = view.timeline.blocking
    if not len(calls):
        return pd.DataFrame(columns=list(COLUMNS))
    start = api["start"].to_numpy()[calls]
    row = view.host.at(thread_keys(api)[calls], start)
    everywhere, chosen = view.timeline.pieces, view.pieces_in(view.chosen)[0]
    frame = pd.DataFrame(
        {
            "api": np.asarray(api["name"].array[calls], object),
            "site": _sites(view, row),
            "chosen": view.step_of_call(start, view.chosen) >= 0,
            "step": view.step_of_call(start, view.steps.table),
            "blocked_ns": api["end"].to_numpy()[calls] - start,
            "idle_caused_ns": _charged(everywhere, len(api))[calls],
            "focus_idle_ns": _charged(chosen, len(api))[calls],
            "host_row": row,
            "call": calls,
        }
    )
    frame[["ahead_before_ns", "ahead_after_ns"]] = _run_ahead(view, calls)
    out = pd.DataFrame([_group(view, key, group) for key, group in frame.groupby(["api", "site"], sort=False)])
    return out.sort_values(COST, ascending=False, ignore_index=True)[list(COLUMNS)]


def _sites(view: View, row: np.ndarray) -> list[str]:
    known = {r: view.host.site(int(r)) if r >= 0 else "" for r in distinct(row)}
    return [known[r] for r in row]


def _charged(pieces: Pieces, calls: int) -> np.ndarray:
    """Per api row, the idle time among `pieces` that is charged to it, ns."""
    stalls = pieces.cls == SYNC_STALL
    total = np.zeros(calls, np.int64)
    np.add.at(total, pieces.blocker[stalls], pieces.length[stalls])
    return total


def _run_ahead(view: View, calls: np.ndarray) -> np.ndarray:
    """(calls, 2) ns by which the last launch before, and the first after, each call led its op; NaN where none is."""
    api, launches = view.trace.api, series(view)
    if not len(launches):
        return np.full((len(calls), 2), np.nan)
    called, ahead = launches["called"].to_numpy(), launches["ahead_ns"].to_numpy().astype(float)
    before = np.searchsorted(called, api["start"].to_numpy()[calls]) - 1
    after = np.searchsorted(called, api["end"].to_numpy()[calls])
    ahead = np.r_[ahead, np.nan]
    return np.stack([ahead[before], ahead[np.minimum(after, len(called))]], axis=1)


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
        "focus_idle_ns": int(group["focus_idle_ns"].sum()),
        "waited_for": _waited_for(view, group["call"].to_numpy()[:EXAMPLES]),
        "ahead_before_ns": _median(group["ahead_before_ns"]),
        "ahead_after_ns": _median(group["ahead_after_ns"]),
        "range": view.host.range_name(row) if row >= 0 else "",
        "stack": view.host.stack(row) if row >= 0 else [],
    }


def _median(values: pd.Series) -> int:
    return int(values.median()) if values.notna().any() else -1


def _waited_for(view: View, calls: np.ndarray) -> str:
    """The commonest op that was launched before such a call began and was last to end while it waited; '' for none."""
    api, ops = view.trace.api, view.ops
    order = np.argsort(ops.end, kind="stable")
    seen = []
    for begun, done in zip(api["start"].to_numpy()[calls], api["end"].to_numpy()[calls], strict=True):
        ended = order[slice(*np.searchsorted(ops.end[order], [begun, done], "right"))]
        ended = ended[(ops.launch[ended] >= 0) & (ops.launch_start[ended] < begun)]
        seen += [ops.name(int(ended[-1]))] if len(ended) else []
    return Counter(seen).most_common(1)[0][0] if seen else ""

"""The host's calls: those that launch work or wait for the device, and what the latter waited for."""

from typing import Any, NamedTuple

import numpy as np

from ling_prof.calls import GRAPH_LAUNCH, matching
from ling_prof.intervals import distinct
from ling_prof.trace import thread_keys
from ling_prof.view import View
from ling_prof.whatif.device import previous
from ling_prof.whatif.graph import NONE, Text, text_of

WAKE = 5_000  # ns: the most that a host which need not have waited takes to go on
CANDIDATES = 64  # ops that ended last before a call returned, that are looked at for the one it waited for
TIMES = ("began", "returned", "previous", "lead", "cost", "fixed", "awaits", "tail")
FLAGS = ("blocks", "by_event", "graph")


class Calls(NamedTuple):
    """row: the calls as rows of trace.api; of_row: for each row of trace.api the call that holds it, -1 for none."""

    row: np.ndarray
    of_row: np.ndarray


def calls_of(view: View, row: np.ndarray) -> Calls:
    """Calls that launch the ops `row`, and those that block meanwhile; of nested ones the outermost."""
    ops, trace = view.ops, view.trace
    if not trace.has("api"):
        return Calls(np.empty(0, np.int64), np.empty(0, np.int64))
    start = trace.api["start"].to_numpy()
    launching = distinct(ops.launch[row][ops.launch[row] >= 0])
    since = start[launching].min() if len(launching) else ops.start[row[0]]
    blocking = _waiting(view)
    blocking = blocking[(start[blocking] >= since) & (start[blocking] < ops.start[row[-1]])]
    outer = _outermost(trace.api, distinct(np.r_[launching, blocking]))
    kept = distinct(outer[outer >= 0])
    number = np.full(len(outer) + 1, NONE)
    number[kept] = np.arange(len(kept))
    return Calls(kept, number[outer])


def _outermost(api: Any, chosen: np.ndarray) -> np.ndarray:
    """For each row of api the row of the outermost of the `chosen` that encloses it, itself included; -1 for others."""
    start, end, keys = api["start"].to_numpy(), api["end"].to_numpy(), thread_keys(api)
    found = np.full(len(api), NONE)
    for key in distinct(keys[chosen]):
        mine = chosen[keys[chosen] == key]
        mine = mine[np.lexsort((-end[mine], start[mine]))]
        outer = start[mine] >= np.r_[-1, np.maximum.accumulate(end[mine])[:-1]]
        found[mine] = mine[np.maximum.accumulate(np.where(outer, np.arange(len(mine)), 0))]
    return found


def arrays(view: View, row: np.ndarray, calls: Calls) -> dict[str, Any]:
    """The arrays of Graph that have one entry a call, and when each returned."""
    if not len(calls.row):
        nothing = np.empty(0, np.int64)
        return {
            **dict.fromkeys(TIMES, nothing),
            **dict.fromkeys(FLAGS, nothing.astype(bool)),
            "site": text_of(nothing),
        }
    api = view.trace.api.iloc[calls.row]
    start, end = api["start"].to_numpy(), api["end"].to_numpy()
    before = previous(thread_keys(api))
    blocks = np.isin(calls.row, _waiting(view))
    awaits, tail = _awaited(view, row, calls, blocks)
    waited = (awaits >= 0) & (end - tail > start)
    least = np.minimum(_shortest(np.asarray(api["name"].array, object), end - start), tail)
    return {
        "began": start,
        "returned": end,
        "previous": before,
        "lead": np.where(before >= 0, start - end[before], 0),
        "cost": np.where(waited, least, end - start),
        "fixed": np.zeros(len(start), np.int64),
        "awaits": awaits,
        "tail": np.where(waited, tail, np.minimum(tail, WAKE)),
        "blocks": blocks,
        "by_event": np.asarray(api["sync_kind"] == "event"),
        "graph": matching(api["name"].array, GRAPH_LAUNCH),
        "site": _sites(view, calls, blocks),
    }


def _waiting(view: View) -> np.ndarray:
    """Calls that wait for the device: those that block, but for copies to it, which return once they are staged."""
    ops = view.ops
    staged = (ops.text("copy_kind") == "HtoD") & (ops.launch >= 0)
    explicit = np.asarray(view.trace.api["sync_kind"].array != "")
    rows = view.timeline.blocking
    return rows[explicit[rows] | ~np.isin(rows, ops.launch[staged])]


def _awaited(view: View, row: np.ndarray, calls: Calls, blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """awaits and tail: the copy that a blocking call made itself, or else the op that ended last before it returned, of
    the last ones of launches made before it. An event that no such op was seen to hold up may be any earlier one's."""
    ops, api = view.ops, view.trace.api
    start, end = api["start"].to_numpy()[calls.row], api["end"].to_numpy()[calls.row]
    events = np.asarray(api["sync_kind"] == "event")[calls.row]
    done, called = ops.end[row], np.where(ops.launch[row] >= 0, ops.launch_start[row], ops.start[row])
    ended = np.flatnonzero(_last_of_launch(ops.launch)[row])
    ended = ended[np.argsort(done[ended], kind="stable")]
    own = np.full(len(start) + 1, NONE)
    own[calls.of_row[ops.launch[row]]] = np.where(ops.launch[row] >= 0, np.arange(len(row)), NONE)
    awaits, tail = np.full(len(start), NONE), np.zeros(len(start), np.int64)
    for i in np.flatnonzero(blocks).tolist():
        op = int(own[i])
        if op < 0 or done[op] > end[i]:
            upto = ended[: np.searchsorted(done[ended], end[i], "right")][-CANDIDATES:]
            fits = upto[(called[upto] < start[i]) & (ops.start[row[upto]] < end[i])]
            op = int(fits[-1]) if len(fits) else NONE
        if op >= 0 and not (events[i] and done[op] <= start[i]):
            awaits[i], tail[i] = op, end[i] - done[op]
    return awaits, tail


def _last_of_launch(launch: np.ndarray) -> np.ndarray:
    """Whether no later op has the same launch; ops without one count."""
    last = np.ones(len(launch), bool)
    _, first = np.unique(launch[::-1], return_index=True)
    last[launch >= 0] = False
    last[len(launch) - 1 - first] = True
    return last


def _shortest(names: np.ndarray, cost: np.ndarray) -> np.ndarray:
    """The shortest time of any call of each call's name."""
    least = {name: int(cost[names == name].min()) for name in set(names)}
    return np.array([least[name] for name in names], np.int64)


def _sites(view: View, calls: Calls, blocks: np.ndarray) -> Text:
    api = view.trace.api.iloc[calls.row]
    found = np.where(blocks, view.host.at(thread_keys(api), api["start"].to_numpy()), NONE)
    known = {row: view.host.site(int(row)) if row >= 0 else "" for row in distinct(found)}
    names = np.asarray(api["name"].array, object)
    return text_of(np.array([known[row] or name for row, name in zip(found, names, strict=True)], object))

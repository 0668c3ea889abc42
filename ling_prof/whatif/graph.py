"""The decode steps of a recording as a dependency graph: what each op and each call waited for, and how long after.

Host: the calls that launch work or wait for the device, each thread's in order, the time between them as it was.
Device: an op waits for its launch, for the op before it on its stream, and for another stream where the recording shows
that it did. A blocking call waits for the last op that it saw end. Replayed unchanged, the graph gives the recording
back.
"""

import re
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from ling_prof.analyses import layers
from ling_prof.calls import GRAPH_LAUNCH, matching
from ling_prof.errors import Missing
from ling_prof.intervals import distinct
from ling_prof.roles import ROLES
from ling_prof.trace import thread_keys
from ling_prof.view import View, require_steps

NONE, NEVER = -1, np.iinfo(np.int64).min
RETURN, CALL, OP = range(3)  # events, in the order in which they come at one time
STREAM_WAIT = re.compile("StreamWaitEvent")
MOST_NODES = 4096  # of a graph, that are looked at for the last
LATENCY, GAP, WAKE = 2_000, 1_000, 5_000  # ns, where the recording shows none of its own


class Text(NamedTuple):
    """Strings that repeat: values[codes]."""

    codes: np.ndarray
    values: np.ndarray

    def fits(self, pattern: str) -> np.ndarray:
        """Where the regular expression finds itself, as a mask."""
        return np.array([bool(re.search(pattern, value)) for value in self.values] or [False])[self.codes]

    def renamed(self, old: str, new: str) -> "Text":
        """`new` where `old` or `new` stands."""
        codes = np.where(self.fits(f"^({old}|{new})$"), len(self.values), self.codes)
        return Text(codes, np.append(self.values, new))


@dataclass(frozen=True)
class Graph:
    """One entry per op, or per call, in order of start; times in ns; indices, -1 for none.

    Ops. name, role, layer ('' where unknown); row: in the ops of the view; start: as recorded; node: is a later node of
    a graph launch; before, gap: the op before it on its stream, and from that one's end to its start; where that is
    below 0 they overlap, and duration counts from that end: until then it did `head` and waited; other, other_gap: the
    same of an op on another stream; launch: its call; in_call, after: from the start of that call to its own, the part
    while the call runs and the rest.
    Calls. began: as recorded; previous: the call before on its thread; lead: the host's time since that returned; cost:
    its own time (at most its tail, of one that waited); awaits, tail: the op that it waits for, and from that one's end
    to its return; blocks: it can make the host wait; by_event: for an event, which the host chose; graph: it launches a
    CUDA graph; site: who made a call that blocks.
    events (n, 2): kind and index, in an order that respects all of this. begins, ends: the op at which each round
    begins, and the one whose start ends it; -1: the end of all ops ends it.
    """

    path: str
    gpu: str | None
    name: Text
    role: Text
    layer: Text
    row: np.ndarray
    start: np.ndarray
    duration: np.ndarray
    node: np.ndarray
    before: np.ndarray
    gap: np.ndarray
    other: np.ndarray
    other_gap: np.ndarray
    launch: np.ndarray
    in_call: np.ndarray
    after: np.ndarray
    head: np.ndarray
    gone: np.ndarray
    early: np.ndarray
    began: np.ndarray
    previous: np.ndarray
    lead: np.ndarray
    cost: np.ndarray
    awaits: np.ndarray
    tail: np.ndarray
    blocks: np.ndarray
    by_event: np.ndarray
    graph: np.ndarray
    site: Text
    events: np.ndarray
    begins: np.ndarray
    ends: np.ndarray

    @cached_property
    def recorded(self) -> np.ndarray:
        """The wall of each round in the recording, ns."""
        return self.walls(self.start, self.start + self.duration + np.maximum(-self.gap, 0))

    def walls(self, start: np.ndarray, end: np.ndarray) -> np.ndarray:
        """The wall of each round where ops start and end like this, ns."""
        return np.where(self.ends >= 0, start[self.ends], end.max()) - start[self.begins]

    @cached_property
    def round(self) -> np.ndarray:
        """The number of the round each op starts in; -1 outside of all."""
        at = np.searchsorted(self.begins, np.arange(len(self.start)), "right") - 1
        last = np.where(self.ends >= 0, self.ends, len(self.start))
        return np.where((at >= 0) & (np.arange(len(self.start)) < last[at]), at, -1)

    def with_(self, **arrays: Any) -> "Graph":
        """A copy with other arrays."""
        return replace(self, **arrays)


class _Calls(NamedTuple):
    """row: the calls of a graph as rows of trace.api; of_row: for each row of trace.api its call, -1 for none."""

    row: np.ndarray
    of_row: np.ndarray


def build(view: View, most: int | None = None) -> Graph:
    """The graph of the counted rounds of the view's focus, or of the `most` in the middle. Raises UserError, naming the
    recording, without any."""
    require_steps(view)
    rounds = view.chosen.groupby(view.rounds)
    begins, ends = rounds["start"].min().to_numpy(), rounds["end"].max().to_numpy()
    first = max(0, (len(begins) - (most or len(begins))) // 2)
    begins, ends = (bounds[first : first + (most or len(bounds))] for bounds in (begins, ends))
    ops = view.ops
    first = np.searchsorted(ops.start, begins[0])
    last = len(ops) if ends[-1] > ops.start[-1] else int(np.searchsorted(ops.start, ends[-1])) + 1
    row = np.arange(first, last)
    start, end = ops.start[row], ops.end[row]
    calls = _calls(view, row)
    device = _device(view, row, calls)
    host = _host(view, row, calls)
    bounds = np.searchsorted(start, ends)
    return Graph(
        path=view.trace.path,
        gpu=_gpu(view),
        name=Text(ops.names.codes[row].astype(np.int64), np.asarray(ops.names.categories, object)),
        role=Text(ops.role[row], np.array(ROLES, object)),
        layer=_text(_layers(view)[row]),
        row=row,
        start=start,
        duration=end - np.where((device["before"] >= 0) & (device["gap"] < 0), start - device["gap"], start),
        head=np.zeros(len(row), np.int64),  # a recording does not tell work from waiting
        gone=np.zeros(len(row), bool),
        early=np.zeros(len(row), bool),
        **device,
        **host,
        events=_events(start, device["launch"], host, view.trace, calls),
        begins=np.searchsorted(start, begins),
        ends=np.where(bounds < len(row), bounds, -1),
    )


def _text(strings: np.ndarray) -> Text:
    values, codes = np.unique(strings.astype(str), return_inverse=True)
    return Text(codes, values.astype(object))


def _gpu(view: View) -> str | None:
    name = view.trace.device_name(view.ops.device)
    return None if name == f"device {view.ops.device}" else name


def _layers(view: View) -> np.ndarray:
    try:
        return layers.of_ops(view)
    except Missing:
        return np.full(len(view.ops), "", object)


def _calls(view: View, row: np.ndarray) -> _Calls:
    """Calls that launch these ops, and those that block meanwhile; of nested ones the outermost."""
    ops, trace = view.ops, view.trace
    if not trace.has("api"):
        return _Calls(np.empty(0, np.int64), np.empty(0, np.int64))
    api = trace.api
    start, end, keys = api["start"].to_numpy(), api["end"].to_numpy(), thread_keys(api)
    launching = distinct(ops.launch[row][ops.launch[row] >= 0])
    since = start[launching].min() if len(launching) else ops.start[row[0]]
    blocking = _waiting(view)
    blocking = blocking[(start[blocking] >= since) & (start[blocking] < ops.start[row[-1]])]
    chosen = distinct(np.r_[launching, blocking])
    of_row = np.full(len(api), -1)
    for key in distinct(keys[chosen]):
        mine = chosen[keys[chosen] == key]
        mine = mine[np.lexsort((-end[mine], start[mine]))]
        outer = start[mine] >= np.r_[-1, np.maximum.accumulate(end[mine])[:-1]]
        of_row[mine] = mine[np.maximum.accumulate(np.where(outer, np.arange(len(mine)), 0))]
    kept = distinct(of_row[of_row >= 0])
    number = np.full(len(api) + 1, -1)
    number[kept] = np.arange(len(kept))
    return _Calls(kept, number[of_row])


def _device(view: View, row: np.ndarray, calls: _Calls) -> dict[str, Any]:
    """The arrays of the ops that say what each waits for."""
    ops = view.ops
    start, end = ops.start[row], ops.end[row]
    node = ops.later_node[row]
    before = _before(ops.stream[row])
    other = _other(start, end, ops.stream[row], before)
    launch = np.where((ops.launch[row] >= 0) & ~node, ops.launch[row], -1)
    called, returned = ops.launch_start[row], ops.launch_end[row]
    launch = np.where((launch >= 0) & (called <= start), launch, -1)  # else the two clocks disagree
    own = np.where(before >= 0, end[before], NEVER)
    late = (launch >= 0) & (returned > np.where(other >= 0, end[other], own))
    other = np.where(late, -1, other)
    freely = (before >= 0) & ~late & (other < 0)
    gap = np.where(before >= 0, start - end[before], 0)
    usual = np.where(node, _median(gap[freely & node], GAP), _median(gap[freely & ~node], GAP))
    asked = _asked_for(view, row, before)
    further = (other < 0) & (asked >= 0) & (end[asked] <= start)
    delay = np.where(launch >= 0, start - called, 0)
    in_call = np.minimum(delay, returned - called)
    after = delay - in_call
    latency = _median(after[late & (before >= 0)], LATENCY)
    return {
        "node": node,
        "before": before,
        "gap": np.where(freely, gap, np.minimum(gap, usual)),
        "other": np.where(further, asked, other),
        "other_gap": np.where(
            further, np.minimum(start - end[asked], usual), np.where(other >= 0, start - end[other], 0)
        ),
        "launch": np.where(launch >= 0, calls.of_row[launch], -1) if len(calls.of_row) else launch,
        "in_call": np.where(launch >= 0, in_call, 0),
        "after": np.where(launch >= 0, np.where(late, after, np.minimum(after, latency)), 0),
    }


def _before(stream: np.ndarray) -> np.ndarray:
    """The op before each on its stream."""
    before = np.full(len(stream), -1)
    for one in distinct(stream):
        on = np.flatnonzero(stream == one)
        before[on[1:]] = on[:-1]
    return before


def _asked_for(view: View, row: np.ndarray, before: np.ndarray) -> np.ndarray:
    """The op of another stream that each was made to wait for: a cudaStreamWaitEvent came between the launch before on
    its stream and its own, so it follows what was launched until then. A recording does not say for which event."""
    ops, found = view.ops, np.full(len(row), NONE)
    if not view.trace.has("api"):
        return found
    api = view.trace.api
    waits = np.sort(api["start"].to_numpy()[matching(api["name"].array, STREAM_WAIT)])
    called = ops.launch_start[row]
    at = np.searchsorted(waits, called) - 1
    asked = np.where(at >= 0, waits[np.maximum(at, 0)] if len(waits) else NEVER, NEVER)
    known = (called >= 0) & ~ops.later_node[row] & (asked > np.where(before >= 0, called[before], NEVER))
    order = np.argsort(called, kind="stable")
    for i in np.flatnonzero(known & (asked > NEVER)).tolist():
        upto = order[: np.searchsorted(called[order], asked[i])][-MOST_NODES:]
        others = upto[(ops.stream[row[upto]] != ops.stream[row[i]]) & (called[upto] >= 0) & (upto < i)]
        if len(others):
            found[i] = others[np.argmax(ops.start[row[others]])]
    return found


def _other(start: np.ndarray, end: np.ndarray, stream: np.ndarray, before: np.ndarray) -> np.ndarray:
    """The op that ended last before each starts, if on another stream, and later than the one before on its own."""
    order = np.argsort(end, kind="stable")
    at = np.searchsorted(end[order], start, "right") - 1
    latest = np.where(at >= 0, order[np.maximum(at, 0)], -1)
    own = np.where(before >= 0, end[before], NEVER)
    fits = (latest >= 0) & (stream[latest] != stream) & (end[latest] > own) & (latest < np.arange(len(start)))
    return np.where(fits, latest, -1)


def _host(view: View, row: np.ndarray, calls: _Calls) -> dict[str, Any]:
    """The arrays of the calls."""
    if not len(calls.row):
        nothing = np.empty(0, np.int64)
        names = ("began", "previous", "lead", "cost", "awaits", "tail")
        flags = {name: nothing.astype(bool) for name in ("blocks", "by_event", "graph")}
        return dict.fromkeys(names, nothing) | flags | {"site": _text(nothing)}
    api = view.trace.api.iloc[calls.row]
    start, end = api["start"].to_numpy(), api["end"].to_numpy()
    previous = _before(thread_keys(api))
    blocks = np.isin(calls.row, _waiting(view))
    awaits, tail = _awaited(view, row, calls, blocks)
    waited = (awaits >= 0) & (end - tail > start)
    cost = end - start
    own = _shortest(np.asarray(api["name"].array, object), cost)
    return {
        "began": start,
        "previous": previous,
        "lead": np.where(previous >= 0, start - end[previous], 0),
        "cost": np.where(waited, np.minimum(own, tail), cost),
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


def _awaited(view: View, row: np.ndarray, calls: _Calls, blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each blocking call the last op to end before it returned, of those launched before it began or by it."""
    ops, api = view.ops, view.trace.api
    start, end = api["start"].to_numpy()[calls.row], api["end"].to_numpy()[calls.row]
    called = np.where(ops.launch[row] >= 0, ops.launch_start[row], ops.start[row])
    ended = np.argsort(ops.end[row], kind="stable")
    awaits, tail = np.full(len(start), NONE), np.zeros(len(start), np.int64)
    events = np.asarray(api["sync_kind"] == "event")[calls.row]
    own = np.full(len(start) + 1, -1)
    own[calls.of_row[ops.launch[row]] if len(calls.of_row) else -1] = np.arange(len(row))
    for i in np.flatnonzero(blocks):
        op = own[i]
        if op < 0 or ops.end[row[op]] > end[i]:
            upto = ended[: np.searchsorted(ops.end[row[ended]], end[i], "right")]
            fits = upto[-64:][(called[upto[-64:]] < start[i]) & (ops.start[row[upto[-64:]]] < end[i])]
            op = int(fits[-1]) if len(fits) else -1
        unseen = events[i] and op >= 0 and ops.end[row[op]] <= start[i]  # any earlier one may be the event's
        if op >= 0 and not unseen:
            awaits[i], tail[i] = op, end[i] - ops.end[row[op]]
    return awaits, tail


def _shortest(names: np.ndarray, cost: np.ndarray) -> np.ndarray:
    """The shortest time of any call of each call's name."""
    least = {name: int(cost[names == name].min()) for name in set(names)}
    return np.array([least[name] for name in names], np.int64)


def _sites(view: View, calls: _Calls, blocks: np.ndarray) -> Text:
    api = view.trace.api.iloc[calls.row]
    found = np.where(blocks, view.host.at(thread_keys(api), api["start"].to_numpy()), -1)
    known = {row: view.host.site(int(row)) if row >= 0 else "" for row in distinct(found)}
    return _text(np.array([known[row] for row in found], object))


def _events(start: np.ndarray, launch: np.ndarray, host: dict[str, Any], trace: Any, calls: _Calls) -> np.ndarray:
    returned = trace.api["end"].to_numpy()[calls.row] if len(calls.row) else np.empty(0, np.int64)
    times = np.concatenate([returned, host["began"], start])
    sizes = (len(returned), len(returned), len(start))
    kind = np.repeat([RETURN, CALL, OP], sizes)
    index = np.concatenate([np.arange(size) for size in sizes])
    order = np.lexsort((index, kind, times))
    return np.stack([kind[order], index[order]], axis=1)


def _median(values: np.ndarray, otherwise: int) -> int:
    return int(np.median(values)) if len(values) else otherwise

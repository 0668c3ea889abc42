"""The critical path of a replay: the chain of ops, gaps and host work that decided when each round ended.

Walked backwards from there to where the round began: from each op and call to what held it up.
"""

from collections import Counter
from collections.abc import Iterator

import numpy as np

from ling_prof.whatif.graph import Graph
from ling_prof.whatif.replay import CLOSE, Replay, course, scaled, step_of

START, END, CALLED, RETURNED = range(4)
MOST, FINE = 64.0, 0.005  # of a pace: the largest, and the least difference, that is tried
Place = tuple[int, int]  # one of the four, and which op or call
Piece = tuple[str, int, Place | None]  # its class, since when, and what came before


def critical_path(graph: Graph, found: Replay) -> dict[str, float]:
    """Class of the ledger -> ns a round on the path, largest first; together the mean round.

    sync_stall: from the end of an op that the host waited for until it went on; host_bound: the host's own time, in
    calls too.
    """
    total: Counter[str] = Counter()
    steps = _Steps(graph, found)
    for begin, end in zip(graph.begins.tolist(), graph.ends.tolist(), strict=True):
        place = (START, end) if end >= 0 else (END, int(np.argmax(found.end)))
        total.update(_walked(steps, place, int(found.start[begin])))
    return {name: ns / len(graph.begins) for name, ns in total.most_common() if ns}


def _walked(steps: "_Steps", place: Place | None, first: int) -> Counter[str]:
    """Class -> ns on the way back from a place to the time `first`."""
    kind, at = place or (START, 0)
    until = int((steps.found.start if kind == START else steps.found.end)[at])
    total: Counter[str] = Counter()
    while place is not None and until > first:
        pieces = list(steps.back(place))
        for name, since, _ in pieces:
            since = max(first, min(since, until))
            total[name] += until - since
            until = since
        place = pieces[-1][-1]
    total["unknown"] += until - first
    return total


class _Steps:
    """One step back from a place: pieces, each earlier than the one before; the place after the last goes on."""

    def __init__(self, graph: Graph, found: Replay):
        self.graph, self.found = graph, found
        self.in_call = scaled(graph.in_call, found.pace)
        self.gap, self.other_gap = scaled(graph.gap, found.stretch), scaled(graph.other_gap, found.stretch)

    def back(self, place: Place) -> Iterator[Piece]:
        kind, i = place
        return (self._start, self._end, self._called, self._returned)[kind](i)

    def _start(self, op: int) -> Iterator[Piece]:
        """What it waited for longest; of equals the device."""
        graph, found = self.graph, self.found
        before, other, launch = int(graph.before[op]), int(graph.other[op]), int(graph.launch[op])
        if before >= 0 and found.end[before] + self.gap[op] == found.start[op]:
            yield "graph_dependency" if graph.node[op] else "dependency", int(found.end[before]), (END, before)
        elif other >= 0 and found.end[other] + self.other_gap[op] == found.start[op]:
            yield "stream_wait", int(found.end[other]), (END, other)
        elif launch >= 0:
            yield "launch_latency", int(found.called[launch]) + self.in_call[op], (START, op)
            yield "launch_call", int(found.called[launch]), (CALLED, launch)
        else:
            yield "unknown", 0, None

    def _end(self, op: int) -> Iterator[Piece]:
        before = int(self.graph.before[op])
        hidden = before >= 0 and self.gap[op] < 0 and self.found.end[before] > self.found.start[op]
        since = self.found.end[before] if hidden else self.found.start[op]
        yield "busy", int(since), (END, before) if hidden else (START, op)

    def _called(self, call: int) -> Iterator[Piece]:
        previous = int(self.graph.previous[call])
        if previous < 0:
            yield "unknown", 0, None
        else:
            yield "host_bound", int(self.found.returned[previous]), (RETURNED, previous)

    def _returned(self, call: int) -> Iterator[Piece]:
        awaited = int(self.graph.awaits[call])
        if awaited >= 0 and self.found.returned[call] == self.found.end[awaited] + self.graph.tail[call]:
            yield "sync_stall", int(self.found.end[awaited]), (END, awaited)
        else:
            yield "host_bound", int(self.found.called[call]), (CALLED, call)


def host_slack(graph: Graph, found: Replay) -> float | None:
    """How much longer the host's work of a round could get before the step does, ns; None where no work is recorded, or
    MOST times as much does not show."""
    work, along = float(graph.lead.sum() + graph.cost.sum()) / len(graph.begins), course(graph)

    def shows(pace: float) -> bool:
        return step_of(graph, pace, found.stretch, along) > found.step * (1 + CLOSE)

    if not work or not shows(found.pace + MOST):
        return None
    low, high = found.pace, found.pace + MOST
    while high - low > FINE:
        middle = (low + high) / 2
        low, high = (low, middle) if shows(middle) else (middle, high)
    return work * (low - found.pace)

"""Runs a dependency graph: when every op and call starts and ends if the host takes `pace` of its recorded time."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ling_prof.whatif.graph import CALL, OP, Graph

CLOSE = 1e-4  # of the step, to which a pace is sought
TRIES = 40


@dataclass(frozen=True)
class Replay:
    """start, end of every op, called, returned of every call and walls of every round, ns; pace and stretch: what the
    host's and the ops' times were multiplied by."""

    start: np.ndarray
    end: np.ndarray
    called: np.ndarray
    returned: np.ndarray
    walls: np.ndarray
    pace: float = 1.0
    stretch: float = 1.0

    @property
    def step(self) -> float:
        """The median round, ns."""
        return float(np.median(self.walls))


def replay(graph: Graph, pace: float = 1.0, stretch: float = 1.0) -> Replay:
    """Times of ops and calls in the order of graph.events; `stretch` scales what the device does."""
    lead, cost, in_call = (scaled(array, pace) for array in (graph.lead, graph.cost, graph.in_call))
    duration, gap, other_gap = (scaled(array, stretch) for array in (graph.duration, graph.gap, graph.other_gap))
    before, other, launch, after = (array.tolist() for array in (graph.before, graph.other, graph.launch, graph.after))
    head, fixed = scaled(graph.head, stretch), graph.fixed.tolist()
    previous, awaits, tail = (array.tolist() for array in (graph.previous, graph.awaits, graph.tail))
    given, began = graph.start.tolist(), graph.began.tolist()
    start, end = [0] * len(given), [0] * len(given)
    called, returned = [0] * len(began), [0] * len(began)
    for kind, i in graph.events.tolist():
        if kind == OP:
            when = []
            if launch[i] >= 0:
                when.append(called[launch[i]] + in_call[i] + after[i])
            if before[i] >= 0:
                when.append(end[before[i]] + gap[i])
            if other[i] >= 0:
                when.append(end[other[i]] + other_gap[i])
            start[i] = max(when) if when else given[i]
            end[i] = (max(start[i] + head[i], end[before[i]]) if gap[i] < 0 else start[i]) + duration[i]
        elif kind == CALL:
            called[i] = returned[previous[i]] + lead[i] if previous[i] >= 0 else began[i]
        else:
            returned[i] = called[i] + cost[i] + fixed[i]
            if awaits[i] >= 0:
                returned[i] = max(returned[i], end[awaits[i]] + tail[i])
    first, last = np.array(start, np.int64), np.array(end, np.int64)
    host = np.array(called, np.int64), np.array(returned, np.int64)
    return Replay(first, last, *host, graph.walls(first, last), pace, stretch)


def scaled(array: np.ndarray, factor: float) -> list[int]:
    """In whole ns."""
    return array.tolist() if factor == 1 else np.round(array * factor).astype(np.int64).tolist()


def calibrated(graph: Graph, step: float | None) -> Replay:
    """The replay whose median round takes `step` ns: the host faster than recorded, or where that is not enough the
    device too; as recorded without a step."""
    if step is None:
        return replay(graph)
    slowest, fastest = replay(graph), replay(graph, 0.0)
    if step >= slowest.step:
        return slowest
    if step <= fastest.step:
        return _sought(lambda stretch: replay(graph, 0.0, stretch), step)
    return _sought(lambda pace: replay(graph, pace), step)


def _sought(at: Callable[[float], Replay], step: float) -> Replay:
    """By bisection of what grows with it, between 0 and 1."""
    low, high = 0.0, 1.0
    for _ in range(TRIES):
        found = at(middle := (low + high) / 2)
        if abs(found.step - step) <= CLOSE * step:
            break
        low, high = (middle, high) if found.step < step else (low, middle)
    return found

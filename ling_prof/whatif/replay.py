"""Runs a dependency graph: when every op and call starts and ends if the host takes `pace` of its recorded time."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import NamedTuple

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


class Course(NamedTuple):
    """What neither edits nor a pace change of a graph, as lists."""

    kinds: list[int]
    indices: list[int]
    start: list[int]
    before: list[int]
    other: list[int]
    began: list[int]
    previous: list[int]
    tail: list[int]


def course(graph: Graph) -> Course:
    """Of a graph, and of all that edits make of it."""
    arrays = (graph.start, graph.before, graph.other, graph.began, graph.previous, graph.tail)
    return Course(*graph.events.T.tolist(), *(array.tolist() for array in arrays))


def replay(graph: Graph, pace: float = 1.0, stretch: float = 1.0, along: Course | None = None) -> Replay:
    """Times of ops and calls in the order of graph.events; `stretch` scales what the device does. along: the course of
    this graph, or of the one that it was edited from, where that is known."""
    start, end, called, returned = (np.array(times, np.int64) for times in _times(graph, pace, stretch, along))
    return Replay(start, end, called, returned, graph.walls(start, end), pace, stretch)


def step_of(graph: Graph, pace: float = 1.0, stretch: float = 1.0, along: Course | None = None) -> float:
    """`replay(...).step`, for whom that is enough."""
    start, end, *_ = _times(graph, pace, stretch, along)
    rounds = zip(graph.begins.tolist(), graph.ends.tolist(), strict=True)
    return float(median((start[last] if last >= 0 else max(end)) - start[first] for first, last in rounds))


def _times(graph: Graph, pace: float, stretch: float, along: Course | None) -> tuple[list[int], ...]:
    """start and end of every op, called and returned of every call, ns."""
    kinds, indices, given, before, other, began, previous, tail = along or course(graph)
    lead, cost, in_call = (scaled(array, pace) for array in (graph.lead, graph.cost, graph.in_call))
    duration, gap, other_gap = (scaled(array, stretch) for array in (graph.duration, graph.gap, graph.other_gap))
    launch, after, awaits = (array.tolist() for array in (graph.launch, graph.after, graph.awaits))
    head, fixed = scaled(graph.head, stretch), graph.fixed.tolist()
    start, end = [0] * len(given), [0] * len(given)
    called, returned = [0] * len(began), [0] * len(began)
    for kind, i in zip(kinds, indices, strict=True):
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
    return start, end, called, returned


def scaled(array: np.ndarray, factor: float) -> list[int]:
    """In whole ns."""
    return array.tolist() if factor == 1 else np.round(array * factor).astype(np.int64).tolist()


def calibrated(graph: Graph, step: float | None, along: Course | None = None, device: float = 1.0) -> Replay:
    """The replay whose median round takes `step` ns; as recorded without a step.

    The device takes up to `device` times as long as recorded, and the host what is left, or nothing; where that is too
    much already, the device takes less.
    """
    at = partial(replay, graph, along=along or course(graph))
    if step is None:
        return at()
    slowest, fastest = at(1.0, device), at(0.0, device)
    if step >= slowest.step:
        return slowest
    if step <= fastest.step:
        return _sought(lambda stretch: at(0.0, stretch), step, device)
    return _sought(lambda pace: at(pace, device), step)


def _sought(at: Callable[[float], Replay], step: float, high: float = 1.0) -> Replay:
    """By bisection of what grows with it, between 0 and `high`."""
    low = 0.0
    for _ in range(TRIES):
        found = at(middle := (low + high) / 2)
        if abs(found.step - step) <= CLOSE * step:
            break
        low, high = (middle, high) if found.step < step else (low, middle)
    return found

"""Arithmetic on sets of half-open intervals [start, end): int64 nanoseconds, vectorised.

A *union* is a pair of arrays (start, end), sorted, disjoint and not touching.
"""

import numpy as np

Union = tuple[np.ndarray, np.ndarray]
EMPTY: Union = (np.empty(0, np.int64), np.empty(0, np.int64))


def union(start: np.ndarray, end: np.ndarray) -> Union:
    """The union of intervals in any order."""
    if not len(start):
        return EMPTY
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    opens = np.r_[True, start[1:] > reach[:-1]]
    return start[opens], reach[np.r_[opens[1:], True]]


def distinct(values: np.ndarray) -> np.ndarray:
    """The sorted distinct values; numpy's own unique hashes integers, which is slower by far."""
    values = np.sort(values)
    return values[np.r_[True, values[1:] != values[:-1]]] if len(values) else values


def total(spans: Union) -> int:
    """Length of a union, ns."""
    return int((spans[1] - spans[0]).sum())


def covered(spans: Union, at: np.ndarray) -> np.ndarray:
    """For each time in `at`, how much of the union lies before it, ns."""
    start, end = spans
    if not len(start):
        return np.zeros(len(at), np.int64)
    before = np.r_[0, np.cumsum(end - start)]
    i = np.searchsorted(start, at, "right") - 1
    inside = np.clip(at - start[np.maximum(i, 0)], 0, (end - start)[np.maximum(i, 0)])
    return np.where(i < 0, 0, before[np.maximum(i, 0)] + inside)


def overlap(start: np.ndarray, end: np.ndarray, spans: Union) -> np.ndarray:
    """For each interval, the length of its part inside the union, ns."""
    return covered(spans, end) - covered(spans, start)


def cut(start: np.ndarray, end: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Splits disjoint sorted intervals at the times `at`: (start, end, index of the interval each came from)."""
    at = distinct(at)
    first, last = np.searchsorted(at, start, "right"), np.searchsorted(at, end, "left")
    parts = last - first + 1
    owner = np.repeat(np.arange(len(start)), parts)
    nth = np.arange(len(owner)) - np.repeat(np.cumsum(parts) - parts, parts)
    left = np.where(nth == 0, start[owner], at[np.minimum(first[owner] + nth - 1, len(at) - 1)] if len(at) else 0)
    right = np.where(
        nth == parts[owner] - 1, end[owner], at[np.minimum(first[owner] + nth, len(at) - 1)] if len(at) else 0
    )
    return left, right, owner


def contains(spans: Union, at: np.ndarray) -> np.ndarray:
    """For each time in `at`, whether the union holds it."""
    start, end = spans
    if not len(start):
        return np.zeros(len(at), bool)
    i = np.searchsorted(start, at, "right") - 1
    return (i >= 0) & (at < end[np.maximum(i, 0)])


def exclusive(start: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What each interval adds to those before it, in order of start: max(0, end - max(start, latest earlier end)).

    Takes intervals sorted by start; returns (start, end, owner) of the non-empty shares: disjoint, sorted, and
    together the union.
    """
    reach = np.r_[np.iinfo(np.int64).min, np.maximum.accumulate(end)[:-1]] if len(end) else end
    begin = np.maximum(start, reach)
    keep = np.flatnonzero(end > begin)
    return begin[keep], end[keep], keep


def lanes(start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """For each interval, in order of start, the first lane that is free when it starts: on none do two overlap."""
    out = np.zeros(len(start), np.int64)
    if (start[1:] >= np.maximum.accumulate(end)[:-1]).all():
        return out
    free: list[int] = []  # when each lane is
    for i, (begun, done) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        lane = next((lane for lane, until in enumerate(free) if until <= begun), len(free))
        free[lane:] = [done, *free[lane + 1 :]]
        out[i] = lane
    return out

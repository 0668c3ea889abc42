"""Interval arithmetic against sets of integers."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ling_prof import intervals as iv

spans = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)).map(lambda p: (p[0], p[0] + p[1])), max_size=12)


def arrays(pairs):
    return np.array([a for a, _ in pairs], np.int64), np.array([b for _, b in pairs], np.int64)


def points(pairs):
    return {t for a, b in pairs for t in range(a, b)}


@given(spans)
def test_union_covers_the_same_points(pairs):
    start, end = iv.union(*arrays(pairs))
    assert points(zip(start, end, strict=True)) == points(pairs)
    assert (start[1:] > end[:-1]).all()


@given(spans, st.lists(st.integers(-5, 80), max_size=8))
def test_covered_counts_points_before(pairs, times):
    union = iv.union(*arrays(pairs))
    expected = [len([p for p in points(pairs) if p < t]) for t in times]
    assert iv.covered(union, np.array(times, np.int64)).tolist() == expected


@given(spans)
def test_exclusive_shares_add_up_to_the_union(pairs):
    start, end = arrays(sorted(pairs))
    left, right, owner = iv.exclusive(start, end)
    assert (right - left).sum() == iv.total(iv.union(start, end))
    assert ((start[owner] <= left) & (right <= end[owner])).all()


@given(spans, st.lists(st.integers(0, 70), max_size=8))
def test_cut_keeps_every_point_and_splits_at_the_times(pairs, times):
    start, end = iv.union(*arrays([p for p in pairs if p[1] > p[0]]))
    left, right, owner = iv.cut(start, end, np.array(times, np.int64))
    assert points(zip(left, right, strict=True)) == points(pairs)
    assert (right > left).all()
    assert not any(a < t < b for a, b in zip(left, right, strict=True) for t in times)
    assert (start[owner] <= left).all()
    assert (right <= end[owner]).all()


@given(spans, st.lists(st.integers(-5, 80), max_size=8))
def test_contains(pairs, times):
    union = iv.union(*arrays(pairs))
    assert iv.contains(union, np.array(times, np.int64)).tolist() == [t in points(pairs) for t in times]

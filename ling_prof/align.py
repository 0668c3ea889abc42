"""Which entries of two sequences are the same: a longest common subsequence, exact and fast enough for 50,000 entries.

The rows of the dynamic programme are kept as bits of one integer and updated by one addition (Crochemore, Iliopoulos,
Pinzon and Reid, 2001; Hyyrö, 2004): repeated layers, which slow other aligners down, cost nothing more.
"""

from collections.abc import Hashable, Iterator, Sequence
from itertools import pairwise
from math import isqrt

Pairs = list[tuple[int, int]]


def align(a: Sequence[Sequence[Hashable]], b: Sequence[Sequence[Hashable]]) -> list[tuple[int, int, int]]:
    """(i, j, tier) for every entry of both sides, in order; i or j is -1, and tier too, where one stands alone.

    a, b: the keys of the entries once a tier, strictest first, all tiers of a side of one length. What a tier leaves
    unpaired between two pairs is aligned by the next one.
    """
    ends = (len(a[0]), len(b[0]))
    found: dict[tuple[int, int], int] = {}
    for tier, (left, right) in enumerate(zip(a, b, strict=True)):
        for i, j, until_i, until_j in _holes(sorted(found), ends):
            inside = common(left[i:until_i], right[j:until_j])
            found |= {(i + di, j + dj): tier for di, dj in inside}
    return list(_whole(found, ends))


def _holes(pairs: Pairs, ends: tuple[int, int]) -> Iterator[tuple[int, int, int, int]]:
    """(i, j, end of i, end of j) of what lies unpaired between pairs, where both sides have some."""
    for (i, j), (until_i, until_j) in pairwise([(-1, -1), *pairs, ends]):
        if until_i > i + 1 and until_j > j + 1:
            yield i + 1, j + 1, until_i, until_j


def _whole(found: dict[tuple[int, int], int], ends: tuple[int, int]) -> Iterator[tuple[int, int, int]]:
    at_i = at_j = 0
    for i, j in [*sorted(found), ends]:
        yield from ((lone, -1, -1) for lone in range(at_i, i))
        yield from ((-1, lone, -1) for lone in range(at_j, j))
        if (i, j) != ends:
            yield i, j, found[i, j]
        at_i, at_j = i + 1, j + 1


def common(a: Sequence[Hashable], b: Sequence[Hashable]) -> Pairs:
    """Positions (i, j), both increasing, of a longest common subsequence."""
    head = _equal(a, b)
    tail = _equal(a[head:][::-1], b[head:][::-1])
    middle = _longest(a[head : len(a) - tail], b[head : len(b) - tail])
    ends = ((len(a) - k, len(b) - k) for k in range(tail, 0, -1))
    return [*((k, k) for k in range(head)), *((head + i, head + j) for i, j in middle), *ends]


def _equal(a: Sequence[Hashable], b: Sequence[Hashable]) -> int:
    """How many first entries agree."""
    least = min(len(a), len(b))
    return next((k for k in range(least) if a[k] != b[k]), least)


def _longest(a: Sequence[Hashable], b: Sequence[Hashable]) -> Pairs:
    """Bit i of row j is clear where the longest of (a[: i + 1], b[:j]) is one longer than that of (a[:i], b[:j]).

    Every `stride`-th row is kept; those between are made again on the way back, so that memory stays small.
    """
    masks: dict[Hashable, int] = {}
    for i, key in enumerate(a):
        masks[key] = masks.get(key, 0) | 1 << i
    stride, row = isqrt(len(b)) + 1, (1 << len(a)) - 1
    kept = []
    for first in range(0, len(b), stride):
        kept.append(row)
        row = list(_rows(row, b[first : first + stride], masks, len(a)))[-1]
    i, pairs = len(a), []
    for number in reversed(range(len(kept))):
        first = number * stride
        rows = [kept[number], *_rows(kept[number], b[first : first + stride], masks, len(a))]
        i, found = _back(rows, i)
        pairs += [(at, first + j) for at, j in found]
    return pairs[::-1]


def _rows(row: int, keys: Sequence[Hashable], masks: dict[Hashable, int], width: int) -> Iterator[int]:
    full = (1 << width) - 1
    for key in keys:
        both = row & masks.get(key, 0)
        row = ((row + both) | (row - both)) & full
        yield row


def _back(rows: list[int], i: int) -> tuple[int, Pairs]:
    """From the end of the last row to the first: where i arrives, and the pairs met on the way, last first."""
    j, pairs = len(rows) - 1, []
    while i and j:
        if rows[j] >> (i - 1) & 1:
            i -= 1
        elif not rows[j - 1] >> (i - 1) & 1:
            j -= 1
        else:
            i, j = i - 1, j - 1
            pairs.append((i, j))
    return i, pairs

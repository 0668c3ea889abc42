"""Kineto's decimal microseconds, as text, to int64 nanoseconds: exact, vectorised, never through a float."""

from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np

from ling_prof.intervals import distinct

UNIT = 1000  # ns


def nanoseconds(texts: list[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Decimal microseconds as bytes or msgspec.Raw -> (int64 ns, whether each was a number); never through a float."""
    flat = np.frombuffer(b"\0".join(texts) + b"\0", np.uint8)
    end = np.flatnonzero(flat == 0)
    value, valid = np.zeros(len(texts), np.int64), np.zeros(len(texts), bool)
    if len(end) == len(texts):
        valid, shape = _plain(flat, end)
        for one in distinct(shape[valid]):
            rows = np.flatnonzero(valid & (shape == one))
            value[rows] = _digits(flat, end[rows], *divmod(int(one), 64))
    for odd in np.flatnonzero(~valid):
        value[odd], valid[odd] = _nanoseconds_slowly(bytes(texts[odd]))
    return value, valid


def _plain(flat: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which texts are digits with at most one point and three decimals, and 64 x whole digits + decimals of each."""
    length = np.diff(end, prepend=-1) - 1
    points = np.flatnonzero(flat == ord("."))
    of = np.searchsorted(end, points)
    decimals, many = np.zeros(len(end), np.int64), np.bincount(of, minlength=len(end))
    decimals[of] = end[of] - points - 1
    other = np.flatnonzero(((flat < ord("0")) | (flat > ord("9"))) & (flat != 0) & (flat != ord(".")))
    odd = np.bincount(np.searchsorted(end, other), minlength=len(end))
    whole = length - decimals - many
    return (odd == 0) & (many <= 1) & (decimals <= 3) & (whole > 0) & (whole <= 16), 64 * whole + decimals


def _digits(flat: np.ndarray, end: np.ndarray, whole: int, decimals: int) -> np.ndarray:
    """The texts that end at `end` and have that many digits before and after the point, x 1000."""
    value: np.ndarray = np.zeros(len(end), np.int64)
    start = end - whole - decimals - (decimals > 0)
    for i in [*range(whole), *range(whole + 1, whole + 1 + decimals)]:
        value *= 10
        value += flat[start + i] - ord("0")
    return value * 10 ** (3 - decimals)


def _nanoseconds_slowly(text: bytes) -> tuple[int, bool]:
    try:
        value = int((Decimal(text.strip(b'" ').decode()) * UNIT).to_integral_value())
    except (InvalidOperation, ValueError, OverflowError):
        return 0, False
    return (value, True) if abs(value) < 2**62 else (0, False)

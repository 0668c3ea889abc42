"""Times as people write them."""

import re

from ling_prof.errors import UserError

NS = {"ns": 1, "us": 1_000, "µs": 1_000, "ms": 1_000_000, "s": 1_000_000_000}


def parse_time(text: str, what: str) -> int:
    """'2.13ms' -> 2130000 ns. Raises UserError, naming `what`, for anything but a positive number with a unit."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*(ns|us|µs|ms|s)\s*", text)
    if not found or (value := round(float(found[1]) * NS[found[2]])) <= 0:
        raise UserError(f"{what} {text!r} is not a time above zero with a unit, such as 50us or 2.13ms.")
    return value


def show_time(ns: float) -> str:
    """ns -> '812 ns', '50.0 us', '2.130 ms' or '1.250 s'."""
    size = abs(ns)
    if size < 1_000:
        return f"{ns:.0f} ns"
    if size < 1_000_000:
        return f"{ns / 1_000:.1f} us"
    return f"{ns / 1_000_000:.3f} ms" if size < 1_000_000_000 else f"{ns / 1_000_000_000:.3f} s"

"""Times as people write them."""

import re

from ling_prof.errors import UserError

NS = {"ns": 1, "us": 1_000, "µs": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
SCALES = ((999.5, 1, "{:.0f}", "ns"), (999_950, 1e3, "{:.1f}", "us"), (999_999_500, 1e6, "{:.3f}", "ms"))


def parse_time(text: str, what: str) -> int:
    """'2.13ms' -> 2130000 ns. Raises UserError, naming `what`, for anything but a positive number with a unit."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*(ns|us|µs|ms|s)\s*", text)
    if not found or not 0 < (value := round(float(found[1]) * NS[found[2]])) < 2**53:
        raise UserError(f"{what} {text!r} is not a time above zero with a unit, such as 50us or 2.13ms.")
    return value


def parse_pair(text: str, what: str) -> tuple[str, str]:
    """'2.2ms,2.1ms' -> what holds for A, what for B. Raises UserError, naming `what`, for anything but two values."""
    parts = [part.strip() for part in text.split(",")]
    if len(parts) != 2 or not all(parts):
        raise UserError(f"{what} {text!r} is not one value for each recording, with a comma between them.")
    return parts[0], parts[1]


def one_line(text: str) -> str:
    """`text` with control characters, line breaks and terminal escapes written out."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def show_time(ns: float) -> str:
    """ns -> '812 ns', '50.0 us', '2.130 ms' or '1.250 s'."""
    for limit, size, shape, unit in SCALES:
        if abs(ns) < limit:
            return f"{shape.format(ns / size)} {unit}"
    return f"{ns / 1e9:.3f} s"

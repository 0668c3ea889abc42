"""What all figures share: colours, the frame, the scale of times, and how names from a trace become text."""

import re
from collections.abc import Iterable
from typing import Any

import numpy as np

from ling_prof.errors import UserError
from ling_prof.roles import LABELS, ROLES
from ling_prof.timeline import CLASSES
from ling_prof.units import one_line

try:
    import plotly.graph_objects as go
except ModuleNotFoundError:
    raise UserError("a figure needs plotly; pip install 'ling-prof[app]'.") from None

# Okabe and Ito's colours, and others found by search: told apart whatever the colour vision, on light and on dark.
CLASS_COLOURS = {
    "busy": "#009e73",
    "profiler": "#86a6bb",
    "graph_dependency": "#56b4e9",
    "dependency": "#0072b2",
    "stream_wait": "#a63ced",
    "sync_stall": "#d55e00",
    "host_bound": "#e69f00",
    "launch_call": "#975733",
    "launch_latency": "#d5b5ad",
    "rank_skew": "#a2ae62",
    "unknown": "#656477",
}
ROLE_COLOURS = {
    "moe_gemm": "#7737eb",
    "small_kernels": "#b7bba2",
    "all_reduce": "#e5ba31",
    "dense_gemm": "#4477cc",
    "kda": "#d73f3f",
    "mla": "#88ccee",
    "other": "#875d73",
}
CALL_COLOURS = {"call": "#8fa3b5", "blocking": "#d55e00", "function": "#b9aa94"}
COLOURS = {**CLASS_COLOURS, **ROLE_COLOURS, **CALL_COLOURS}
GREY = "#7d8590"
MEASURED, PREDICTED = "#0072b2", "#e69f00"
LOWER, HIGHER = "#009e73", "#d55e00"
if set(CLASS_COLOURS) != {*CLASSES} or set(ROLE_COLOURS) != {*ROLES}:
    raise ValueError("every ledger class and every role has one colour")

INK = {False: ("#1f2328", "#d8dde3", "#ffffff"), True: ("#e6e8eb", "#3a424d", "#161b22")}  # text, grid, paper
FONT = "system-ui, -apple-system, Segoe UI, Roboto, Helvetica, Arial, sans-serif"
SCALES = ((2e3, 1, "ns"), (2e6, 1e3, "us"), (2e9, 1e6, "ms"))
LONGEST = 160  # characters of a name in a figure
# With MathJax around, $ begins a formula.
MARKUP = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", "$": "&#36;"})


def text(name: object, most: int = LONGEST) -> str:
    """A name from a recording or a file as plotly shows it: itself, never markup. The only way in for names."""
    shown = one_line(str(name))
    shown = shown if len(shown) <= most else shown[: most - 3] + "..."
    return shown.translate(MARKUP)


def lines(*parts: str) -> str:
    """Parts that are figure text already, one under the other; empty ones left out."""
    return "<br>".join(part for part in parts if part)


def template(dark: bool) -> go.layout.Template:
    """The look of every figure: transparent, so that the page shows through."""
    ink, grid, paper = INK[dark]
    axis = {"gridcolor": grid, "linecolor": grid, "zerolinecolor": grid, "automargin": True, "ticklabelstandoff": 4}
    return go.layout.Template(
        layout={
            "font": {"family": FONT, "size": 13, "color": ink},
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "xaxis": axis,
            "yaxis": axis,
            "legend": {"orientation": "h", "yanchor": "bottom", "y": 1.01, "x": 0, "traceorder": "normal"},
            "hoverlabel": {"bgcolor": paper, "bordercolor": grid, "font": {"color": ink}, "align": "left"},
            "margin": {"l": 16, "r": 16, "t": 40, "b": 48},
            "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": ink, "activecolor": MEASURED},
        }
    )


def figure(traces: Iterable[Any], dark: bool, height: int, **layout: Any) -> go.Figure:
    """A figure in the common look; height in px, `layout` as plotly's own."""
    frame = {"template": template(dark), "height": height, "hovermode": "closest", "bargap": 0.25}
    frame |= {"margin": {"t": 12}} if layout.get("showlegend") is False else {}
    return go.Figure(list(traces), {**frame, **layout})


def nothing(said: str, dark: bool) -> go.Figure:
    """In place of a figure that has nothing to show: one sentence."""
    note = {"text": text(said), "showarrow": False, "xref": "paper", "yref": "paper", "x": 0.5, "y": 0.5}
    hidden = {"visible": False}
    return figure([], dark, 120, annotations=[note], xaxis=hidden, yaxis=hidden)


def scale(most_ns: float) -> tuple[float, str]:
    """(divisor, unit) for an axis of ns that reaches `most_ns`."""
    return next(((size, unit) for limit, size, unit in SCALES if most_ns < limit), (1e9, "s"))


def ends(value: Iterable[Any], low: Iterable[Any], high: Iterable[Any], colour: str | None = None) -> dict[str, Any]:
    """Error bars from `low` to `high` around `value`; None where there is none."""
    at, least, most = (np.array([np.nan if x is None else x for x in xs], float) for xs in (value, low, high))
    bars = {"type": "data", "symmetric": False, "array": most - at, "arrayminus": at - least}
    return {**bars, "thickness": 1.5, "width": 4} | ({"color": colour} if colour else {})


def rows_height(rows: int, each: int = 28, more: int = 80) -> int:
    """px of a figure with that many rows."""
    return max(170, each * rows + more)


def named(role: str) -> str:
    """A role as people say it, in few words."""
    return re.split(r" \(|, ", LABELS[role])[0]


def room(most: float) -> list[float]:
    """The range of an axis of bars that reach `most`, with room for what is written beside them."""
    return [0, 1.22 * most]


def rgb(colour: str) -> tuple[int, ...]:
    return tuple(int(colour[i : i + 2], 16) for i in (1, 3, 5))


def faint(colour: str) -> str:
    """Half of a colour."""
    return "rgba({}, {}, {}, 0.5)".format(*rgb(colour))


def on(colour: str) -> str:
    """Black or white, whichever is read better on a colour."""
    red, green, blue = rgb(colour)
    return "#000000" if 0.299 * red + 0.587 * green + 0.114 * blue > 140 else "#ffffff"

"""Figures of two recordings, and of benchmarks side by side."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ling_prof.render.figures.style import (
    GREY,
    HIGHER,
    LOWER,
    MEASURED,
    ends,
    figure,
    go,
    lines,
    nothing,
    rows_height,
    scale,
    text,
)
from ling_prof.units import show_time

CONDITIONS = {"model": "", "isl": " tokens in", "osl": " out"}
ROOM = 0.6  # of what changes, left below it


def diff_classes(diff: Mapping[str, Any], dark: bool = False) -> go.Figure:
    """From the step of A to that of B, class by class; the axis starts near what changes, and says so."""
    wall = diff["wall"]
    changed = [row for row in diff["classes"] if row["change_ns"]]
    values = [wall["a_ns"], *(row["change_ns"] for row in changed), wall["b_ns"]]
    size, unit = scale(max(wall["a_ns"], wall["b_ns"]))
    levels = np.cumsum([wall["a_ns"], *(row["change_ns"] for row in changed)])
    least, most = levels.min(), levels.max()
    start = max(0, least - ROOM * (most - least)) if most > least else 0
    names = ["A", *(row["name"] for row in changed), "B"]
    bars = go.Waterfall(
        x=names,
        y=np.array(values) / size,
        measure=["absolute", *["relative"] * len(changed), "total"],
        text=[show_time(values[0]), *(_signed(v) for v in values[1:-1]), show_time(values[-1])],
        textposition="outside",
        cliponaxis=False,
        increasing={"marker": {"color": HIGHER}},
        decreasing={"marker": {"color": LOWER}},
        totals={"marker": {"color": GREY}},
        connector={"line": {"color": GREY, "width": 1}},
        hovertext=[_side("A", diff["a"]), *map(_change, changed), _side("B", diff["b"])],
        hoverinfo="text",
    )
    title = f"{unit}, the axis starts at {show_time(start)}" if start else unit
    axes = {"yaxis": {"title": title, "range": [start / size, (most + 0.25 * (most - start)) / size]}}
    return figure([bars], dark, 420, xaxis={"type": "category"}, showlegend=False, **axes)


def _signed(ns: int) -> str:
    return f"{'+' if ns > 0 else ''}{show_time(ns)}"


def _side(name: str, side: Mapping[str, Any]) -> str:
    return lines(f"{name}: {show_time(side['step']['wall_ns'])}", text(side["path"]))


def _change(row: Mapping[str, Any]) -> str:
    return lines(row["name"], f"{show_time(row['a_ns'])} to {show_time(row['b_ns'])}", _signed(row["change_ns"]))


def bench(benches: Mapping[str, Mapping[str, Any]], dark: bool = False) -> go.Figure:
    """The time of a token in each of these benchmarks, ms: mean, least and largest over the runs."""
    if not benches:
        return nothing("No benchmark to show.", dark)
    times = [found["summary"]["tpot_ms"] for found in benches.values()]
    mean = [time["mean"] for time in times]
    names = [text(name) for name in benches]
    said = [f"{t['mean']:.3f} ms, {t['low']:.3f} to {t['high']:.3f}" for t in times]
    bars = go.Bar(
        x=mean,
        y=list(range(len(names))),
        orientation="h",
        marker_color=MEASURED,
        error_x=ends(mean, [time["low"] for time in times], [time["high"] for time in times], GREY),
        hovertext=[lines(n, s, _conditions(b)) for n, s, b in zip(names, said, benches.values(), strict=True)],
        hoverinfo="text",
    )
    rows = {"tickvals": list(range(len(names))), "ticktext": names, "autorange": "reversed"}
    axes = {"xaxis": {"title": "ms a token, mean of the runs and their ends"}, "yaxis": rows}
    return figure([bars], dark, rows_height(len(names), 36), showlegend=False, **axes)


def _conditions(found: Mapping[str, Any]) -> str:
    lock = found["lock"]
    known = (f"{lock[key]}{what}" for key, what in CONDITIONS.items() if lock[key] is not None)
    return lines(text(", ".join(known)), text(f"passes: {', '.join(lock['passes']) or 'none'}"))

"""Figures over time: one step on lanes, and how far the host runs ahead."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from ling_prof.render.figures.style import COLOURS, MEASURED, figure, go, lines, named, nothing, on, scale, text
from ling_prof.roles import ROLES
from ling_prof.units import show_time
from ling_prof.window import Window

THICK, LANE = 17, 24  # px: of a box, of a lane
ABOVE, BELOW, KEY = 28, 52, 20  # px: of the buttons, of the axis, of a row of the legend
LABELS = 150  # written on boxes
KEYS = 6  # entries in a row of the legend
WIDE, LETTER = 900, 6.5  # px a figure is usually wide, and a letter on a box
HOVERS = 150  # of the window: the farthest apart two points lie on which a long box can be pointed at


def timeline(window: Window, dark: bool = False) -> go.Figure:
    """A step on lanes: host threads above, then the streams, overlapping kernels on lanes of their own, then what the
    device's idle time went to. One trace a colour, drawn by WebGL; names and times where the pointer is."""
    if not len(window.boxes):
        return nothing("Nothing was recorded in this window.", dark)
    length = window.end - window.start
    size, unit = scale(length)
    traces = [*_boxes(window, size), _hovers(window, size)]
    lanes = [-i for i in range(len(window.lanes))]  # downwards: plotly.js 4.2 draws no line on a reversed axis right
    rows = {"tickvals": lanes, "ticktext": [text(lane, 40) for lane in window.lanes], "range": [0.4 - len(lanes), 0.6]}
    seen = [(window.start - window.origin) / size, (window.end - window.origin) / size]
    across = {"title": f"{unit} from the start of the step", "range": seen}
    fixed = {"fixedrange": True, "zeroline": False, "showgrid": False}
    below = BELOW + KEY * -(-window.boxes["group"].nunique() // KEYS)
    return figure(
        traces,
        dark,
        ABOVE + LANE * len(lanes) + below,
        annotations=_labels(window, size),
        xaxis=across,
        yaxis={**rows, **fixed},
        margin={"t": ABOVE, "b": below},
        legend={"yref": "container", "y": 0, "yanchor": "bottom", "itemwidth": 30, "font": {"size": 12}},
    )


def _boxes(window: Window, size: float) -> Iterator[go.Scattergl]:
    for group, boxes in window.boxes.groupby("group", sort=False):
        x = np.full((len(boxes), 3), np.nan)
        x[:, 0], x[:, 1] = boxes["start"] - window.origin, boxes["end"] - window.origin
        y = np.repeat(-boxes["lane"].to_numpy(float), 3)
        yield go.Scattergl(
            x=x.ravel() / size,
            y=y,
            mode="lines",
            line={"width": THICK, "color": COLOURS[group]},
            name=named(group) if group in ROLES else "blocking call" if group == "blocking" else group,
            hoverinfo="skip",
        )


def _labels(window: Window, size: float) -> list[dict[str, Any]]:
    """What boxes are called, written on those wide enough for it."""
    length = window.boxes["end"] - window.boxes["start"]
    boxes = window.boxes.assign(letters=length / (window.end - window.start) * WIDE / LETTER)
    wide = boxes[(boxes["label"].str.len() < boxes["letters"]) & (boxes["count"] == 1)]
    return [
        {
            "x": ((box.start + box.end) / 2 - window.origin) / size,
            "y": -box.lane,
            "text": text(box.label),
            "font": {"size": 11, "color": on(COLOURS[box.group])},
            "showarrow": False,
        }
        for box in wide.nlargest(LABELS, "letters").itertuples()
    ]


def _hovers(window: Window, size: float) -> go.Scattergl:
    """Invisible points on which boxes are pointed at: the middle of each, more along long ones."""
    boxes = window.boxes
    start, end = boxes["start"].to_numpy(), boxes["end"].to_numpy()
    count = 1 + (end - start) * HOVERS // max(1, window.end - window.start)
    of = np.repeat(np.arange(len(boxes)), count)
    nth = np.arange(len(of)) - np.repeat(np.cumsum(count) - count, count)
    at = start[of] + (end - start)[of] * (nth + 0.5) / count[of]
    said = np.array([_said(box) for box in boxes.itertuples()], object)
    return go.Scattergl(
        x=(at - window.origin) / size,
        y=-boxes["lane"].to_numpy()[of],
        mode="markers",
        marker={"size": THICK, "opacity": 0},
        text=said[of],
        hovertemplate="%{text}<extra></extra>",
        showlegend=False,
    )


def _said(box: Any) -> str:
    many = f"{box.count:,} close together, {show_time(box.total)} in all, the longest:" if box.count > 1 else ""
    when = f"{show_time(box.end - box.start)} ({box.group})"
    return lines(many, text(box.label), when, *(text(line) for line in box.detail.split("\n") if line))


def run_ahead(frame: pd.DataFrame, dark: bool = False) -> go.Figure:
    """How far each launch led its op, over the recording: near zero the device waits for the host. `frame` as from
    analyses.launches.series, thinned by window.thinned."""
    if not len(frame):
        return nothing("No launch in this recording is linked to its op.", dark)
    size, unit = scale(int(frame["ahead_ns"].max()))
    across, below = scale(int(frame["called"].max()))
    graph = np.where(frame["is_graph"], ", a CUDA graph", "")
    line = go.Scattergl(
        x=frame["called"] / across,
        y=frame["ahead_ns"] / size,
        mode="lines+markers",
        line={"width": 1, "color": MEASURED},
        marker={"size": 4, "color": MEASURED},
        text=[
            f"{show_time(a)} ahead, {q} queued{g}"
            for a, q, g in zip(frame["ahead_ns"], frame["queued"], graph, strict=True)
        ],
        hovertemplate="%{text}<extra></extra>",
    )
    axes = {
        "xaxis": {"title": f"{below} from the start of the recording"},
        "yaxis": {"title": f"{unit} ahead", "rangemode": "tozero"},
    }
    return figure([line], dark, 320, showlegend=False, **axes)

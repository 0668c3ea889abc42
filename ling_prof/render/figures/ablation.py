"""Figures of an ablation: what each optimization gave, beside what was predicted of it."""

from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Any

import numpy as np

from ling_prof.render.figures.style import (
    GREY,
    INK,
    MEASURED,
    PREDICTED,
    ends,
    figure,
    go,
    lines,
    nothing,
    rows_height,
    text,
)

NO_GAIN = "No pass of this ablation has a measured gain."


def shapley(ablation: Mapping[str, Any], dark: bool = False) -> go.Figure:
    """What each pass saves of a token's time, us, with its 95 % interval; the prediction and its band beside."""
    rows = _measured(ablation)
    if not rows:
        return nothing(NO_GAIN, dark)
    said = [
        lines(
            text(r["pass"]),
            f"{r['gain_us']:.1f} us, {_share(r['gain_pct'])}by {r['method']}",
            text(r["gate"]),
            text(r["took_effect"]),
        )
        for r in rows
    ]
    names, gain = [text(row["pass"]) for row in rows], [row["gain_us"] for row in rows]
    bars = go.Bar(
        x=gain,
        y=names,
        orientation="h",
        name="measured, 95 % interval",
        marker_color=MEASURED,
        error_x=ends(gain, [r["low"] for r in rows], [r["high"] for r in rows], INK[dark][0]),
        hovertext=said,
        hoverinfo="text",
    )
    axes = {"xaxis": {"title": "us saved of a token's time"}, "yaxis": {"type": "category", "autorange": "reversed"}}
    traces = [bars, *_predictions(rows, names)]
    return figure(traces, dark, rows_height(len(rows), 34), barmode="group", scattermode="group", **axes)


def _share(percent: float | None) -> str:
    return "" if percent is None else f"{percent:.2f} % of the baseline, "


def _predictions(rows: list[Mapping[str, Any]], names: list[str]) -> Iterator[go.Bar]:
    known = [(name, row) for name, row in zip(names, rows, strict=True) if row["predicted_us"] is not None]
    if not known:
        return
    value, low, high = ([row[key] for _, row in known] for key in ("predicted_us", "predicted_low", "predicted_high"))
    said = [f"predicted {v:.1f} us, {a:.1f} to {b:.1f}" for v, a, b in zip(value, low, high, strict=True)]
    yield go.Bar(
        x=value,
        y=[name for name, _ in known],
        orientation="h",
        name="predicted, with its band",
        marker_color=PREDICTED,
        error_x=ends(value, low, high, GREY),
        hovertext=[lines(name, s) for (name, _), s in zip(known, said, strict=True)],
        hoverinfo="text",
    )


def interactions(ablation: Mapping[str, Any], dark: bool = False) -> go.Figure:
    """What two passes save together beyond apart, us; below zero: they save the same time."""
    pairs = [row for row in ablation["interactions"] if row["us"] is not None]
    if not pairs:
        return nothing("This ablation did not measure how passes interact: a factorial design does.", dark)
    names = list(dict.fromkeys(name for row in pairs for name in (row["a"], row["b"])))
    at = {name: i for i, name in enumerate(names)}
    table = np.full((len(names), len(names)), np.nan)
    said = np.full(table.shape, "", object)
    for row in pairs:
        for i, j in ((at[row["a"]], at[row["b"]]), (at[row["b"]], at[row["a"]])):
            table[i, j] = row["us"]
            both = text(f"{names[i]} with {names[j]}")
            said[i, j] = lines(both, f"{row['us']:+.1f} us, {row['low']:+.1f} to {row['high']:+.1f}")
    heat = go.Heatmap(
        z=table,
        text=np.where(np.isnan(table), "", np.char.mod("%+.0f", np.nan_to_num(table).round() + 0.0)),
        texttemplate="%{text}",
        hovertext=said,
        hoverinfo="text",
        colorscale=[[0, HEAT[0]], [0.5, INK[dark][2]], [1, HEAT[1]]],
        zmid=0,
        hoverongaps=False,
        colorbar={"title": {"text": "us"}, "thickness": 12},
    )
    ticks = {
        "tickvals": list(range(len(names))),
        "ticktext": [text(name) for name in names],
        "showgrid": False,
        "zeroline": False,
    }
    axes = {"xaxis": ticks, "yaxis": {**ticks, "autorange": "reversed"}}
    return figure([heat], dark, rows_height(len(names), 46, 160), **axes)


HEAT = ("#d55e00", "#0072b2")  # less together, more together


def ladder(ablation: Mapping[str, Any], dark: bool = False) -> go.Figure:
    """The time of a token as one rung after the other joins, ms, with its 95 % interval; the prediction beside, where
    the predicted gains up to a rung are those of the rungs."""
    rungs = [rung for rung in ablation["ladder"] if rung["tpot_ms"] is not None]
    if not rungs:
        return nothing("This ablation has no ladder.", dark)
    names, tpot = [text(rung["added"] or "baseline") for rung in rungs], [rung["tpot_ms"] for rung in rungs]
    at = list(range(len(rungs)))
    said = [f"{v:.3f} ms, {r['low']:.3f} to {r['high']:.3f}" for v, r in zip(tpot, rungs, strict=True)]
    measured = go.Scatter(
        x=at,
        y=tpot,
        mode="lines+markers",
        name="measured, 95 % interval",
        marker={"color": MEASURED, "size": 9},
        error_y=ends(tpot, [r["low"] for r in rungs], [r["high"] for r in rungs]),
        hovertext=[lines(name, s) for name, s in zip(names, said, strict=True)],
        hoverinfo="text",
    )
    predicted = dict(_rungs_predicted(ablation))
    known = [i for i in at if rungs[i]["added"] in predicted]
    marks = go.Scatter(
        x=known,
        y=[predicted[rungs[i]["added"]] for i in known],
        mode="markers",
        name="predicted",
        marker={"color": PREDICTED, "size": 11, "symbol": "diamond-open", "line": {"width": 2}},
        hovertext=[lines(names[i], f"predicted {predicted[rungs[i]['added']]:.3f} ms") for i in known],
        hoverinfo="text",
    )
    axes = {
        "xaxis": {"tickvals": at, "ticktext": names, "tickangle": -40},
        "yaxis": {"title": "ms a token", "rangemode": "tozero"},
    }
    return figure([measured, *([marks] if known else [])], dark, 460, **axes)


def _rungs_predicted(ablation: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """(rung, ms) where the predicted gains so far add up to its time: after a rung of the ladder, and once all of the
    passes whose gains were shared among them are on."""
    rows, at = ablation["attribution"], ablation["baseline"]["tpot_ms"]
    for row, after in zip_longest(rows, rows[1:]):
        if row["method"] == "leave-one-out" or row["predicted_us"] is None:
            return
        at -= row["predicted_us"] / 1e3
        if row["method"] == "ladder" or after is None or after["method"] != row["method"]:
            yield row["pass"], at


def predicted_measured(ablation: Mapping[str, Any], dark: bool = False) -> go.Figure:
    """Each pass by what it gave and what was predicted, us, with both bands; on the diagonal they agree."""
    rows = [row for row in _measured(ablation) if row["predicted_us"] is not None]
    if not rows:
        return nothing(
            "Nothing is predicted in this ablation: ling-prof score --update writes predictions into it.", dark
        )
    x, y = ([row[key] for row in rows] for key in ("gain_us", "predicted_us"))
    low, high = min(0.0, *x, *y), max(*x, *y)
    diagonal = go.Scatter(
        x=[low, high],
        y=[low, high],
        mode="lines",
        line={"dash": "dot", "color": GREY},
        name="as predicted",
        hoverinfo="skip",
    )
    dots = go.Scatter(
        x=x,
        y=y,
        mode="markers+text",
        name="a pass, with both bands",
        marker={"color": MEASURED, "size": 9},
        error_x=ends(x, [r["low"] for r in rows], [r["high"] for r in rows], MEASURED),
        error_y=ends(y, [r["predicted_low"] for r in rows], [r["predicted_high"] for r in rows], PREDICTED),
        text=[text(row["pass"]) if max(x[i], y[i]) > high / 5 else "" for i, row in enumerate(rows)],
        textposition=["bottom left" if gain > high / 2 else "bottom right" for gain in x],
        hovertext=[
            lines(text(r["pass"]), f"measured {r['gain_us']:.1f} us, predicted {r['predicted_us']:.1f} us")
            for r in rows
        ],
        hoverinfo="text",
    )
    axes = {"xaxis": {"title": "us measured"}, "yaxis": {"title": "us predicted"}}
    return figure([diagonal, dots], dark, 480, **axes)


def _measured(ablation: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [row for row in ablation["attribution"] if row["gain_us"] is not None]

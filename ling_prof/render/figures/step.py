"""Figures of a step: where its time goes, and what would save some of it."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ling_prof.render.figures.style import (
    CLASS_COLOURS,
    GREY,
    MEASURED,
    ROLE_COLOURS,
    ends,
    faint,
    figure,
    go,
    lines,
    named,
    nothing,
    room,
    rows_height,
    scale,
    text,
)
from ling_prof.roles import ROLES
from ling_prof.timeline import CLASSES
from ling_prof.units import show_time

CUT = 1.3  # of the longest step that counts: bars beyond are cut, and say how long they are
FEW = 10  # bars
MOST_STEPS = 400  # bars; more steps are drawn as the means of neighbours
SITES = 6
NO_STEP = "No step counts in this recording: there is no mean step to show."


def ledger_steps(report: Mapping[str, Any], device: int | None = None, dark: bool = False) -> go.Figure:
    """Stacked bars, one a step of any phase, by ledger class; of many steps one for several neighbours, their mean."""
    device = _device(report, device)
    steps = [step for step in report["steps"] if step["device"] == device]
    if not steps:
        return nothing("This recording has no step.", dark)
    each = -(-len(steps) // MOST_STEPS)
    groups = [steps[i : i + each] for i in range(0, len(steps), each)]
    table = np.array([[np.mean([s["ledger"][c] for s in group]) for c in CLASSES] for group in groups])
    size, unit = scale(table.sum(1).max())
    where = np.array([group[0]["index"] + (len(group) - 1) / 2 for group in groups])
    heads = [_step_head(group) for group in groups]
    bars = [_step_bars(c, where, table[:, i], heads, size) for i, c in enumerate(CLASSES) if table[:, i].any()]
    title = "step" if each == 1 else f"step (each bar the mean of {each})"
    across = {"title": title, "dtick": 1} if len(groups) <= 30 else {"title": title}
    limit = CUT * max((step["wall_ns"] for step in steps if not step["note"] and step["round"] >= 0), default=0)
    if not 0 < limit < table.sum(1).max():
        return figure(bars, dark, 380, barmode="stack", xaxis=across, yaxis={"title": unit})
    up: dict[str, Any] = {"title": unit, "range": [0, limit / size]}
    notes = _cut_bars(where, table.sum(1), limit)
    return figure(bars, dark, 380, barmode="stack", xaxis=across, yaxis=up, annotations=notes)


def _cut_bars(where: np.ndarray, walls: np.ndarray, end: float) -> list[dict[str, Any]]:
    """What is written at the top of bars that reach out of the figure, of up to FEW."""
    note = {"showarrow": False, "yref": "paper", "yanchor": "top", "y": 1, "bgcolor": GREY}
    note |= {"font": {"color": "#ffffff", "size": 11}, "textangle": 0 if len(where) < FEW else -90}
    cut = [(x, wall) for x, wall in zip(where, walls, strict=True) if wall > end]
    return [{**note, "x": x, "text": f"{show_time(wall)} \u2191"} for x, wall in cut] if len(cut) <= FEW else []


def _step_bars(name: str, where: np.ndarray, ns: np.ndarray, heads: list[str], size: float) -> go.Bar:
    said = [lines(head, f"{name}: {show_time(x)}") for head, x in zip(heads, ns, strict=True)]
    return go.Bar(x=where, y=ns / size, name=name, marker_color=CLASS_COLOURS[name], hovertext=said, hoverinfo="text")


def _step_head(group: Sequence[Mapping[str, Any]]) -> str:
    first, wall = group[0], show_time(np.mean([step["wall_ns"] for step in group]))
    if len(group) == 1:
        note = f"left out of means: {first['note']}" if first["note"] else ""
        return lines(f"step {first['index']}, {wall}", text(f"{first['phase']} {first['name']}"), text(note))
    out = sum(bool(step["note"]) for step in group)
    note = f"{out} of {len(group)} left out of means" if out else ""
    phases = ", ".join(dict.fromkeys(step["phase"] for step in group))
    return lines(f"steps {first['index']} to {group[-1]['index']}, mean {wall}", text(phases), note)


def ledger_waterfall(report: Mapping[str, Any], device: int | None = None, dark: bool = False) -> go.Figure:
    """The mean step, class by class up to its wall time; beside it the step without a profiler, if known."""
    summary = _summary(report, device)
    if not summary["rounds"]:
        return nothing(NO_STEP, dark)
    sides = {"recorded": {c: summary["ledger"][c]["mean"] for c in CLASSES}}
    if "calibrated" in summary:
        sides["unprofiled"] = {c: summary["calibrated"][c]["mean"] for c in CLASSES}
    shown = [c for c in CLASSES if any(side[c] for side in sides.values())]
    most = max(sum(side.values()) for side in sides.values())
    size, unit = scale(most)
    bars = [_waterfall_bars(name, side, shown, size) for name, side in sides.items()]
    rows = [*shown, "wall"]
    axes = {
        "xaxis": {"title": f"{unit} of the mean step", "range": room(most / size)},
        "yaxis": {"type": "category", "autorange": "reversed"},
    }
    height = rows_height(len(rows), 24 + 14 * len(sides))
    return figure(bars, dark, height, barmode="group", showlegend=len(sides) > 1, **axes)


def _waterfall_bars(name: str, side: Mapping[str, int], shown: list[str], size: float) -> go.Bar:
    ns = np.array([side[c] for c in shown])
    total = int(ns.sum())
    values, base = np.r_[ns, total], np.r_[0, np.cumsum(ns)[:-1], 0]
    percent = [f"{100 * x / total:.1f} %" if total else "" for x in values]
    colours = [*(CLASS_COLOURS[c] for c in shown), GREY]
    return go.Bar(
        x=values / size,
        base=base / size,
        y=[*shown, "wall"],
        name=name,
        orientation="h",
        marker_color=[faint(colour) for colour in colours] if name == "unprofiled" else colours,
        text=[f"{show_time(x)}  {p}" for x, p in zip(values, percent, strict=True)],
        textposition="outside",
        cliponaxis=False,
        hovertext=[f"{c}, {name}: {show_time(x)}" for c, x in zip([*shown, "wall"], values, strict=True)],
        hoverinfo="text",
    )


def roles(report: Mapping[str, Any], device: int | None = None, dark: bool = False) -> go.Figure:
    """The busy time of the mean step by role, largest first."""
    summary = _summary(report, device)
    if not summary["rounds"]:
        return nothing(NO_STEP, dark)
    means = {role: summary["roles"][role]["mean"] for role in ROLES}
    shown = sorted((role for role in ROLES if means[role]), key=lambda role: -means[role])
    ns, busy = np.array([means[role] for role in shown]), summary["ledger"]["busy"]["mean"]
    size, unit = scale(ns.max(initial=0))
    bars = go.Bar(
        x=ns / size,
        y=[named(role) for role in shown],
        orientation="h",
        marker_color=[ROLE_COLOURS[role] for role in shown],
        text=[f"{show_time(x)}  {100 * x / busy:.1f} %" for x in ns],
        textposition="outside",
        cliponaxis=False,
        hoverinfo="skip",
    )
    across = {"title": f"{unit} busy in the mean step", "range": room(ns.max(initial=1) / size)}
    axes = {"xaxis": across, "yaxis": {"type": "category", "autorange": "reversed"}}
    return figure([bars], dark, rows_height(len(shown)), showlegend=False, **axes)


def savings(rows: Sequence[Mapping[str, Any]], dark: bool = False) -> go.Figure:
    """What each edit would save of a step, alone, with the ends of its band: rows {edits, saved_ns, low_ns, high_ns,
    sites} as in a report's helps or `whatif --list`."""
    if not rows:
        return nothing("No optimization is predicted to save time in this recording.", dark)
    size, unit = scale(max(abs(row["high_ns"]) for row in rows))
    saved, low, high = (np.array([row[key] for row in rows]) / size for key in ("saved_ns", "low_ns", "high_ns"))
    bars = go.Bar(
        x=saved,
        y=[text(", ".join(row["edits"])) for row in rows],
        orientation="h",
        marker_color=MEASURED,
        error_x=ends(saved, low, high, GREY),
        hovertext=[_saving(row) for row in rows],
        hoverinfo="text",
    )
    axes = {"xaxis": {"title": f"{unit} a step, each alone"}, "yaxis": {"type": "category", "autorange": "reversed"}}
    return figure([bars], dark, rows_height(len(rows)), showlegend=False, **axes)


def _saving(row: Mapping[str, Any]) -> str:
    saved, low, high = (show_time(row[key]) for key in ("saved_ns", "low_ns", "high_ns"))
    sites = [text(f"{site['site']} x{site['count']:g}", 100) for site in row["sites"][:SITES]]
    return lines(text(", ".join(row["edits"])), f"saves {saved}, {low} to {high}", *sites)


def _device(report: Mapping[str, Any], device: int | None) -> int:
    """The device asked for, or the busiest."""
    return report["summary"][0]["device"] if device is None else device


def _summary(report: Mapping[str, Any], device: int | None) -> Mapping[str, Any]:
    device = _device(report, device)
    return next(summary for summary in report["summary"] if summary["device"] == device)

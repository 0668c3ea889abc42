"""Where the time of a step goes: the ledger, one step on lanes, and how far the host runs ahead."""

from math import inf
from typing import Any

import pandas as pd
import streamlit as st

from ling_prof.render import figures
from ling_prof.render.app import store
from ling_prof.render.app.frame import careful, draw, kept, plain, table
from ling_prof.render.app.store import Chosen
from ling_prof.render.tables import FIXES, device_lines
from ling_prof.timeline import CLASSES
from ling_prof.units import show_time

TITLE = "Step"
US = 1e3  # ns
LEAST = 0.1  # us, of a window
MOVES = {"Zoom in": (0.25, 0.75), "Zoom out": (-0.5, 1.5), "Earlier": (-0.5, 0.5), "Later": (0.5, 1.5)}
MOVES |= {"Whole step": (-inf, inf)}
FROM, TO = "window from", "window to"  # us from the start of the step


def show(chosen: Chosen) -> None:
    report = store.report(chosen.source, chosen.options)
    summary = next(one for one in report["summary"] if one["device"] == chosen.device)
    st.title("Where the time of a step goes")
    heading(chosen)
    for line in device_lines(summary):
        st.markdown(plain(line))
    if not summary["rounds"]:
        st.info(f"No {summary['focus']} step counts here, so there is no mean step. Tables says why, and what helps.")
    else:
        _numbers(summary)
        st.subheader("Ledger of the mean step")
        draw(figures.ledger_waterfall, report.data, chosen.device, key="waterfall")
        with st.expander("As a table, with what helps"):
            table(ledger(summary), "ledger")
    st.subheader("Ledger of each step")
    draw(figures.ledger_steps, report.data, chosen.device, key="steps figure")
    _timeline(chosen)
    _run_ahead(chosen)


def heading(chosen: Chosen) -> None:
    """Which recording is shown, and what reading it met."""
    trace = store.trace(chosen.source)
    rank = f", rank {trace.lock['rank']} of {trace.lock.get('world_size', '?')}" if "rank" in trace.lock else ""
    device = f"device {chosen.device}: {trace.device_name(chosen.device)}"
    st.caption(plain(f"{chosen.source.name}, a {trace.format} recording{rank}, {device}"))
    for note in trace.notes:
        st.caption(plain(f"Note: {note}"))


def _numbers(summary: dict[str, Any]) -> None:
    wall, busy = summary["wall_ns"]["mean"], summary["ledger"]["busy"]["mean"]
    numbers = {"Mean step": show_time(wall)}
    if "calibrated" in summary:
        numbers["Without a profiler"] = show_time(sum(row["mean"] for row in summary["calibrated"].values()))
    if summary["tpot_ns"] != summary["wall_ns"]:
        numbers["Per token"] = show_time(summary["tpot_ns"]["mean"])
    numbers |= {"Device busy": f"{100 * busy / wall:.1f} %", "Kernels a step": f"{summary['kernels']:.0f}"}
    for column, (label, value) in zip(st.columns(len(numbers)), numbers.items(), strict=True):
        column.metric(label, value)


def ledger(summary: dict[str, Any]) -> pd.DataFrame:
    """Mean, p50 and p99 of each class that takes time, us."""
    rows = []
    for name in CLASSES:
        spread = summary["ledger"][name]
        if spread["mean"] or spread["p99"]:
            times = {f"{key}, us": spread[key] / US for key in ("mean", "p50", "p99")}
            scaled = {"unprofiled, us": summary["calibrated"][name]["mean"] / US} if "calibrated" in summary else {}
            rows.append({"class": name, **times, **scaled, "what helps": FIXES[name]})
    return pd.DataFrame(rows)


@st.fragment
@careful
def _timeline(chosen: Chosen) -> None:
    st.subheader("One step on lanes")
    view = store.view(chosen)
    steps = view.steps.table
    usual = int(view.chosen.index[view.rounds == view.median_round][0]) if view.n_rounds else int(steps.index[0])
    place, whole = st.columns([1, 3], vertical_alignment="bottom")
    _once("step shown of", chosen, {"step shown": usual})
    within = {"min_value": 0, "max_value": len(steps) - 1, "step": 1}
    index = int(kept(place.number_input, "Step shown", "step shown", usual, **within))
    step = steps.loc[index]
    start, length = int(step["start"]), int(step["end"] - step["start"])
    note = f", left out of means: {step['note']}" if step["note"] else ""
    whole.markdown(plain(f"{step['phase']} {step['name']}, {show_time(length)}{note}"))
    begin, end = _window(length, (chosen, index, length))
    draw(figures.timeline, store.window(chosen, index, start + begin, start + end), key="timeline")


def _once(key: str, value: Any, state: dict[str, Any]) -> None:
    """Puts `state` into the session when `value` is another one than before."""
    if st.session_state.get(key) != value:
        st.session_state[key] = value
        st.session_state.update(state)


def _window(length: int, of: tuple[Any, ...]) -> tuple[int, int]:
    """Which part of a step of `length` is drawn, ns from its start."""
    most = length / US
    _once("window of", of, {FROM: 0.0, TO: most})
    begin, end, *buttons = st.columns([1.8, 1.8, *[1.15] * len(MOVES)], gap="xsmall", vertical_alignment="bottom")
    within = {"min_value": 0.0, "max_value": most, "step": most / 50, "format": "%.3f"}
    since = kept(begin.number_input, "From, us", FROM, 0.0, **within)
    until = kept(end.number_input, "To, us", TO, most, **within)
    for column, (label, share) in zip(buttons, MOVES.items(), strict=True):
        column.button(label, on_click=_move, args=(most, *share), width="stretch", key=label)
    return round(since * US), round(until * US)


def _move(most: float, low: float, high: float) -> None:
    """To the part between two shares of the window, inside the step."""
    state = st.session_state
    since, size = state[FROM], max(state[TO] - state[FROM], LEAST)
    wanted = min(most, (high - low) * size)
    state[FROM] = min(max(0.0, since + low * size), most - wanted)
    state[TO] = state[FROM] + wanted


@careful
def _run_ahead(chosen: Chosen) -> None:
    st.subheader("How far the host runs ahead")
    st.markdown("Near zero the device waits for the host; high up the host has time to spare.")
    draw(figures.run_ahead, store.run_ahead(chosen), key="run ahead")

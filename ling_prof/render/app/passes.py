"""Passes and other edits as switches: the step they would make, replayed together, and the measured one beside it."""

from typing import Any

import pandas as pd
import streamlit as st

from ling_prof.ablation_report import Ablation
from ling_prof.render import figures
from ling_prof.render.app import sidebar, store
from ling_prof.render.app.frame import KEPT, careful, draw, plain, table
from ling_prof.render.app.step import heading
from ling_prof.render.app.store import Chosen, Sites
from ling_prof.units import show_time
from ling_prof.whatif.predict import NOTHING, Outcome, asked_for, passes
from ling_prof.whatif.predict import chosen as edits_of

TITLE = "Passes"
MS = 1e6  # ns
ACROSS = 3
ALIKE = 0.05  # of the step: farther apart, the ablation is of another program or machine
SITES = 3  # of a pass, in its hint
OTHERS = "As ling-prof whatif takes them: -pdl, -lateness, wait=REGEX, drop=REGEX, zero=ROLE or ROLE=0.5; one a line."


def show(chosen: Chosen) -> None:
    st.title("What would help")
    heading(chosen)
    predictor = store.predictor(chosen)
    _switches(chosen)
    said = f"{predictor.basis} Unchanged, the replay is off by {predictor.replay_error:+.2f} %."
    st.caption(plain(said))
    for line in predictor.graph.cannot_say:
        st.caption(plain(f"{line}."))
    _alone(chosen)


@st.fragment
@careful
def _switches(chosen: Chosen) -> None:
    numbers, doubts = st.container(), st.container()
    asked = _asked(store.sites(chosen))
    edits = tuple(edits_of(asked))
    now = store.predictor(chosen).base[1].step
    columns = numbers.columns(4)
    columns[0].metric("Step now", show_time(round(now)))
    predicted, saved = columns[1].empty(), columns[2].empty()
    measured, doubt = _measured(chosen, edits, now)
    columns[3].metric("Measured step", measured or "–", help="Of the ablation's row with exactly these passes.")
    if doubt:
        doubts.caption(plain(doubt))
    _predicted(predicted, store.predicted(chosen, edits), now)
    outcome = store.outcome(chosen, edits)
    _predicted(predicted, outcome.predicted, now)
    saved.metric("Saved", show_time(outcome.saved), f"{_ns(outcome.low)} to {_ns(outcome.high)}", "off")
    _sites(outcome, bool(edits))


def _ns(time: float) -> str:
    return show_time(round(time))


def _predicted(place: Any, step: float, now: float) -> None:
    """As ling-prof whatif prints it; the whole nanoseconds below."""
    with place.container():
        st.metric("Predicted step", show_time(round(step)), f"{100 * (step / now - 1):+.1f} %", "inverse")
        st.caption(f"{round(step):,} ns")


def _asked(sites: dict[str, Sites]) -> list[str]:
    """The switches; only passes that find something here have one."""
    there, on = passes(), []
    st.subheader("Passes that find something here")
    if not sites:
        st.markdown("No pass finds anything to change in this recording.")
    columns = st.columns(ACROSS)
    for i, (name, where) in enumerate(sites.items()):
        removes = getattr(there[name], "removes", "")
        shown = ", ".join(f"{site} x{count:g}" for site, count in where[:SITES])
        hint = plain(f"removes {removes}; here a step: {shown}")
        if columns[i % ACROSS].toggle(name, key=f"{KEPT}pass {name}", help=hint):
            on.append(name)
    lines = st.text_area("Other edits", key=f"{KEPT}edits", help=OTHERS, placeholder="wait=item\n-pdl", height=80)
    return on + [edit for edit in asked_for(line for line in lines.splitlines() if line.strip()) if edit]


def _sites(outcome: Outcome, asked: bool) -> None:
    if not outcome.sites:
        st.markdown(plain(f"{NOTHING}." if asked else "Switch a pass on to see what a step would take with it."))
        return
    with st.expander("What these edits change"):
        rows = pd.DataFrame(outcome.sites[:200], columns=["site", "a step"])
        table(rows, "sites")


def _measured(chosen: Chosen, edits: tuple[str, ...], now: float) -> tuple[str, str]:
    """The measured step with exactly these passes, and why there is none, or what speaks against it."""
    source = sidebar.ablation()
    if source is None:
        return "", "No ablation report is loaded: no measurement to show beside the prediction."
    of = store.ablation(source)
    on = recorded_with(of, chosen.source.name)
    steps = {frozenset(row["passes"]): row["step_ms"] for row in of["rows"]}
    base, found = steps.get(on), steps.get(on | set(edits))
    if base is None or abs(base * MS - now) > ALIKE * now:
        took = "no such step" if base is None else f"a step of {show_time(base * MS)}"
        return "", f"{source.name} starts from {took}, this recording from {show_time(now)}: not the same program or machine."
    if found is None:
        return "", f"{source.name} has no time with exactly these passes."
    return show_time(found * MS), f"Measured: {source.name}, {100 * (found * MS / now - 1):+.1f} % of the step now."


def recorded_with(of: Ablation, name: str) -> frozenset[str]:
    """The passes that were on in a recording of that name, where it is one of the ladder's."""
    on: set[str] = set()
    for rung in of["ladder"]:
        on |= set(filter(None, rung["added"].split("+")))
        if rung["trace"] and name.split("/")[-1] == rung["trace"]:
            return frozenset(on)
    return frozenset()


def _alone(chosen: Chosen) -> None:
    report = store.report(chosen.source, chosen.options)
    if chosen.device != report["summary"][0]["device"]:
        return
    st.subheader("What each would save alone")
    st.markdown("From a few rounds in the middle. These do not add up: together they are replayed, above.")
    draw(figures.savings, report["helps"]["rows"], key="savings")

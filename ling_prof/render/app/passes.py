"""Passes and other edits as switches: the step they would make, replayed together, and the measured one beside it."""

from itertools import chain
from typing import Any

import pandas as pd
import streamlit as st

from ling_prof.ablation_report import Ablation
from ling_prof.bundled import every
from ling_prof.render import figures
from ling_prof.render.app import sidebar, store
from ling_prof.render.app.frame import careful, draw, kept, plain, said, table
from ling_prof.render.app.step import heading
from ling_prof.render.app.store import Chosen, Sites, Source
from ling_prof.units import show_time
from ling_prof.whatif.predict import NOTHING, Outcome, asked_for, passes
from ling_prof.whatif.predict import chosen as edits_of

TITLE = "Passes"
MS = 1e6  # ns
ACROSS = 3
ALIKE = 0.05  # of the step: farther apart, the ablation is of another program or machine
SITES, MOST = 3, 200  # of a pass, in its hint; of all edits, in a table
MEASURED = "The step in the row of the ablation with exactly these passes."
OTHERS = "As ling-prof whatif takes them: -pdl, -lateness, wait=REGEX, drop=REGEX, zero=ROLE or ROLE=0.5; one a line."


def show(chosen: Chosen) -> None:
    st.title("What would help")
    heading(chosen)
    predictor = store.predictor(chosen)
    _switches(chosen)
    st.caption(plain(f"{predictor.basis} Unchanged, the replay is off by {predictor.replay_error:+.2f} %."))
    for line in predictor.graph.cannot_say:
        st.caption(plain(f"{line}."))
    _alone(chosen)


@st.fragment
@careful
def _switches(chosen: Chosen) -> None:
    numbers = st.columns(4)
    edits = tuple(edits_of(_asked(store.sites(chosen))))
    now = store.predictor(chosen).base[1].step
    numbers[0].metric("Step now", _ns(now))
    places = numbers[1].empty(), numbers[2].empty()
    _number(places[0], "Predicted step", store.predicted(chosen, edits), "")
    with numbers[3], said():
        _measured(chosen, edits, now)
    if edits:
        _outcome(places, store.outcome(chosen, edits))
    else:
        _number(places[1], "Saved", 0, "")
        st.markdown("Switch a pass on to see what a step would take with it.")


def _outcome(places: tuple[Any, Any], found: Outcome) -> None:
    """The numbers again, with their bands."""
    band = f"{_ns(found.step - found.high)} to {_ns(found.step - found.low)}"
    _number(places[0], "Predicted step", found.predicted, f"{round(found.predicted):,} ns; {band}")
    share = f"{100 * found.saved / found.step:.1f} %; {_ns(found.low)} to {_ns(found.high)}"
    _number(places[1], "Saved", found.saved, share)
    if not found.sites:
        st.markdown(plain(f"{NOTHING}."))
        return
    with st.expander("What these edits change"):
        table(pd.DataFrame(found.sites[:MOST], columns=["site", "a step"]), "sites")


def _ns(time: float) -> str:
    return show_time(round(time))


def _number(place: Any, label: str, time: float, more: str) -> None:
    """A time as ling-prof whatif prints it."""
    with place.container():
        st.metric(label, _ns(time))
        st.caption(plain(more))


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
        if kept(columns[i % ACROSS].toggle, name, f"pass {name}", False, help=hint):
            on.append(name)
    lines = kept(st.text_area, "Other edits", "edits", "", help=OTHERS, placeholder="wait=item\n-pdl", height=80)
    return on + [edit for edit in asked_for(line for line in lines.splitlines() if line.strip()) if edit]


def _measured(chosen: Chosen, edits: tuple[str, ...], now: float) -> None:
    found, why = measured(chosen.source, edits, now)
    st.metric("Measured step", "-" if found is None else _ns(found), help=MEASURED)
    st.caption(plain(why))


def measured(recording: Source, edits: tuple[str, ...], now: float) -> tuple[float | None, str]:
    """The step, ns, that the ablation measured with exactly these passes; and against what, or why there is none."""
    source = sidebar.ablation()
    if source is None:
        return None, "no ablation report is chosen"
    of = store.ablation(source)
    on = recorded_with(of, recording)
    if on is None:
        return None, f"this recording is no rung of the ladder of {source.name}: its passes are not known"
    steps = {frozenset(row["passes"]): row["step_ms"] for row in of["rows"]}
    base, found = steps.get(on), steps.get(on | set(edits))
    if base is None or abs(base * MS - now) > ALIKE * now:
        took = "has no step to compare" if base is None else f"begins at {_ns(base * MS)}"
        return None, f"{source.name} {took}: another program or machine, or another unprofiled TPOT"
    if found is None:
        return None, f"{source.name} has no row with exactly these passes"
    return found * MS, f"in {source.name}" + (f"; {_against(found / base)} without them" if edits else "")


def _against(ratio: float) -> str:
    return f"{100 * abs(ratio - 1):.1f} % {'less' if ratio < 1 else 'more'} than"


def recorded_with(of: Ablation, recording: Source) -> frozenset[str] | None:
    """The passes that were on in a rung of the ladder, known by its content; None for any other recording."""
    rung = _rung(of, recording.digest)
    if rung is None:
        return None
    added = [row["added"].split("+") for row in of["ladder"][: rung + 1]]
    return frozenset(filter(None, chain(*added)))


def _rung(of: Ablation, digest: str) -> int | None:
    """Whose recording has these bytes; of an engine's report that does not say, by the name of a bundled one."""
    bundled = {row["sha256"]: file for file, row in every().items()}.get(digest) if of["target"] == "engine" else None
    for number, row in enumerate(of["ladder"]):
        said = row.get("trace_sha256")
        if said == digest or (not said and bundled == f"ladder/{row['trace']}"):
            return number
    return None


def _alone(chosen: Chosen) -> None:
    report = store.report(chosen.source, chosen.options)
    if chosen.device != report["summary"][0]["device"]:
        return
    st.subheader("What each would save alone")
    if not report["helps"]["rows"]:
        st.markdown(plain(report["helps"]["basis"]))
        return
    st.markdown("From a few rounds in the middle. These do not add up: together they are replayed, above.")
    draw(figures.savings, report["helps"]["rows"], key="savings")

"""Tables of a recording, with search; and what it cannot say."""

from collections.abc import Callable
from typing import NamedTuple

import pandas as pd
import streamlit as st

from ling_prof.analyses import run
from ling_prof.errors import Missing
from ling_prof.render import figures
from ling_prof.render.app import store
from ling_prof.render.app.frame import careful, draw, kept, plain, table, texts
from ling_prof.render.app.step import US, heading
from ling_prof.render.app.store import Chosen
from ling_prof.roles import LABELS

TITLE = "Tables"
ROWS = (20, 50, 200, 500)
Make = Callable[[pd.DataFrame, int], dict[str, pd.Series]]


class Table(NamedTuple):
    """title, the analysis it shows, and what it makes of its rows and the number of rounds; none: said without rows."""

    title: str
    analysis: str
    make: Make
    none: str


def _syncs(rows: pd.DataFrame, rounds: int) -> dict[str, pd.Series]:
    known = rows["site"].where(rows["site"] != "", rows["range"])
    return {
        "call": rows["api"],
        "site": known.where(known != "", "no stack recorded"),
        "idle caused a step, us": rows["focus_idle_ns"] / US / rounds,
        "blocked a step, us": rows["focus_blocked_ns"] / US / rounds,
        "calls a step": rows["focus_calls"] / rounds,
        "calls in all": rows["calls"],
        "waited for": rows["waited_for"].replace("", "nothing running"),
    }


def _seams(rows: pd.DataFrame, rounds: int) -> dict[str, pd.Series]:
    return {
        "idle a step, us": rows["idle_ns"] / US / rounds,
        "% of host_bound": 100 * rows["share"],
        "the host was in": rows["site"].replace("", "nothing recorded"),
    }


def _gaps(rows: pd.DataFrame, rounds: int) -> dict[str, pd.Series]:
    share = [classes[cause] / length for classes, cause, length in rows[["classes", "cause", "length"]].to_numpy()]
    return {
        "step": rows["step"],
        "gap, us": rows["length"] / US,
        "cause": rows["cause"],
        "its share, %": 100 * pd.Series(share, rows.index, dtype=float),
        "before": rows["before"],
        "after": rows["after"],
        "site": rows["site"],
    }


def _kernels(rows: pd.DataFrame, rounds: int) -> dict[str, pd.Series]:
    return {
        "busy a step, us": rows["exclusive_ns"] / US / rounds,
        "% of busy": 100 * rows["share"],
        "calls a step": rows["calls"] / rounds,
        "median, us": rows["median_ns"] / US,
        "role": rows["role"].map(LABELS),
        "kernel": rows["name"],
    }


def _layers(rows: pd.DataFrame, rounds: int) -> dict[str, pd.Series]:
    return {
        "busy a step, us": rows["exclusive_ns"] / US / rounds,
        "% of busy": 100 * rows["share"],
        "layers": rows["layers"],
        "role": rows["role"].map(LABELS),
        "layer": rows["layer"],
    }


def _copies(rows: pd.DataFrame, rounds: int) -> dict[str, pd.Series]:
    return {"a step": rows["per_step"], "time a step, us": rows["duration_ns"] / US / rounds, "what": rows["what"]}


TABLES = (
    Table("Blocking calls", "syncs", _syncs, "No call makes the host wait for the device."),
    Table("Host code that keeps the device waiting", "seams", _seams, "No idle time is the host's own."),
    Table("Largest gaps", "gaps", _gaps, "The device is never idle in these steps."),
    Table("Kernels by role", "kernels", _kernels, "No kernel runs in these steps."),
    Table("Busy time by layer", "layers", _layers, "No layer is known in these steps."),
    Table("Copies and casts", "copies", _copies, "Nothing is copied or cast in these steps."),
)


def show(chosen: Chosen) -> None:
    st.title("Tables")
    heading(chosen)
    report = store.report(chosen.source, chosen.options)
    words, rows = st.columns([4, 1])
    wanted = kept(words.text_input, "Search", "search", "", placeholder="Part of a name, a site, a role or a layer")
    most = kept(rows.selectbox, "Rows a table", "rows", ROWS[0], options=ROWS)
    for one in TABLES:
        st.subheader(one.title)
        _shown(chosen, one, wanted.strip(), most)
        if one.analysis == "kernels":
            draw(figures.roles, report.data, chosen.device, key="roles")
    _cannot_say(report["cannot_say"])


@careful
def _shown(chosen: Chosen, one: Table, wanted: str, most: int) -> None:
    view = store.view(chosen)
    try:
        found = run(one.analysis, view)
    except Missing as missing:
        raise Missing(missing.what, missing.why, missing.remedy) from None  # the heading names the file
    rows = pd.DataFrame(one.make(found, max(1, view.n_rounds))) if len(found) else found
    fits = rows[searched(rows, wanted)]
    if not len(found):
        st.markdown(one.none)
    elif not len(fits):
        st.markdown(plain(f"None of {len(rows):,} rows holds “{wanted}”."))
    else:
        st.caption(f"{min(most, len(fits)):,} of {len(fits):,} rows" + (f" that hold “{plain(wanted)}”" * bool(wanted)))
        table(fits.head(most), one.analysis)


def searched(rows: pd.DataFrame, wanted: str) -> pd.Series:
    """Which rows hold the words in one of their texts; in any case of letters."""
    held = pd.Series(not wanted, rows.index)
    for name in texts(rows) if wanted else ():
        held |= rows[name].astype(str).str.casefold().str.contains(wanted.casefold(), regex=False)
    return held


def _cannot_say(rows: list[dict[str, str]]) -> None:
    st.subheader("What this recording cannot say")
    if not rows:
        st.markdown("Nothing that was asked of it.")
    for row in rows:
        st.markdown(f"**{plain(row['question'])}**  \n{plain(row['reason'])}.  \nTo know: {plain(row['remedy'])}.")

"""The sidebar: which recording, how to look at it, and what was measured; on every page."""

from pathlib import Path
from typing import Any

import streamlit as st

from ling_prof import ablation_report
from ling_prof.bundled import every, folder, results
from ling_prof.ops import devices
from ling_prof.render.app import pick, store
from ling_prof.render.app.frame import UPLOAD, said
from ling_prof.render.app.store import Chosen, Source
from ling_prof.steps import FOCUS
from ling_prof.units import parse_time
from ling_prof.view import Options

TRACE, MEASURED = "trace", "ablation"
WAYS = {pick.HERE: "Recording", UPLOAD: "Upload a trace", pick.PATH: "Path of a trace"}
MEASUREMENTS = {pick.HERE: "Ablation report", UPLOAD: "Upload an ablation report"}
TIME = "Time per output token without a profiler, such as 2.13ms; empty: not known."
ACCEPT = "Tokens a step commits, with speculative decoding."
REGEX = "Take ranges whose name matches this regular expression as steps."


def recordings() -> dict[str, Path]:
    """The recordings that come along, by name."""
    return {name: folder() / name for name in every()}


def measured() -> dict[str, Path]:
    """The committed ablations, by name."""
    return {path.name: path for path in results() if store.schema(store.at(path)) == ablation_report.SCHEMA}


def ablation() -> Source | None:
    """The ablation report that is chosen."""
    return pick.picked(MEASURED, measured())


def choose(given: str = "") -> Chosen | None:
    """Draws the sidebar. given: a path to begin with. None, and a sentence on the page, where nothing can be shown."""
    demo = next((name for name, row in every().items() if row.get("demo")), "")
    pick.start(TRACE, here=demo, path=given)
    pick.start(MEASURED, here=next(iter(measured()), ""))
    with st.sidebar:
        pick.draw(WAYS, TRACE, recordings())
        source = pick.picked(TRACE, recordings(), st.session_state.get("partial", False))
        if source is not None:
            _reset(source)
        asked = _asked()
        where = st.container()
        pick.draw(MEASUREMENTS, MEASURED, measured())
    if source is None:
        st.info("Choose a recording, upload a trace or give the path of one, in the sidebar.")
        return None
    with said():
        return _chosen(source, asked, where)
    return None


def _reset(source: Source) -> None:
    """Another recording is looked at afresh, with the unprofiled step of those that come along."""
    state = st.session_state
    if state.get("options of") != source.digest:
        state["options of"] = source.digest
        state.update({"tpot": unprofiled(source), "accept": 1.0, "focus": "decode", "skip": 0, "steps": ""})


def unprofiled(source: Source) -> str:
    """The step without a profiler, as it is written, of a recording that comes along; else ''."""
    step = {row["sha256"]: row.get("unprofiled_step_ms") for row in every().values()}.get(source.digest)
    return f"{step}ms" if step else ""


def _asked() -> dict[str, Any]:
    """Widgets for the options of the command line."""
    asked: dict[str, Any] = {
        "unprofiled_tpot": st.text_input("Unprofiled TPOT", key="tpot", help=TIME).strip(),
        "accept_length": st.number_input("Accept length", 0.01, 1000.0, step=0.1, key="accept", help=ACCEPT),
    }
    with st.expander("More options"):
        asked["focus"] = st.radio("Focus", list(FOCUS), key="focus", horizontal=True)
        asked["skip"] = st.number_input("Skip decode steps", 0, step=1, key="skip")
        asked["steps"] = st.text_input("Steps by regular expression", key="steps", help=REGEX) or None
        st.checkbox("Accept a JSON file that was cut off", key="partial")
    return asked


def _chosen(source: Source, asked: dict[str, Any], where: Any) -> Chosen:
    tpot = asked["unprofiled_tpot"]
    asked = asked | {"unprofiled_tpot": parse_time(tpot, "Unprofiled TPOT") if tpot else None}
    options, trace = Options(**asked), store.trace(source)
    there = devices(trace)
    device = there[0]
    if len(there) > 1:
        said = {one: f"{one}: {trace.device_name(one)}" for one in there}
        device = where.selectbox("Device", there, format_func=said.__getitem__, key="device")
    return Chosen(source, options, device)

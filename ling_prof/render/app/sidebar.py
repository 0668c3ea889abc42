"""The sidebar: which recording, how to look at it, and what was measured; on every page."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import streamlit as st

from ling_prof import ablation_report
from ling_prof.bundled import every, folder, results
from ling_prof.marks import DECODE
from ling_prof.ops import devices
from ling_prof.render.app import pick, store
from ling_prof.render.app.frame import kept, said
from ling_prof.render.app.store import Chosen, Source
from ling_prof.steps import FOCUS
from ling_prof.units import parse_time
from ling_prof.view import Options

TRACE, MEASURED = "trace", "ablation"
WAYS = {pick.HERE: "Recording", pick.UPLOAD: "Upload a trace", pick.PATH: "Path of a trace"}
MEASUREMENTS = {pick.HERE: "Ablation report", pick.UPLOAD: "Upload an ablation report"}
TIME = "Time per output token without a profiler (--unprofiled-tpot), such as 2.13ms; empty: not known."
ACCEPT = "Tokens a step commits, with speculative decoding (--accept-length)."
REGEX = "Take ranges whose name matches as steps (--steps)."


def recordings() -> dict[str, Path]:
    """The recordings that come along, by name."""
    return {name: folder() / name for name in every()}


def measured() -> dict[str, Path]:
    """The committed ablations, by name."""
    return {path.name: path for path in results() if store.says(store.at(path), "schema") == ablation_report.SCHEMA}


def ablation() -> Source | None:
    """The ablation report that is chosen."""
    return pick.picked(MEASURED, measured())


def _of_engine() -> str:
    """The first committed ablation of the engine, of which the bundled ladder is; '' where there is none."""
    return next((name for name, path in measured().items() if store.says(store.at(path), "target") == "engine"), "")


def choose(given: str = "") -> Chosen | None:
    """Draws the sidebar. given: a path to begin with. None, and a sentence on the page, where nothing can be shown."""
    demo = next((name for name, row in every().items() if row.get("demo")), "")
    pick.start(TRACE, here=demo, path=given)
    pick.start(MEASURED, here=_of_engine())
    with st.sidebar:
        pick.draw(WAYS, TRACE, recordings())
        source = pick.picked(TRACE, recordings())
        asked, where = {} if source is None else _asked(source), st.container()
        pick.draw(MEASUREMENTS, MEASURED, measured())
    if source is None:
        st.info("Choose a recording, upload a trace or give the path of one, in the sidebar.")
        return None
    with said():
        source = replace(source, partial=asked.pop("partial"))
        return shown(source, options(asked), where)
    return None


def unprofiled(source: Source) -> str:
    """The step without a profiler, as it is written, of a recording that comes along; else ''."""
    step = {row["sha256"]: row.get("unprofiled_step_ms") for row in every().values()}.get(source.digest)
    return f"{step}ms" if step else ""


def ruler(source: Source, of: str = "") -> dict[str, Any]:
    """Widgets for what a recording does not show, with labels that end in `of`: options, the time as it is written."""
    tpot = kept(st.text_input, f"Unprofiled TPOT{of}", f"tpot{of} {source.digest}", unprofiled(source), help=TIME)
    within = {"min_value": 0.01, "max_value": 1000.0, "step": 0.1}
    length = kept(st.number_input, f"Accept length{of}", f"accept{of} {source.digest}", 1.0, help=ACCEPT, **within)
    return {"unprofiled_tpot": tpot.strip(), "accept_length": length}


def options(asked: dict[str, Any]) -> Options:
    """Raises UserError for what is no time."""
    tpot = asked["unprofiled_tpot"]
    return Options(**asked | {"unprofiled_tpot": parse_time(tpot, "Unprofiled TPOT") if tpot else None})


def _asked(source: Source) -> dict[str, Any]:
    """Widgets for the options of the command line; every recording has its own."""
    asked, key = ruler(source), source.digest
    with st.expander("More options"):
        asked["focus"] = kept(st.radio, "Focus", f"focus {key}", DECODE, options=list(FOCUS), horizontal=True)
        asked["skip"] = kept(st.number_input, "Skip decode steps", f"skip {key}", 0, min_value=0, step=1)
        asked["steps"] = kept(st.text_input, "Steps by regular expression", f"steps {key}", "", help=REGEX) or None
        asked["partial"] = partial(source)
    return asked


def partial(source: Source, of: str = "") -> bool:
    """A widget; labelled as those of `ruler`."""
    label = f"Accept a JSON file{of} that was cut off (--partial)"
    return kept(st.checkbox, label, f"partial{of} {source.digest}", False)


def shown(source: Source, found: Options, where: Any, of: str = "") -> Chosen:
    """With the device that is chosen, by a widget in `where` if there are several."""
    trace = store.trace(source)
    there = devices(trace)
    if len(there) == 1:
        return Chosen(source, found, there[0])
    names = {device: f"{device}: {trace.device_name(device)}" for device in there}
    within: dict[str, Any] = {"options": there, "format_func": names.__getitem__}
    device = kept(where.selectbox, f"Device{of}", f"device{of} {source.digest}", there[0], **within)
    return Chosen(source, found, device)

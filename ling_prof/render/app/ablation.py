"""An ablation: what each pass is worth, how they interact, and what vouches for it."""

import pandas as pd
import streamlit as st

from ling_prof import lock
from ling_prof.ablation_report import Ablation
from ling_prof.render import figures
from ling_prof.render.ablation import floor_of, within_noise
from ling_prof.render.app import sidebar, store
from ling_prof.render.app.frame import draw, plain, table
from ling_prof.render.app.passes import MS
from ling_prof.units import show_time

TITLE = "Ablation"
EMPTY = (
    "No ablation report is loaded. Choose one in the sidebar, or upload what `ling-prof ablate` wrote: "
    "it measures every pass, and their combinations, on a GPU."
)


def show() -> None:
    st.title("What each pass is worth")
    source = sidebar.ablation()
    if source is None:
        st.info(EMPTY)
        return
    of = store.ablation(source)
    _conditions(source.name, of)
    _numbers(of)
    sections = {
        "Gain of each pass, predicted beside measured": figures.shapley,
        "Interactions of two": figures.interactions,
        "The ladder": figures.ladder,
        "Predicted against measured": figures.predicted_measured,
    }
    for title, figure in sections.items():
        st.subheader(title)
        draw(figure, of, key=title)
    _verdicts(of)
    _lock(of)


def _conditions(name: str, of: Ablation) -> None:
    found = lock.from_dict(of["lock"], name)
    lengths = f"{found.isl} tokens in, {found.osl} out, {found.decoding}"
    said = f"{name}: {found.model}, {found.dtype}, {lengths}, {lock.show(found.hardware)}; {of['design']}"
    st.caption(plain(f"{said} over {of['windows']} windows of {of['steps']} steps, {of['date'][:10]}"))
    for note in of["notes"]:
        st.caption(plain(f"Note: {note}"))


def _numbers(of: Ablation) -> None:
    base, full = of["baseline"]["tpot_ms"], of["all_on"]["tpot_ms"]
    numbers = {"Baseline TPOT": "-" if base is None else show_time(base * MS)}
    numbers["All on"] = "its gate failed" if full is None else show_time(full * MS)
    numbers["Times faster"] = f"{base / full:.3f}" if base and full else "-"
    numbers["A/A noise floor"] = f"{of['noise_floor_pct']:.2f} %"
    for column, (label, value) in zip(st.columns(len(numbers)), numbers.items(), strict=True):
        column.metric(label, value)


def _verdicts(of: Ablation) -> None:
    """A pass that failed its gate shows no gain, and comes first."""
    st.subheader("Correctness, pass by pass")
    failed = [gate for gate in of["gates"] if not gate["ok"]]
    for gate in failed:
        st.error(plain(f"{' + '.join(gate['passes']) or 'no passes'}: {gate['verdict']}"))
    if not failed:
        st.success(f"All {len(of['gates'])} combinations that were checked passed their gate.")
    rows = [
        {
            "pass": row["pass"],
            "outputs": "bitwise equal" if row["exact"] else "rounding",
            "gain, us": row["gain_us"],
            "low": row["low"],
            "high": row["high"],
            "doubt": "within noise" * within_noise(row, floor_of(of, row)),
            "gate": row["gate"],
            "proof that it was on": row["took_effect"],
        }
        for row in of["attribution"]
    ]
    table(pd.DataFrame(rows), "verdicts")
    for row in of["blocked"]:
        st.markdown(plain(f"{row['pass']} could not be applied: {row['reason']}."))


def _lock(of: Ablation) -> None:
    st.subheader("Made with")
    st.code(of["command"], language="bash", wrap_lines=True)
    found = {key: lock.show(value) for key, value in vars(lock.from_dict(of["lock"], "this report")).items()}
    table(pd.DataFrame({"what": list(found), "": list(found.values())}), "lock")

"""Two recordings, class by class and kernel by kernel; and benchmarks beside each other."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import streamlit as st

from ling_prof import bench_compare, bench_report
from ling_prof.bench_compare import Measured
from ling_prof.bundled import results
from ling_prof.diff_report import Diff
from ling_prof.errors import UserError
from ling_prof.render import figures
from ling_prof.render.app import pick, sidebar, store
from ling_prof.render.app.frame import careful, draw, kept, plain, table
from ling_prof.render.app.step import US
from ling_prof.render.app.store import Chosen
from ling_prof.units import show_time

TITLE = "Compare"
OTHER, OF = "other", " of B"
WAYS = {pick.HERE: "Compare with", pick.UPLOAD: "Upload a second trace", pick.PATH: "Path of a second trace"}
FORCE = "Unlike recordings or benchmarks are refused; with this they are compared, with warnings."
MOST = 100  # rows of a table


def show(chosen: Chosen | None) -> None:
    st.title("Compare")
    force = kept(st.toggle, "Compare what is unlike", "force", False, help=FORCE)
    if chosen is not None:
        _recordings(chosen, force)
    _benches(force)


@careful
def _recordings(a: Chosen, force: bool) -> None:
    st.subheader("Two recordings")
    st.markdown(plain(f"A is {a.source.name}, the recording of the sidebar."))
    left, right = st.columns(2, gap="large")
    with left:
        pick.draw(WAYS, OTHER, sidebar.recordings())
    source = pick.picked(OTHER, sidebar.recordings())
    if source is None:
        st.info("Choose the second recording, B: one that comes along, an upload, or a path.")
        return
    with right:
        asked, where = sidebar.ruler(source, OF), st.container()
        source = replace(source, partial=sidebar.partial(source, OF))
    options = sidebar.options({**a.options.__dict__, **asked, "device": None})
    _change(store.diff(a, sidebar.shown(source, options, where, OF), force))


def _change(found: Diff) -> None:
    wall = found["wall"]
    columns = st.columns(3)
    columns[0].metric("Median step of A", show_time(wall["a_ns"]))
    columns[1].metric("Median step of B", show_time(wall["b_ns"]))
    columns[2].metric("Change", show_time(wall["change_ns"]), _share(wall), "inverse")
    if own := wall.get("calibrated"):
        said = f"Without a profiler: {show_time(own['a_ns'])} to {show_time(own['b_ns'])}, {_share(own)}."
        st.markdown(plain(said))
    for line in found["warnings"]:
        st.warning(plain(line))
    draw(figures.diff_classes, found, key="diff")
    st.subheader("By role")
    table(_work(found["roles"]), "diff roles")
    st.subheader("By kernel")
    table(_work(found["names"][:MOST]), "diff names")
    st.subheader("What was added, removed and replaced")
    edits = [
        {
            "change, us": edit["change_ns"] / US,
            "times": edit["count"],
            "in A": " + ".join(edit["removed"]) or "nothing",
            "in B": " + ".join(edit["added"]) or "nothing",
        }
        for edit in found["edits"][:MOST]
    ]
    table(pd.DataFrame(edits), "diff edits") if edits else st.markdown(
        "Both steps run the same kernels in the same order."
    )


def _share(change: Any) -> str:
    return f"{100 * change['change_ns'] / change['a_ns']:+.1f} %"


def _work(rows: Any) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {
                "name": row["name"],
                "in A, us": row["a_ns"] / US,
                "in B, us": row["b_ns"] / US,
                "change, us": row["change_ns"] / US,
                "of it busy": row["busy_change_ns"] / US,
                "of it idle": row["idle_change_ns"] / US,
                "ops in A": row["a_count"],
                "ops in B": row["b_count"],
            }
            for row in rows
        ]
    )


def _committed() -> dict[str, Path]:
    return {path.name: path for path in results() if store.says(store.at(path), "schema") == bench_report.SCHEMA}


@careful
def _benches(force: bool) -> None:
    st.subheader("Benchmarks")
    there = _committed()
    names = kept(st.multiselect, "Bench files", "benches", [], options=list(there), placeholder="None chosen")
    uploads = st.file_uploader("Upload bench files", accept_multiple_files=True, key="bench upload")
    sources = [*(store.at(there[name], name) for name in names), *map(store.uploaded, uploads)]
    if not sources:
        st.info(
            "Choose files of `ling-prof bench --output`, or of SGLang's benchmarks; of two it is said how they differ."
        )
        return
    found = {source.name: store.bench(source) for source in sources}
    if len(found) < len(sources):
        raise UserError("two bench files have the same name; rename one of them.")
    shown = {name: {"summary": {"tpot_ms": of.tpot_ms}, "lock": of.lock.to_dict()} for name, of in found.items()}
    draw(figures.bench, shown, key="benches figure")
    if len(found) == 2:
        _decided(found, force)


def _decided(found: dict[str, Measured], force: bool) -> None:
    (a, old), (b, new) = found.items()
    said = bench_compare.compare(old, new, force, (a, b))
    change = f"{show_time(1e3 * said['change_us'])} a token ({said['change_pct']:+.2f} %)"
    st.markdown(plain(f"From {a} (A) to {b} (B): {change}. {said['verdict'][:1].upper()}{said['verdict'][1:]}."))
    for line in said["warnings"]:
        st.warning(plain(line))

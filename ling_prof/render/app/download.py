"""What the pages show, as files. Each is made when its button is pressed."""

import io
import tempfile
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import streamlit as st

from ling_prof.export import export
from ling_prof.render import perfetto
from ling_prof.render.app import store
from ling_prof.render.app.frame import plain
from ling_prof.render.app.step import heading
from ling_prof.render.app.store import Chosen
from ling_prof.render.html import page
from ling_prof.window import median_windows

TITLE = "Download"


def show(chosen: Chosen) -> None:
    st.title("Download")
    heading(chosen)
    stem = Path(chosen.source.name).name.split(".")[0] or "trace"
    for label, (ending, says, make) in FILES.items():
        st.subheader(label)
        st.markdown(plain(says))
        name = f"{stem}.{ending}"
        st.download_button(f"Download {plain(name)}", partial(make, chosen), name, key=label, on_click="ignore")


def as_html(chosen: Chosen) -> str:
    """One page, with the figures of every device."""
    return page(store.report(chosen.source, chosen.options), median_windows(store.views(chosen.source, chosen.options)))


def as_json(chosen: Chosen) -> str:
    """As the command prints it."""
    return store.report(chosen.source, chosen.options).to_json(indent=1) + "\n"


def as_csv(chosen: Chosen) -> bytes:
    """A zip of every table and analysis."""
    page = io.BytesIO()
    with tempfile.TemporaryDirectory() as scratch, zipfile.ZipFile(page, "w", zipfile.ZIP_DEFLATED) as packed:
        folder = Path(scratch) / "csv"
        for name in export(store.trace(chosen.source), folder, "csv", chosen.options):
            packed.write(folder / name, name)
    return page.getvalue()


def as_perfetto(chosen: Chosen) -> bytes:
    """Compressed JSON."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "trace.json.gz"
        perfetto.export(store.trace(chosen.source), path, chosen.options)
        return path.read_bytes()


FILES: dict[str, tuple[str, str, Callable[[Chosen], str | bytes]]] = {
    "Report as HTML": ("report.html", "One page with figures that opens without a network, to send around.", as_html),
    "Report as JSON": ("report.json", "All numbers, as ling-prof report --json prints them.", as_json),
    "Tables as CSV": ("csv.zip", "Every table of the recording and every analysis, a file each.", as_csv),
    "Trace for Perfetto": (
        "perfetto.json.gz",
        "For ui.perfetto.dev: steps, ledger, kernels that overlap on lanes of their own.",
        as_perfetto,
    ),
}

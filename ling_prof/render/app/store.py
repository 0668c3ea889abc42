"""What the pages show, read and analysed once: kept by name, content of the files and options, the latest few."""

import hashlib
import json
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import streamlit as st

from ling_prof import ablation_report, plain_file
from ling_prof.analyses.launches import series
from ling_prof.bench_compare import Measured, measured
from ling_prof.diff import diff_of
from ling_prof.diff_report import Diff
from ling_prof.errors import UserError
from ling_prof.load import load
from ling_prof.report import Report, report_of
from ling_prof.trace import Trace
from ling_prof.view import Options, View
from ling_prof.view import views as views_of
from ling_prof.whatif import predict
from ling_prof.whatif.predict import Outcome, Predictor
from ling_prof.window import Window, thinned
from ling_prof.window import window as window_of

RECORDINGS = 2  # kept whole: Compare needs two
UPLOADS = 32  # files on disk: those used last; a later look at another writes it again
Sites = list[tuple[str, float]]


@dataclass(frozen=True)
class Source:
    """A file. name: as the user knows it; digest: of its bytes, '' where it cannot be read; partial: may be cut off."""

    name: str
    path: Path
    digest: str
    partial: bool = False


@dataclass(frozen=True)
class Chosen:
    """What to look at: a recording, how, and the device that is shown."""

    source: Source
    options: Options
    device: int


def _content(source: Source) -> tuple[str, str, bool]:
    """With the name, which errors and reports carry: nobody reads another's."""
    return source.name, source.digest, source.partial


CONTENT: dict[str | type, Callable[[Any], Any]] = {
    Source: _content,
    Chosen: lambda chosen: (_content(chosen.source), chosen.options, chosen.device),
}


def at(path: Path | str, name: str | None = None) -> Source:
    """A file on this machine. One that is not there, or can be nowhere, is refused when it is read."""
    path, digest = Path(path), ""
    with suppress(OSError, RuntimeError, ValueError):  # no access, no such user, no such name
        path = path.expanduser()
        state = path.stat()
        digest = _digest(str(path), state.st_mtime_ns, state.st_size) if path.is_file() else ""
    return Source(name or str(path), path, digest)


@st.cache_data(max_entries=256, show_spinner=False)
def _digest(path: str, changed_ns: int, size: int) -> str:
    return plain_file.sha256(Path(path))


def uploaded(upload: Any) -> Source:
    """A file that streamlit holds, put where readers find it."""
    folder, digest = Path(_folder().name), _content_of(upload.file_id, upload)
    path = folder / digest
    if path.exists():
        path.touch()
    else:
        plain_file.write_bytes(bytes(upload.getbuffer()), path)
        for old in sorted(folder.iterdir(), key=lambda one: one.stat().st_mtime_ns)[:-UPLOADS]:
            old.unlink()
    return Source(upload.name, path, digest)


@st.cache_data(max_entries=256, show_spinner=False)
def _content_of(file_id: str, _upload: Any) -> str:
    return hashlib.sha256(_upload.getbuffer()).hexdigest()


@st.cache_resource(show_spinner=False)
def _folder() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix="ling-prof-")


def _reads(source: Source, read: Callable[[Path], Any]) -> Any:
    """An error names the file as the user does."""
    try:
        return read(source.path)
    except UserError as error:
        raise UserError(str(error).replace(str(source.path), source.name)) from None


@st.cache_resource(max_entries=RECORDINGS, hash_funcs=CONTENT, show_spinner="Reading the recording")
def trace(source: Source) -> Trace:
    """Raises TraceError for what is none."""
    return _reads(source, lambda path: replace(load(path, source.partial), path=source.name))


@st.cache_resource(max_entries=RECORDINGS, hash_funcs=CONTENT, show_spinner="Finding the steps")
def views(source: Source, options: Options) -> list[View]:
    """One per device, busiest first."""
    return views_of(trace(source), options)


def view(chosen: Chosen) -> View:
    """The view of the device that is shown."""
    return next(one for one in views(chosen.source, chosen.options) if one.ops.device == chosen.device)


@st.cache_resource(max_entries=8, hash_funcs=CONTENT, show_spinner="Analysing every step")
def report(source: Source, options: Options) -> Report:
    """Of all devices."""
    return report_of(views(source, options), options)


@st.cache_resource(max_entries=8, hash_funcs=CONTENT, show_spinner=False)
def run_ahead(chosen: Chosen) -> pd.DataFrame:
    """Few enough launches for a figure."""
    return thinned(series(view(chosen)))


@st.cache_resource(max_entries=16, hash_funcs=CONTENT, show_spinner=False)
def window(chosen: Chosen, index: int, start: int, end: int) -> Window:
    """A part of a step, as it is drawn; ns from the trace's start."""
    return window_of(view(chosen), index, start, end)


@st.cache_resource(
    max_entries=RECORDINGS, hash_funcs=CONTENT, show_spinner="Building the graph of what waited for what"
)
def predictor(chosen: Chosen) -> Predictor:
    """Its unchanged and calibrated replays are kept with it."""
    return predict.predictor(view(chosen))


@st.cache_resource(max_entries=8, hash_funcs=CONTENT, show_spinner="Looking for what passes would change")
def sites(chosen: Chosen) -> dict[str, Sites]:
    """Pass -> (what, how often a step), of every pass that finds any."""
    found = {name: predictor(chosen).sites({name: edit}) for name, edit in predict.chosen(predict.passes()).items()}
    return {name: where for name, where in found.items() if where}


@st.cache_resource(max_entries=64, hash_funcs=CONTENT, show_spinner=False)
def predicted(chosen: Chosen, edits: tuple[str, ...]) -> float:
    """The step after these edits, ns: one replay."""
    return predictor(chosen).predicted(predict.chosen(edits))


@st.cache_resource(max_entries=64, hash_funcs=CONTENT, show_spinner="Replaying for the band")
def outcome(chosen: Chosen, edits: tuple[str, ...]) -> Outcome:
    """As `ling-prof whatif --do` reckons it."""
    return predictor(chosen).outcome(predict.chosen(edits), predicted(chosen, edits))


@st.cache_resource(max_entries=4, hash_funcs=CONTENT, show_spinner="Aligning the kernels of both")
def diff(a: Chosen, b: Chosen, force: bool) -> Diff:
    """From the median step of `a` to that of `b`."""
    return diff_of(view(a), view(b), force)


@st.cache_data(max_entries=64, hash_funcs=CONTENT, show_spinner=False)
def says(source: Source, key: str) -> str:
    """What a JSON file says of itself; '' where it says nothing."""
    try:
        return str(json.loads(source.path.read_bytes())[key])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


@st.cache_resource(max_entries=8, hash_funcs=CONTENT, show_spinner=False)
def ablation(source: Source) -> ablation_report.Ablation:
    """Raises UserError for what is none."""
    return _reads(source, ablation_report.load)


@st.cache_resource(max_entries=32, hash_funcs=CONTENT, show_spinner=False)
def bench(source: Source) -> Measured:
    """Of ling-prof, or of SGLang's benchmarks. Raises UserError for what is neither."""
    return _reads(source, measured)

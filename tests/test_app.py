"""The dashboard: every page in streamlit's own test harness, its numbers those of the command line, nothing twice."""

import gzip
import inspect
import io
import json
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import pytest
from browser import opened
from build import annotation, cpu_op, kineto, launch, runtime, text
from conftest import BUNDLED
from test_cli import DEMO, cli, process, refused

st = pytest.importorskip("streamlit")
pytest.importorskip("plotly")

from streamlit import config  # noqa: E402
from streamlit.testing.v1 import AppTest  # noqa: E402
from test_figures import strings  # noqa: E402

from ling_prof.bundled import app, every  # noqa: E402
from ling_prof.cli import view_options  # noqa: E402
from ling_prof.errors import UserError  # noqa: E402
from ling_prof.render.app import download, frame, passes, serve, sidebar, store, tables  # noqa: E402
from ling_prof.units import show_time  # noqa: E402

config.set_option("server.address", serve.HOST)  # as the command does
PAGES = ("step", "tables", "passes", "ablation", "compare", "download")
LADDER = BUNDLED / "ladder/00-baseline.json.gz"
TPOT = f"{every()['ladder/00-baseline.json.gz']['unprofiled_step_ms']}ms"
ABLATION = BUNDLED.parent / "docs/results/h200-tiny-ablation.json"
HOSTILE = "<script>alert(1)</script>![x](http://evil.test/x.png) $x$ :red[y]"


def script(name: str, given: str) -> None:
    """What streamlit runs: it takes the source of this function alone."""
    from importlib import import_module

    page, frame, sidebar = (import_module(f"ling_prof.render.app.{one}") for one in (name, "frame", "sidebar"))
    frame.run(page, sidebar.choose(given))


def visit(name: str, given: object = "") -> AppTest:
    at = AppTest.from_function(script, default_timeout=120, args=(name, str(given))).run()
    assert not at.exception, at.exception
    return at


def labelled(widgets, label: str):
    return next(widget for widget in widgets if widget.label == label)


def metrics(at: AppTest) -> dict[str, str]:
    return {metric.label: metric.value for metric in at.metric}


def unescaped(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text.replace(frame.JOINER, ""))


def sentences(at: AppTest) -> list[str]:
    """The errors on the page."""
    return [unescaped(error.value) for error in at.error]


def decode(devices: int = 1, steps: int = 6, name: str = "gemm", phase: str = "decode_step") -> list[dict]:
    """Steps of 1000 us: on each device three kernels of 100 us, and 50 us more on the later ones."""
    events, corr = [], 0
    for number in range(steps):
        at = 1000 * number
        events.append(annotation(f"{phase}_{number}", at, 900))
        for device in range(devices):
            for i in range(3):
                corr += 1
                begun = at + 100 + 250 * i
                events += launch(name, begun, 100 + 50 * device, corr, call=begun - 50, call_dur=10, device=device)
        events.append(runtime("cudaDeviceSynchronize", at + 700, 150, 0))
    return events


@pytest.mark.parametrize("name", PAGES)
def test_every_page_shows_the_demo(name):
    at = visit(name)
    assert at.title
    said = sentences(at)
    assert len(said) == (name == "tables")  # the demo has no layers, and says so
    assert all("to know" in one or "record" in one for one in said)


@pytest.mark.parametrize(
    "name", [*sorted(name for name in every() if "/" not in name), "sglang/flash12-readback.json.gz"]
)
def test_every_recording_that_comes_along_has_a_step_and_predictions(name):
    at = visit("step", BUNDLED / name)
    assert metrics(at)["Mean step"]
    assert not sentences(at)
    assert metrics(visit("passes", BUNDLED / name))["Predicted step"]


def test_the_app_navigates_to_every_page(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["app.py", str(LADDER)])
    at = AppTest.from_file(str(app()), default_timeout=120).run()
    assert not at.exception
    assert at.title[0].value == "Where the time of a step goes"
    assert labelled(at.text_input, "Path of a trace").value == str(LADDER)
    assert labelled(at.text_input, "Unprofiled TPOT").value == TPOT  # known by content


def test_the_numbers_of_a_step_are_those_of_the_report():
    at = visit("step", DEMO)
    found = json.loads(cli("report", DEMO, "--json", "--unprofiled-tpot", "2.223ms").stdout)["summary"][0]
    assert metrics(at)["Mean step"] == show_time(found["wall_ns"]["mean"])
    assert metrics(at)["Without a profiler"] == "2.223 ms"
    assert found["ruler"] in [unescaped(text.value) for text in at.markdown]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"traceEvents": [ {"ph": "X", ', "the JSON ends inside traceEvents"),
        (b"", "the file is empty"),
        (b"hello", "neither JSON nor SQLite"),
        (b'{"traceEvents": []}', "without any event"),
        (text(cpu_op("aten::add", 1, 2)).join(('{"traceEvents": [', "]}")).encode(), "GPU"),
    ],
)
@pytest.mark.parametrize("name", PAGES)
def test_a_broken_upload_ends_in_one_sentence_that_names_it(name, content, said):
    at = visit(name)
    labelled(at.file_uploader, "Upload a trace").set_value(("mine *b*.json", content, "application/json"))
    at.run()
    assert not at.exception
    (sentence,) = sentences(at)
    assert sentence.startswith("mine *b*.json: ")
    assert said in sentence
    assert bool(metrics(at)) == (name == "ablation")  # which needs no recording


def test_a_path_that_is_none_and_options_that_are_none_end_in_a_sentence(tmp_path):
    assert sentences(visit("step", tmp_path / "none.json")) == [f"{tmp_path}/none.json: no such file; check the path."]
    at = visit("step", DEMO)
    labelled(at.text_input, "Unprofiled TPOT").set_value("soon").run()
    assert "Unprofiled TPOT 'soon' is not a time" in sentences(at)[0]
    labelled(at.text_input, "Unprofiled TPOT").set_value("2ms").run()
    labelled(at.text_input, "Steps by regular expression").set_value("(").run()
    assert len(sentences(at)) == 1


def test_without_a_choice_the_page_says_what_to_do():
    at = visit("step")
    labelled(at.selectbox, "Recording").set_value(None).run()
    assert "Choose a recording" in at.info[0].value
    assert not at.title


def test_what_was_touched_last_is_shown(tmp_path):
    at = visit("step", kineto(tmp_path, decode()))
    assert labelled(at.selectbox, "Recording").value is None
    labelled(at.selectbox, "Recording").set_value("ladder/00-baseline.json.gz").run()
    assert labelled(at.text_input, "Path of a trace").value == ""
    assert "ladder/00-baseline.json.gz" in unescaped(at.caption[0].value)
    labelled(at.file_uploader, "Upload a trace").set_value(("up.json", (tmp_path / "trace.json").read_bytes(), ""))
    at.run()
    assert labelled(at.selectbox, "Recording").value is None
    assert unescaped(at.caption[0].value).startswith("up.json, a kineto recording")


def said(at: AppTest) -> Iterator[str]:
    """What streamlit takes as Markdown: text, labels and hints."""
    for one in (*at.markdown, *at.caption, *at.error, *at.info, *at.warning, *at.success):
        assert not getattr(one.proto, "allow_html", False)
        yield one.value
    widgets = (at.button, at.toggle, at.selectbox, at.text_input, at.number_input, at.checkbox, at.expander, at.metric)
    for one in (*chain(*widgets), *at.get("download_button"), *at.get("file_uploader")):
        yield one.proto.label
        yield getattr(one.proto, "help", "")


@pytest.mark.parametrize("name", PAGES)
def test_a_hostile_name_stays_text(tmp_path, name):
    path = kineto(tmp_path, decode(name=HOSTILE), name="<b>$x$ hostile.json")
    at = visit(name, path)
    if name == "passes":
        labelled(at.text_area, "Other edits").set_value("drop=script").run()
    for one in said(at):
        assert not re.search(r"(?<!\\)<", re.sub(r"`[^`]*`", "", one)), one
        assert not re.search(r"(?<!\\)!\[|(?<!\\)\$|(?<!\\):red", one), one
    for figure in at.get("plotly_chart"):
        texts = list(strings(json.loads(figure.proto.spec)))
        assert texts
        assert not [text for text in texts if re.search(r"[<>$]", re.sub("</?b>|<br>", "", text))]
    if name == "tables":
        assert HOSTILE in {cell for frame in at.dataframe for cell in frame.value.to_numpy().ravel()}


def test_a_recording_without_a_decode_step_says_so(tmp_path):
    path = kineto(tmp_path, decode(phase="prefill_step"))
    at = visit("step", path)
    assert "No decode step counts here" in at.info[0].value
    assert not sentences(at)
    assert "no decode step to look at" in sentences(visit("passes", path))[0]
    at = visit("tables", path)
    assert any("What does a decode step cost?" in unescaped(one.value) for one in at.markdown)
    for name in ("compare", "download"):
        assert not sentences(visit(name, path))


def test_several_devices_have_a_chooser(tmp_path):
    at = visit("step", kineto(tmp_path, decode(devices=2)))
    chooser = labelled(at.selectbox, "Device")
    assert chooser.value == 1  # the busiest
    busy = metrics(at)["Device busy"]
    chooser.set_value(0).run()
    assert metrics(at)["Device busy"] != busy
    assert "device 0" in at.caption[0].value
    assert not [box for box in visit("step").selectbox if box.label == "Device"]


def test_the_window_of_a_step_is_drawn_anew(tmp_path):
    at = visit("step", DEMO)
    until = labelled(at.number_input, "To, us").value
    labelled(at.button, "Zoom in").click().run()
    since = labelled(at.number_input, "From, us").value
    assert since == pytest.approx(until / 4)
    assert labelled(at.number_input, "To, us").value == pytest.approx(3 * until / 4)
    for _ in range(3):
        labelled(at.button, "Earlier").click().run()
    assert labelled(at.number_input, "From, us").value == 0
    labelled(at.button, "Whole step").click().run()
    assert labelled(at.number_input, "To, us").value == until
    labelled(at.number_input, "To, us").set_value(0.0).run()
    assert "has no length" in sentences(at)[0]
    labelled(at.number_input, "Step shown").set_value(0).run()
    assert not sentences(at)


def test_the_window_follows_other_steps(tmp_path):
    halves = [annotation(f"half_{i}", 500 * i, 400) for i in range(6)]
    at = visit("step", kineto(tmp_path, decode() + halves))
    labelled(at.number_input, "Step shown").set_value(1).run()
    until = labelled(at.number_input, "To, us").value
    labelled(at.number_input, "From, us").set_value(until - 1).run()
    labelled(at.text_input, "Steps by regular expression").set_value("half").run()
    assert not sentences(at)
    assert labelled(at.number_input, "From, us").value == 0
    assert labelled(at.number_input, "To, us").value < until


def test_search_finds_rows_in_any_case_and_says_what_it_does_not_find():
    at = visit("tables", LADDER)
    labelled(at.text_input, "Search").set_value("MOE GROUPED").run()
    assert {"MoE grouped GEMM"} == {role for frame in at.dataframe for role in frame.value.get("role", [])}
    assert any("holds" in one.value for one in at.markdown)


def test_tables_send_no_more_rows_than_are_shown():
    at = visit("tables", LADDER)
    assert max(len(frame.value) for frame in at.dataframe) == tables.ROWS[0]


def asked(at: AppTest, *names: str) -> AppTest:
    for name in names:
        labelled(at.toggle, name).set_value(True)
    return at.run()


@pytest.mark.parametrize(
    ("path", "tpot", "names", "more"),
    [
        (DEMO, "2.223ms", ("host_run_ahead", "cuda_graph"), ""),
        (str(LADDER), TPOT, ("moe_fuse", "host_run_ahead", "pdl"), ""),
        (str(LADDER), TPOT, ("bf16_gate",), "wait=item\n-pdl\ndense_gemm=0.5"),
        (str(LADDER), "", ("seam_graph", "splitk_gemv"), ""),
    ],
)
def test_the_predicted_step_is_the_number_of_the_command(path, tpot, names, more):
    at = visit("passes", path)
    labelled(at.text_input, "Unprofiled TPOT").set_value(tpot).run()
    labelled(at.text_area, "Other edits").set_value(more)
    asked(at, *names)
    do = [part for edit in (",".join(names), *more.splitlines()) for part in ("--do", edit)]
    said = cli("whatif", path, *do, *(["--unprofiled-tpot", tpot] if tpot else []), "--json")
    found = json.loads(said.stdout)
    assert metrics(at)["Predicted step"] == show_time(found["predicted_ns"])
    assert f"{found['predicted_ns']:,} ns; " in " ".join(unescaped(one.value) for one in at.caption)
    low, high = show_time(found["low_ns"]), show_time(found["high_ns"])
    assert f"{low} to {high}" in " ".join(unescaped(one.value) for one in at.caption)
    assert metrics(at)["Saved"] == show_time(found["saved_ns"])
    assert not sentences(at)


def test_only_passes_that_find_something_have_a_switch():
    found = json.loads(cli("whatif", DEMO, "--list", "--unprofiled-tpot", "2.223ms", "--json").stdout)
    alone = {name for row in found["alone"] for name in row["edits"]}
    assert {toggle.label for toggle in visit("passes").toggle} == alone


def test_an_unknown_edit_ends_in_a_sentence():
    at = visit("passes")
    labelled(at.text_area, "Other edits").set_value("hurry").run()
    assert "no edit 'hurry'" in sentences(at)[0]


def test_the_measured_step_is_the_row_with_exactly_these_passes():
    rows = json.loads(ABLATION.read_text())["rows"]
    want = next(row["step_ms"] for row in rows if set(row["passes"]) == {"host_run_ahead", "pdl"})
    at = asked(visit("passes", LADDER), "host_run_ahead", "pdl")
    assert metrics(at)["Measured step"] == show_time(round(want * 1e6))
    at = asked(visit("passes", LADDER), "moe_fuse")
    assert metrics(at)["Measured step"] == "-"
    assert any("no row with exactly these passes" in unescaped(one.value) for one in at.caption)
    at = visit("passes", DEMO)
    assert metrics(at)["Measured step"] == "-"
    assert any("no rung of the ladder" in unescaped(one.value) for one in at.caption)


def test_a_pass_of_sglang_is_measured_beside_its_prediction():
    name = "h200-tiny-sglang-stock-ablation.json"
    at = visit("passes", BUNDLED / "sglang/tiny-stock.json.gz")
    report = labelled(at.selectbox, "Ablation report")
    report.set_value(next(one for one in report.options if one.endswith(name))).run()
    at = asked(at, "grouped_topk")
    rows = json.loads((ABLATION.parent / name).read_text())["rows"]
    want = next(row["step_ms"] for row in rows if row["passes"] == ["grouped_topk"])
    assert metrics(at)["Measured step"] == show_time(round(want * 1e6))


def test_a_slower_step_is_said_to_take_more(monkeypatch):
    of = json.loads(ABLATION.read_text())
    next(row for row in of["rows"] if row["passes"] == ["pdl"])["step_ms"] = 1.03 * of["rows"][0]["step_ms"]
    monkeypatch.setattr(passes.store, "ablation", lambda source: of)
    at = asked(visit("passes", LADDER), "pdl")
    assert any("3.0 % more than without them" in unescaped(one.value) for one in at.caption)


def test_without_predictions_it_is_said_why(tmp_path):
    at = visit("passes", kineto(tmp_path, decode(phase="prefill_step")))
    labelled(at.radio, "Focus").set_value("prefill").run()
    assert not sentences(at)
    assert "No decode step counts." in [unescaped(one.value) for one in at.markdown]


def test_a_recording_of_any_server_is_known_by_its_bytes(tmp_path, monkeypatch):
    """As SGLang's rungs: of the names of bundled ones, their step of several tokens."""
    of = json.loads(ABLATION.read_text()) | {"target": "sglang"}
    copy = tmp_path / "server.json.gz"
    copy.write_bytes(LADDER.read_bytes())
    assert passes.recorded_with(of, store.at(copy)) is None
    for rung, digest in zip(of["ladder"], ("0" * 64, store.at(copy).digest), strict=False):
        rung["trace_sha256"] = digest
    assert passes.recorded_with(of, store.at(copy)) == {"host_run_ahead"}
    assert (
        passes.recorded_with(of | {"target": "engine"}, store.at(BUNDLED / "ladder/01-host_run_ahead.json.gz")) is None
    )
    rows = {frozenset(row["passes"]): row for row in of["rows"]}
    rows[frozenset({"host_run_ahead"})] |= {"step_ms": 2.75, "tpot_ms": 1.1}
    rows[frozenset({"host_run_ahead", "pdl"})] |= {"step_ms": 2.5, "tpot_ms": 1.0}
    monkeypatch.setattr(passes.store, "ablation", lambda source: of)
    monkeypatch.setattr(passes.sidebar, "ablation", lambda: store.at(ABLATION))
    step, why = passes.measured(store.at(copy), ("pdl",), 2.75e6)
    assert (step, why) == (2.5e6, f"in {ABLATION}; 9.1 % less than without them")


def test_a_rung_counts_the_passes_it_was_recorded_with(tmp_path):
    of = json.loads(ABLATION.read_text())
    (copy := tmp_path / "00-baseline.json.gz").write_bytes((BUNDLED / "ladder/03-pdl.json.gz").read_bytes())
    assert passes.recorded_with(of, store.at(copy)) == {"host_run_ahead", "seam_graph", "pdl"}  # whatever its name
    copy.write_bytes(Path(DEMO).read_bytes())
    assert passes.recorded_with(of, store.at(copy)) is None
    assert passes.recorded_with(of, store.at(tmp_path / "03-pdl.json.gz")) is None
    at = asked(visit("passes", BUNDLED / "ladder/03-pdl.json.gz"), "moe_align_pairs")
    rung = next(rung for rung in of["ladder"] if rung["added"] == "moe_align_pairs")
    assert metrics(at)["Measured step"] == show_time(round(rung["tpot_ms"] * 1e6))


def test_the_ablation_page_shows_what_the_file_says_and_refuses_others():
    at = visit("ablation")
    of = json.loads(ABLATION.read_text())
    assert metrics(at)["Baseline TPOT"] == show_time(of["baseline"]["tpot_ms"] * 1e6)
    verdicts = at.dataframe[0].value
    assert list(verdicts["pass"]) == [row["pass"] for row in of["attribution"]]
    upload = labelled(at.file_uploader, "Upload an ablation report")
    upload.set_value(("mine.json", b'{"schema": "other"}', "application/json")).run()
    assert sentences(at) == ["mine.json: found other, not ling-prof.ablation/1; measure again with ling-prof ablate."]
    upload.clear().run()
    assert "No ablation report is loaded" in at.info[0].value


def test_the_ablation_that_is_shown_first_is_of_the_engine(tmp_path, monkeypatch):
    of = json.loads(ABLATION.read_text())
    for name, more in (
        ("a", {"target": "sglang", "notes": ["long " * 99_999]}),
        ("b", {}),
        ("c", {"notes": ["x" * 999]}),
    ):
        (tmp_path / f"{name}.json").write_text(json.dumps(of | more))
    monkeypatch.setattr(sidebar, "results", lambda: sorted(tmp_path.glob("*.json")))
    assert labelled(visit("ablation").selectbox, "Ablation report").value == "b.json"


def test_an_ablation_without_gains_is_still_shown(tmp_path):
    of = json.loads(ABLATION.read_text()) | {"attribution": []}
    at = visit("ablation")
    upload = labelled(at.file_uploader, "Upload an ablation report")
    upload.set_value(("mine.json", json.dumps(of).encode(), "application/json")).run()
    assert not at.exception
    assert not sentences(at)


def test_a_failed_gate_comes_first(tmp_path):
    of = json.loads(ABLATION.read_text())
    of["gates"][0] |= {"ok": False, "verdict": "token 3 differs"}
    at = visit("ablation")
    upload = labelled(at.file_uploader, "Upload an ablation report")
    upload.set_value(("mine.json", json.dumps(of).encode(), "application/json")).run()
    assert sentences(at) == ["no passes: token 3 differs"]


def test_two_recordings_are_compared_as_the_command_does():
    at = visit("compare", LADDER)
    other = "ladder/16-seam_fuse.json.gz"
    labelled(at.selectbox, "Compare with").set_value(other).run()
    steps = f"{TPOT},{every()[other]['unprofiled_step_ms']}ms"
    done = cli("diff", str(LADDER), str(BUNDLED / other), "--unprofiled-tpot", steps, "--json")
    wall = json.loads(done.stdout)["wall"]
    assert metrics(at)["Change"] == show_time(wall["change_ns"])
    own = " to ".join(show_time(wall["calibrated"][key]) for key in ("a_ns", "b_ns"))
    assert any(f"Without a profiler: {own}" in unescaped(one.value) for one in at.markdown)
    assert not sentences(at)
    labelled(at.text_input, "Path of a second trace").set_value("nowhere.json").run()
    assert sentences(at) == ["nowhere.json: no such file; check the path."]


def test_the_second_recording_has_a_device_and_may_be_cut_off(tmp_path):
    at = visit("compare", kineto(tmp_path, decode(devices=2)))
    cut = (tmp_path / "trace.json").read_bytes()[:-300]
    labelled(at.file_uploader, "Upload a second trace").set_value(("cut.json", cut, "")).run()
    assert "cut.json: " in sentences(at)[0]
    labelled(at.checkbox, "Accept a JSON file of B that was cut off (--partial)").set_value(True).run()
    assert not sentences(at)
    labelled(at.selectbox, "Device of B").set_value(0).run()
    assert not sentences(at)
    assert [box.value for box in at.selectbox if box.label.startswith("Device")] == [0, 1]  # B, and A in the sidebar


def test_unlike_recordings_are_refused_unless_asked_for(tmp_path):
    at = visit("compare", kineto(tmp_path, decode(phase="prefill_step")))
    labelled(at.radio, "Focus").set_value("prefill")
    labelled(at.selectbox, "Compare with").set_value("ladder/00-baseline.json.gz").run()
    assert len(sentences(at)) == 1


def test_benchmarks_are_compared():
    at = visit("compare")
    names = ["h200-tiny-baseline.json", "h200-flash-tp4-rank-baseline.json"]
    labelled(at.multiselect, "Bench files").set_value(names).run()
    assert "differ in" in sentences(at)[0]
    labelled(at.toggle, "Compare what is unlike").set_value(True).run()
    assert not sentences(at)
    assert any("h200-tiny-baseline.json (A)" in unescaped(one.value) for one in at.markdown)


def picked(path: object, **options: object) -> store.Chosen:
    return store.Chosen(store.at(Path(path)), view_options(**options), 0)


def test_downloads_are_what_the_commands_write(tmp_path):
    shown = picked(DEMO, unprofiled_tpot="2.223ms")
    assert download.as_json(shown) == cli("report", DEMO, "--json", "--unprofiled-tpot", "2.223ms").stdout
    names = zipfile.ZipFile(io.BytesIO(download.as_csv(shown))).namelist()
    assert {"gpu.csv", "api.csv", "analysis_ledger.csv"} <= set(names)
    assert json.loads(gzip.decompress(download.as_perfetto(shown)))["traceEvents"]
    assert download.as_html(shown).startswith("<!doctype html>")


def test_files_of_one_content_keep_their_own_names(tmp_path):
    a, b = (kineto(tmp_path, decode(phase="prefill_step"), name=name) for name in ("a.json", "b.json"))
    for shown in map(picked, (a, b)):
        assert json.loads(download.as_json(shown))["trace"]["path"] == shown.source.name
        assert shown.source.name in download.as_html(shown)
        assert store.view(shown).trace.path == shown.source.name
        with pytest.raises(UserError, match=f"^{re.escape(shown.source.name)}: no decode step"):
            store.predictor(shown)
        wrong = picked(shown.source.path, steps="nothing")
        for make in (download.as_csv, download.as_perfetto):
            with pytest.raises(UserError, match=f"^{re.escape(shown.source.name)}: no range"):
                make(wrong)
    one, other = (picked(path, focus="prefill") for path in (a, b))
    found = [store.diff(*sides, False) for sides in ((one, other), (other, one))]
    assert [(diff["a"]["path"], diff["b"]["path"]) for diff in found] == [(str(a), str(b)), (str(b), str(a))]


@pytest.mark.parametrize("path", ["~nosuchuser/x", "a\0b", "x" * 5000, "/dev/null", "."])
def test_a_path_that_can_be_nowhere_ends_in_a_sentence(path):
    (sentence,) = sentences(visit("step", path))
    assert sentence.startswith(path.replace("\0", "\\x00")[:80])


def test_uploads_do_not_pile_up(monkeypatch):
    monkeypatch.setattr(store, "UPLOADS", 2)
    at = visit("step")
    for number in range(4):
        content = text(cpu_op("aten::add", number, 2)).join(('{"traceEvents": [', "]}")).encode()
        labelled(at.file_uploader, "Upload a trace").set_value((f"mine.{number * 'x' * 80}", content, ""))
        at.run()
        assert not at.exception
        assert "GPU" in sentences(at)[0]
    assert len(list(Path(store._folder().name).iterdir())) == 2


def test_values_outlive_a_visit_to_another_page():
    def two(which: str) -> None:
        import streamlit as st

        from ling_prof.render.app.frame import kept

        if st.session_state.get("page") != "other":
            kept(st.text_input, "Words", "words", which)

    at = AppTest.from_function(two, args=("first",)).run()
    at.text_input[0].set_value("mine").run()
    at.session_state["page"] = "other"
    at.run()
    assert not at.text_input
    at.session_state["page"] = "back"
    assert at.run().text_input[0].value == "mine"


def test_markdown_shows_text_as_it_is():
    shown = frame.plain("a_b *c* <d> :e: $f$ [g](h)\n!")
    assert shown.replace(frame.JOINER, "") == r"a\_b \*c\* \<d\> \:e\: \$f\$ \[g\]\(h\)\\n\!"


def test_a_browser_shows_text_as_it_is(tmp_path):
    woven = "-- http://a.test WWW.b.test <- c@d.test -> std::fire::x :material/home: :streamlit: a -- b >= c <= d ~= e"
    plain = "ncclKernel<a, b>(x) --force wait=.*item a->b <!-- $1 and 2$ --> `e` ~~f~~ 1. g # h & i &lt; | j <-> k --"

    def two(said: str, label: str) -> None:
        import streamlit as st

        st.markdown(said)
        st.button(label)

    source = inspect.cleandoc("\n" + inspect.getsource(two))
    (tmp_path / "two.py").write_text(f"{source}\ntwo({frame.plain(woven)!r}, {frame.plain(plain)!r})\n")
    command = ("streamlit", "run", tmp_path / "two.py", f"--server.address={serve.HOST}", "--server.headless=1")
    with served(*command, "--server.port") as port, opened(f"http://{serve.HOST}:{port}") as (page, _):
        page.wait_for_selector("button p")
        texts = [page.inner_text(place) for place in ("[data-testid=stMarkdown] p", "button p")]
        assert [one.replace(frame.JOINER, "") for one in texts] == [woven, plain]
        assert not page.query_selector_all("[data-testid=stMarkdown] a, [data-testid=stMarkdown] img")


def test_the_command_refuses_before_the_server_starts(tmp_path, monkeypatch):
    assert "no such file" in refused("app", "nowhere.json", "--headless", run=process)
    (tmp_path / "bad.json").write_text("{")
    assert "bad.json: " in refused("app", str(tmp_path / "bad.json"), "--headless", run=process)
    monkeypatch.setattr(serve, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=re.escape("needs streamlit and plotly; pip install 'ling-prof[app]'.")):
        serve.serve(None, None, headless=True)


def test_a_port_that_is_taken_is_refused():
    with socket.socket() as taken:
        taken.bind((serve.HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"port {port}" in refused("app", "--port", str(port), "--headless", run=process)


def test_the_server_serves_this_machine_alone():
    with served("ling_prof.cli", "app", DEMO, "--headless", "--port") as port:
        page = urllib.request.urlopen(f"http://{serve.HOST}:{port}/").read()
        assert b"streamlit" in page.lower()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", port), timeout=10)


def test_a_server_that_others_reach_asks_for_no_path(monkeypatch):
    config.set_option("server.address", None)
    try:
        at = visit("step", DEMO)
    finally:
        config.set_option("server.address", serve.HOST)
    assert metrics(at)["Mean step"]
    assert "Path of a trace" not in {box.label for box in at.text_input}


@contextmanager
def served(*command: object) -> Iterator[int]:
    """The port, given as the last word of the command of a module, once it answers there."""
    with socket.socket() as probe:
        probe.bind((serve.HOST, 0))
        port = probe.getsockname()[1]
    words = [sys.executable, "-m", *map(str, command), str(port)]
    server = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert answers(f"http://{serve.HOST}:{port}/", server)
        yield port
    finally:
        server.terminate()
        said, _ = server.communicate(timeout=30)
    assert "Traceback" not in said


def answers(url: str, server: subprocess.Popen) -> bool:
    for _ in range(120):
        try:
            return urllib.request.urlopen(url).status == 200
        except (urllib.error.URLError, ConnectionError):
            assert server.poll() is None, server.communicate()
            time.sleep(0.5)
    return False

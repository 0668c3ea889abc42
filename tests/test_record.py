"""Recording: the command line given to nsys, and the torch.profiler context manager."""

import gzip
import json
import os
import stat
import subprocess
import sys

import pytest
from conftest import BUNDLED
from test_cli import refused

from ling_prof import Missing, load, report

STUB = """#!{python}
import json, pathlib, shutil, sys
pathlib.Path({log!r}).open("a").write(json.dumps(sys.argv[1:]) + "\\n")
if sys.argv[1] == "profile" and "true" in sys.argv:
    out = next(a.split("=", 1)[1] for a in sys.argv if a.startswith("--output="))
    pathlib.Path(out).write_bytes(b"NVIDIA Tegra Profiler Report 1\\n")
if sys.argv[1] == "export":
    shutil.copy({sqlite!r}, sys.argv[sys.argv.index("-o") + 1])
"""


@pytest.fixture
def nsys(tmp_path, monkeypatch):
    """A stand-in for nsys that logs its arguments and exports a bundled recording."""
    sqlite = tmp_path / "bundled.sqlite"
    sqlite.write_bytes(gzip.decompress((BUNDLED / "h200_qwen3_graph_nodes.sqlite.gz").read_bytes()))
    log, program = tmp_path / "log", tmp_path / "bin" / "nsys"
    program.parent.mkdir()
    program.write_text(STUB.format(python=sys.executable, log=str(log), sqlite=str(sqlite)))
    program.chmod(program.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    return log


def run(*args: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", "ling_prof.cli", *args], capture_output=True, text=True)


def test_record_runs_nsys_with_the_right_flags_and_reports(nsys, tmp_path):
    done = run("record", "-o", str(tmp_path / "out"), "--profiler-api", "--json", "--", "true")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["summary"][0]["steps"] == {"prefill": 1, "decode": 5}
    profile, export = (json.loads(line) for line in nsys.read_text().splitlines())
    assert {"--cuda-graph-trace=node", "--sample=none", "--cpuctxsw=none", "--trace=cuda,nvtx"} <= set(profile)
    assert profile[-1] == "true"
    assert "--capture-range=cudaProfilerApi" in profile
    assert export[:3] == ["export", "--type", "sqlite"]


@pytest.mark.parametrize("form", [["--"], ["nsys", "--"], []])
def test_every_form_gives_nsys_the_command_and_keeps_our_options(nsys, tmp_path, form):
    done = run("record", *form[:-1], "-o", str(tmp_path / "out"), *form[-1:], "true", "sglang", "--steps", "3")
    assert done.returncode == 0, done.stderr
    profile = json.loads(nsys.read_text().splitlines()[0])
    assert profile[-4:] == ["true", "sglang", "--steps", "3"]
    assert f"--output={tmp_path / 'out.nsys-rep'}" in profile


def test_a_report_file_is_read_through_nsys(nsys, tmp_path):
    path = tmp_path / "mine.nsys-rep"
    path.write_bytes(b"NVIDIA Tegra Profiler Report 36398880.\n")
    assert load(path).format == "nsys"


def test_without_nsys_the_export_command_is_named(tmp_path, monkeypatch):
    path = tmp_path / "mine.nsys-rep"
    path.write_bytes(b"NVIDIA Tegra Profiler Report 36398880.\n")
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("ling_prof.load.nsys.PLACES", ())
    with pytest.raises(Exception, match=r"nsys export --type sqlite -o mine.sqlite mine.nsys-rep"):
        load(path)


def test_a_run_that_leaves_no_recording_says_so(nsys, tmp_path):
    assert "no recording" in refused("record", "-o", str(tmp_path / "out"), "--", "false")


def test_profile_marks_steps_in_order(tmp_path):
    torch = pytest.importorskip("torch", reason="LOUD: torch is absent: recording with torch.profiler is NOT tested")
    from ling_prof.record import profile

    path = tmp_path / "decode.json.gz"
    with profile(path) as step:
        for phase in ("prefill", "decode", "decode"):
            with step(phase):
                torch.ones(8).sum().item()
    trace = load(path)
    names = trace.host.loc[trace.host["kind"] == "annotation", "name"].tolist()
    assert [n for n in names if "_step_" in n] == ["prefill_step_0", "decode_step_1", "decode_step_2"]
    assert "host.python" not in trace.lacks
    if not torch.cuda.is_available():
        with pytest.raises(Missing, match="GPU times"):
            report(trace)

"""The command line: in processes of its own as a user runs it, or in this one, which has imported all before."""

import json
import subprocess
import sys
import tempfile
import warnings
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from unittest import mock

import pytest
from conftest import BUNDLED, GOLDEN

from ling_prof.cli import main
from ling_prof.timeline import CLASSES

MANIFEST = json.loads((BUNDLED / "manifest.json").read_text())
DEMO = str(BUNDLED / next(row["file"] for row in MANIFEST if row["demo"]))
READERS = ("report", "ledger", "syncs", "gaps", "kernels", "steps", "launches", "doctor")


def process(*args: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", "ling_prof.cli", *args], capture_output=True, text=True, timeout=120)


@contextmanager
def warned():
    """Warnings go to stderr, those that a process shows; pytest would keep them."""
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        for hidden in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
            warnings.simplefilter("ignore", hidden)
        warnings.showwarning = lambda *what: sys.stderr.write(warnings.formatwarning(*what[:4]))
        yield


def cli(*args: str) -> subprocess.CompletedProcess:
    """As `process`, without the seconds that a process takes to begin."""
    code: object = 0
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        with mock.patch("sys.argv", ["ling-prof", *args]), redirect_stdout(out), redirect_stderr(err), warned():
            try:
                main()
            except SystemExit as ended:
                code = ended.code or 0
        out.seek(0), err.seek(0)
        return subprocess.CompletedProcess(args, code, out.read(), err.read())


def refused(*args: str, run=cli) -> str:
    """The one sentence a command ends in; checks that it is one, without traceback, with exit code 2."""
    done = run(*args)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("ling-prof: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


@pytest.mark.parametrize("command", READERS)
def test_every_reading_command_prints_text_and_versioned_json(command):
    assert process(command, DEMO).returncode == 0
    found = json.loads(cli(command, DEMO, "--json").stdout)
    assert found["schema"] == ("ling-prof.doctor/1" if command == "doctor" else "ling-prof.report/1")


def test_the_report_has_the_documented_shape():
    found = json.loads(cli("report", DEMO, "--json", "--unprofiled-tpot", "2.223ms").stdout)
    for step in found["steps"]:
        assert list(step["ledger"]) == list(CLASSES)
        assert sum(step["ledger"].values()) == step["wall_ns"] == step["end_ns"] - step["start_ns"]
        assert sum(step["roles"].values()) == step["ledger"]["busy"]
        assert ("calibrated" in step) == (step["phase"] == "decode")
    assert {sum(s["calibrated"].values()) for s in found["steps"] if "calibrated" in s} == {2_223_000}


def test_demo_calibrates_with_the_unprofiled_step():
    text = process("demo").stdout
    assert "unprofiled" in text
    assert "aten::item < decode (hf_decode.py:" in text


@pytest.mark.parametrize("row", MANIFEST, ids=lambda row: row["file"])
def test_bundled_recordings_keep_their_ledger(row, request):
    found = json.loads(cli("report", str(BUNDLED / row["file"]), "--json").stdout)
    kept = {
        "source": found["summary"][0]["source"],
        "steps": [{"phase": s["phase"], "kernels": s["kernels"], "ledger": s["ledger"]} for s in found["steps"]],
        "syncs": [{k: s[k] for k in ("api", "site", "calls", "idle_caused_ns")} for s in found["syncs"]],
        "graphs": found["graphs"],
        "cannot_say": [c["question"] for c in found["cannot_say"]],
    }
    golden = GOLDEN / f"{row['file'].split('.')[0]}.json"
    if request.config.getoption("--update-golden"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(json.dumps(kept, indent=1) + "\n")
    assert kept == json.loads(golden.read_text())


def test_check_passes_and_fails_by_its_exit_code():
    assert process("check", DEMO, "--max-class", "sync_stall=1s", "--max-class", "wall=10ms").returncode == 0
    done = process("check", DEMO, "--max-class", "sync_stall=1us")
    assert done.returncode == 1
    assert "EXCEEDED" in done.stdout
    limits = json.loads(cli("check", DEMO, "--max-class", "busy=1us", "--json").stdout)["limits"]
    assert [row["ok"] for row in limits] == [False]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("check", DEMO, "--max-class", "nonsense=1us"), "nonsense=1us"),
        (("check", DEMO, "--max-class", "busy=1"), "50us"),
        (("report", DEMO, "--unprofiled-tpot", "fast"), "2.13ms"),
        (("report", DEMO, "--unprofiled-tpot", "0ms"), "above zero"),
        (("report", DEMO, "--focus", "training"), "prefill"),
        (("report", DEMO, "--device", "7"), "device 0"),
        (("report", DEMO, "--stream", "99"), "stream"),
        (("report", DEMO, "--steps", "("), "regular expression"),
        (("report", DEMO, "--steps", "no such range"), "decode_step_1"),
        (("report", DEMO, "--skip", "-1"), "--skip"),
        (("report", DEMO, "--accept-length", "0"), "--accept-length"),
        (("report", "nowhere.json"), "no such file"),
        (("export", DEMO), "--parquet"),
        (("record",), "ling-prof record -- python"),
    ],
    ids=lambda value: " ".join(value[2:]) if isinstance(value, tuple) else "",
)
def test_a_wrong_option_ends_in_one_sentence(args, words):
    assert words in refused(*args)


def test_skip_and_focus_choose_steps():
    summary = json.loads(cli("ledger", DEMO, "--json", "--skip", "2").stdout)["summary"][0]
    assert summary["rounds"] == 2
    assert "2 step(s): skipped" in summary["left_out"]
    assert json.loads(cli("ledger", DEMO, "--json", "--focus", "prefill").stdout)["summary"][0]["rounds"] == 1


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_export_writes_every_table_or_nothing(tmp_path, kind):
    import pandas as pd

    folder = tmp_path / "out"
    files = json.loads(process("export", DEMO, f"--{kind}", str(folder), "--json").stdout)["files"]
    assert sorted(p.name for p in folder.iterdir()) == sorted(files)
    assert {f"{t}.{kind}" for t in ("gpu", "api", "host", "analysis_ledger", "analysis_syncs")} <= set(files)
    read = pd.read_parquet if kind == "parquet" else pd.read_csv
    assert len(read(folder / f"analysis_ledger.{kind}")) == 6
    assert "exists already" in refused("export", DEMO, f"--{kind}", str(folder))
    assert "cannot be made" in refused("export", DEMO, f"--{kind}", "/proc/nowhere/out")
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_help_imports_nothing_heavy():
    code = (
        "import sys, contextlib, io\n"
        "from ling_prof.cli import app\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit): app(['--help'])\n"
        "print(sorted({'pandas', 'torch', 'numpy', 'pyarrow', 'msgspec', 'triton'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


def test_a_reader_that_goes_away_is_not_a_limit_exceeded():
    command = f"{sys.executable} -m ling_prof.cli report {DEMO} --json | head -c 100"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True)
    assert (done.stderr, done.returncode) == ("", 141)


@pytest.mark.parametrize("place", ["> /dev/full", ">&-"])
@pytest.mark.parametrize("command", ["report", "report --json", "check --max-class wall=1s"])
def test_an_output_that_cannot_be_written_is_said_so(command, place):
    command = f"{sys.executable} -m ling_prof.cli {command} {DEMO} {place}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("ling-prof: the output cannot be written")
    assert done.stderr.count("\n") == 1


def test_two_runs_print_the_same():
    assert len({process("report", DEMO, "--json").stdout for _ in range(3)}) == 1


def test_list_names_every_analysis_and_recording():
    found = json.loads(process("list", "--json").stdout)
    assert set(found["analyses"]) >= {"ledger", "syncs", "gaps", "launches", "kernels", "layers", "copies", "graphs"}
    assert list(found["recordings"]) == [row["file"] for row in MANIFEST]

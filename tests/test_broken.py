"""Broken files: the right value, or exit code 2 and one sentence that names the file, what was found and what to do."""

import builtins
import gzip
import json
import os
import re
import sqlite3
import subprocess
import sys
import zipfile
from contextlib import closing
from pathlib import Path

import pytest
from build import cpu_op, kernel, kineto, launch, nsys

from ling_prof import TraceError, cli, load, report
from ling_prof.intervals import total, union
from ling_prof.load import events

TRACES = Path(__file__).parents[2] / "shared" / "traces"
ORACLE = json.loads((TRACES / "oracle.json").read_text()) if TRACES.exists() else {}
BROKEN = sorted((TRACES / "broken").glob("*"))
READABLE = [p for p in BROKEN if ORACLE[p.name].get("devices")]
REFUSED = {
    "derived_empty.json.gz": ("the file is empty", "re-record"),
    "derived_empty.sqlite": ("the file is empty", "re-record"),
    "derived_trunc.json.gz": ("the JSON ends inside traceEvents", "add --partial"),
    "derived_trunc.sqlite.gz": ("the SQLite file is damaged", "export it again from its .nsys-rep"),
    "derived_trunc_gz.json.gz": ("the gzip data ends too early", "copy the file again or re-record"),
    "tl_rocprof_908.json.gz": ("JSON without a traceEvents array", "give a torch-profiler trace"),
}
ABSENT = "LOUD: ../shared/traces is absent: the broken files of other people are NOT tested"
needs_shared = pytest.mark.skipif(not BROKEN, reason=ABSENT)


def says(message: str, path: Path, found: str, remedy: str) -> bool:
    """Whether `message` is one sentence: 'PATH: FOUND...; REMEDY... .'"""
    rest = message.strip().removeprefix("ling-prof: ").removeprefix(f"{path}: ")
    one_sentence = "\n" not in message.strip() and not re.search(r"[.!?] +[A-Z]", rest) and rest.endswith(".")
    before, _, after = rest.partition("; ")
    return rest != message.strip() and one_sentence and found in before and remedy in after


def command_line(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ling_prof.cli", "report", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def busy_and_kernels(path: Path, partial: bool = False) -> dict[int, tuple[int, int]]:
    """Device -> (busy ns, kernels)."""
    gpu = load(path, partial=partial).gpu
    return {
        int(device): (
            total(union(rows["start"].to_numpy(), rows["end"].to_numpy())),
            int((rows["kind"] == "kernel").sum()),
        )
        for device, rows in gpu.groupby("device")
    }


@needs_shared
def test_every_broken_file_has_its_case():
    assert {p.name for p in BROKEN} == {p.name for p in READABLE} | REFUSED.keys()


@pytest.mark.parametrize("path", READABLE or [pytest.param(None, marks=needs_shared)], ids=lambda p: p and p.name)
def test_a_repairable_file_gives_the_exact_values(path):
    truth = ORACLE[path.name]
    (device, expected), *none = truth["devices"].items()
    assert not none
    assert busy_and_kernels(path) == {int(device): (round(expected["busy_us"] * 1000), truth["n_kernels"])}
    assert 0 < sum(s["ledger"]["busy"] for s in report(load(path))["steps"]) <= round(expected["busy_us"] * 1000)
    done = command_line(path, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["trace"]["devices"][0]["id"] == int(device)


@needs_shared
@pytest.mark.parametrize("name", REFUSED)
def test_an_unreadable_file_is_refused_in_one_sentence(name):
    path, (found, remedy) = TRACES / "broken" / name, REFUSED[name]
    with pytest.raises(TraceError) as refusal:
        report(load(path))
    assert says(str(refusal.value), path, found, remedy)
    done = command_line(path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("ling-prof: ")
    assert says(done.stderr, path, found, remedy)


@needs_shared
def test_partial_reads_the_events_before_the_cut():
    path = TRACES / "broken" / "derived_trunc.json.gz"
    text = gzip.decompress(path.read_bytes()).decode()
    whole = json.loads(text[: text.rindex("},") + 1] + "]}")["traceEvents"]
    assert sum(kernels for _, kernels in busy_and_kernels(path, partial=True).values()) == sum(
        e.get("cat") == "kernel" for e in whole
    )
    done = command_line(path, "--partial")
    assert (done.returncode, done.stderr) == (0, "")
    assert "the file ends inside its events" in done.stdout


TWO = [*launch("first", 10, 5, corr=1, call=1), *launch("second", 20, 5, corr=2, call=3)]


UNTIMED = '{"ph": "X", "cat": "kernel", "name": "n"}'


def plain(folder: Path) -> Path:
    return kineto(folder, TWO)


def content(folder: Path, data: bytes, name: str = "trace.json") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def cut_after_a_comma(folder: Path) -> Path:
    return content(folder, plain(folder).read_bytes().split(b'{"ph": "X", "cat": "kernel", "name": "second"')[0])


def cut_in_an_event(folder: Path) -> Path:
    return content(folder, plain(folder).read_bytes().split(b'"name": "second"')[0])


def cut_gzip(folder: Path) -> Path:
    return content(folder, gzip.compress(plain(folder).read_bytes())[:-30], "trace.json.gz")


def zipped(folder: Path, *names: str) -> Path:
    with zipfile.ZipFile(folder / "trace.zip", "w") as archive:
        for name in names:
            archive.write(plain(folder), name)
    return folder / "trace.zip"


def database(folder: Path, *statements: str) -> Path:
    with closing(sqlite3.connect(folder / "trace.sqlite")) as db:
        for statement in statements:
            db.execute(statement)
        db.commit()
    return folder / "trace.sqlite"


def exported(folder: Path) -> Path:
    kernels = [{"start": 10_000 * i, "end": 10_000 * i + 5_000, "corr": i, "name": f"k{i}"} for i in range(1, 999)]
    return nsys(folder, KERNEL=kernels)


def cut_sqlite(folder: Path) -> Path:
    data = exported(folder).read_bytes()
    return content(folder, data[: len(data) // 2], "trace.sqlite")


def without_columns(folder: Path) -> Path:
    return nsys(folder, KERNEL=[{"begin": 1, "finish": 2, "name": "k"}])


def ends_in(folder: Path, entry: object) -> Path:
    """A whole trace whose last entry is that, as the merging of files leaves it."""
    whole = json.loads(plain(folder).read_bytes())
    return content(folder, json.dumps(whole | {"traceEvents": [*whole["traceEvents"], entry]}).encode())


CUT = ("the JSON ends inside traceEvents", "add --partial")
REFUSALS = {
    "empty file": (lambda f: content(f, b""), "the file is empty", "re-record"),
    "only blanks": (lambda f: content(f, b" \n\n"), "the file is empty", "re-record"),
    "empty gzip": (lambda f: content(f, gzip.compress(b"")), "the file is empty", "re-record"),
    "folder": (lambda f: f, "a folder, not a trace", "name one file in it"),
    "missing file": (lambda f: f / "nothing.json", "no such file", "check the path"),
    "path below a file": (lambda f: plain(f) / "x.json", "no such file", "check the path"),
    "name too long": (lambda f: f / ("x" * 300), "cannot be opened", "check"),
    "binary junk": (lambda f: content(f, bytes(range(256))), "neither JSON nor SQLite", ".nsys-rep"),
    "text": (lambda f: content(f, b"Hello, world"), "neither JSON nor SQLite", ".nsys-rep"),
    "half a UTF-16 file": (lambda f: content(f, "{}".encode("utf-16")), "neither JSON nor SQLite", ".nsys-rep"),
    "no traceEvents": (lambda f: content(f, b'{"a": [1, 2]}'), "JSON without a traceEvents array", "torch-profiler"),
    "a brace": (lambda f: content(f, b"{"), "JSON without a traceEvents array", "torch-profiler"),
    "no event": (lambda f: content(f, b'{"traceEvents": []}'), "without any event", "record at least one step"),
    "an empty list": (lambda f: content(f, b"[]"), "without any event", "record at least one step"),
    "a list of numbers": (lambda f: content(f, b"[1, 2, 3]"), "event", "torch"),
    "another program's events": (lambda f: kineto(f, [cpu_op("x", 0, 1) | {"cat": "gc"}]), "none of them", "torch"),
    "no event has a time": (lambda f: kineto(f, [UNTIMED]), "time", "record"),
    "a number among the events": (lambda f: ends_in(f, 5), "traceEvents holds 5, which is no object", "take it out"),
    "a list among the events": (lambda f: ends_in(f, [[], 1]), "traceEvents holds [[], 1], which", "take it out"),
    "null among the events": (lambda f: ends_in(f, None), "traceEvents holds null, which", "take it out"),
    "cut after a comma": (cut_after_a_comma, *CUT),
    "cut in an event": (cut_in_an_event, *CUT),
    "cut gzip": (cut_gzip, "the gzip data ends too early", "copy the file again"),
    "damaged gzip": (lambda f: content(f, b"\x1f\x8b" + bytes(99)), "the gzip data is damaged", "copy the file again"),
    "zip of two": (lambda f: zipped(f, "a.json", "b.json"), "a zip of 2 files (a.json, b.json", "unpack it"),
    "cut zip": (lambda f: content(f, zipped(f, "a.json").read_bytes()[:-40]), "the zip is damaged", "copy the file"),
    "another SQLite": (lambda f: database(f, "CREATE TABLE songs (id)"), "did not write (tables songs)", "nsys export"),
    "empty SQLite": (lambda f: database(f, "PRAGMA user_version = 1"), "an empty SQLite file", "nsys export"),
    "cut sqlite": (cut_sqlite, "the SQLite file is damaged", "export it again"),
    "SQLite header only": (lambda f: content(f, b"SQLite format 3\0"), "SQLite file is damaged", "export it again"),
    "columns of another schema": (without_columns, "start", "nsys"),
    "cut report": (lambda f: content(f, b"NVIDIA Tegra Profiler Report\0"), "", "nsys export"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusals_are_one_sentence(case, tmp_path, capsys, monkeypatch):
    make, found, remedy = REFUSALS[case]
    path = make(tmp_path)
    with pytest.raises(TraceError) as refusal:
        report(load(path))
    assert says(str(refusal.value), path, found, remedy)
    monkeypatch.setattr(sys, "argv", ["ling-prof", "report", str(path)])
    with pytest.raises(SystemExit) as end:
        cli.main()
    shown = capsys.readouterr()
    assert (end.value.code, shown.out) == (2, "")
    assert says(shown.err, path, found, remedy)


def test_a_file_that_may_not_be_opened(tmp_path, monkeypatch):
    path, opened = plain(tmp_path), builtins.open

    def refuse(file, *rest, **more):
        if str(file) == str(path):
            raise PermissionError(13, "Permission denied", str(path))
        return opened(file, *rest, **more)

    monkeypatch.setattr(builtins, "open", refuse)
    with pytest.raises(TraceError) as refusal:
        load(path)
    assert says(str(refusal.value), path, "cannot be opened (Permission denied)", "check its permissions")


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="no /dev/fd on this system")
def test_a_pipe_is_refused_for_what_it_is(tmp_path):
    """`ling-prof report <(zcat trace.json.gz)`: the file is read twice, which a pipe does not allow."""
    end, other = os.pipe()
    os.write(other, plain(tmp_path).read_bytes())
    os.close(other)
    path = Path(f"/dev/fd/{end}")
    with pytest.raises(TraceError) as refusal:
        load(path)
    os.close(end)
    assert says(str(refusal.value), path, "pipe", "file")


READINGS = {
    "plain": plain,
    "wrong suffix": lambda f: plain(f).rename(f / "trace.sqlite"),
    "byte order mark": lambda f: content(f, b"\xef\xbb\xbf" + plain(f).read_bytes()),
    "gzip": lambda f: content(f, gzip.compress(plain(f).read_bytes())),
    "gzip in two members": lambda f: content(f, b"".join(map(gzip.compress, plain(f).read_bytes().partition(b"[")))),
    "bytes after the gzip": lambda f: content(f, gzip.compress(plain(f).read_bytes()) + b"\0\0junk"),
    "zip of one": lambda f: zipped(f, "a.json"),
    "a bare list": lambda f: content(f, _bare(f)),
    "trailing comma": lambda f: content(f, plain(f).read_bytes().replace(b"],\n", b",],\n")),
    "NaN": lambda f: kineto(f, [*TWO, '{"ph": "X", "cat": "cpu_op", "name": "n", "ts": NaN, "dur": Infinity}']),
    "negative duration": lambda f: kineto(f, [*TWO, kernel("n", 50, -3, 3)]),
    "no times": lambda f: kineto(f, [*TWO, UNTIMED]),
    "null arguments": lambda f: kineto(
        f, [*TWO, '{"ph": "X", "cat": "cpu_op", "name": "n", "ts": 1, "dur": 1, "args": null}']
    ),
    "an event that is no object": lambda f: kineto(f, [*TWO[:2], "17", *TWO[2:]]),
}


def _bare(folder: Path) -> bytes:
    return json.dumps(json.loads(plain(folder).read_bytes())["traceEvents"]).encode()


@pytest.mark.parametrize("case", READINGS)
def test_odd_but_whole_files_are_read(case, tmp_path):
    assert busy_and_kernels(READINGS[case](tmp_path)) == {0: (10_000, 2)}


@pytest.mark.parametrize("cut", [cut_after_a_comma, cut_in_an_event])
def test_partial_reads_what_is_there(cut, tmp_path):
    path = cut(tmp_path)
    assert busy_and_kernels(path, partial=True) == {0: (5_000, 1)}
    assert "the file ends inside its events" in " ".join(load(path, partial=True).notes)


@pytest.mark.parametrize("wrap", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_sqlite_is_read_through_gzip(wrap, tmp_path):
    path = content(tmp_path, wrap(exported(tmp_path).read_bytes()), "copy")
    assert busy_and_kernels(path) == {0: (998 * 5_000, 998)}


NEIGHBOURS = {
    "another first key": '{"id": 9, "ph": "X", "cat": "kernel", "name": "n", "ts": 30, "dur": 5, '
    '"args": {"device": 0}}',
    "nested arguments": '{"ph": "X", "cat": "kernel", "name": "n", "ts": 30, "dur": 5, '
    '"args": {"device": 0, "x": [{}, {"name": 1}]}}',
}


@pytest.mark.parametrize("neighbour", NEIGHBOURS)
@pytest.mark.parametrize("batch", [8 << 20, 300])
def test_a_damaged_event_costs_no_other(neighbour, batch, tmp_path, monkeypatch):
    monkeypatch.setattr(events, "BATCH", batch)
    damaged = r'{"ph": "X", "cat": "cpu_op", "name": "C:\Users", "pid": 1, "tid": 1, "ts": 1, "dur": 1}'
    path = kineto(tmp_path, [*TWO, NEIGHBOURS[neighbour], damaged])
    assert busy_and_kernels(path) == {0: (15_000, 3)}
    assert load(path).notes == ("1 damaged events were repaired",)


def test_text_after_the_events_is_counted(tmp_path):
    whole = plain(tmp_path).read_bytes()
    assert "bytes after the events" in " ".join(load(content(tmp_path, whole + whole, "two.json")).notes)


def test_partial_reads_a_cut_gzip(tmp_path):
    path = cut_gzip(tmp_path)
    assert busy_and_kernels(path, partial=True)[0][1] > 0


@pytest.mark.parametrize("end", [2**63 - 1, 5], ids=["centuries later", "before its start"])
def test_an_export_with_an_impossible_time_says_what_it_left_out(end, tmp_path):
    rows = [{"start": 100 * i, "end": 100 * i + 50, "corr": i, "name": "k"} for i in range(1, 9)]
    trace = load(nsys(tmp_path, KERNEL=[*rows, {"start": 1_000, "end": end, "corr": 9, "name": "k"}]))
    assert len(trace.gpu) == 8
    assert trace.notes == ("1 records without a valid time are left out",)


def test_a_full_temporary_folder_says_what_to_free(tmp_path, monkeypatch):
    def full(_):
        raise OSError(28, "No space left on device")

    path = content(tmp_path, gzip.compress(exported(tmp_path).read_bytes()), "copy")
    monkeypatch.setattr("ling_prof.load.nsys.pieces", full)
    with pytest.raises(TraceError, match=r"No space left on device.*TMPDIR"):
        load(path)

"""The figures of a benchmark, its file, and the comparison of two, against numbers worked out by hand."""

import io
import json
import math
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from test_cli import cli, process, refused
from test_lock import LOCK

from ling_prof import bench_compare
from ling_prof.bench_report import load, save, summarize
from ling_prof.errors import UserError
from ling_prof.plain_file import check_writable
from ling_prof.render import bench as shown

RUNS = [
    {"ttft_ms": 10.0, "tpot_ms": 2.0, "step_ms": [1.0, 3.0], "tokens": 3},
    {"ttft_ms": 14.0, "tpot_ms": 3.0, "step_ms": [2.0, 4.0], "tokens": 3},
]
MANY = RUNS * 3  # enough to judge by


def made(scale: float = 1.0, runs: list = RUNS, **lock) -> dict:
    """A benchmark whose times are those of `runs` times `scale`; its floor is 1 GB at 1000 GB/s: 1 ms a token."""
    runs = [
        {**run, "tpot_ms": run["tpot_ms"] * scale, "step_ms": [step * scale for step in run["step_ms"]]} for run in runs
    ]
    parts = [
        {"part": "experts", "formula": "8 x 3 x 1536 x 512 x 2", "bytes": 750_000_000},
        {"part": "KV cache", "formula": "8192 x 576 x 2", "bytes": 250_000_000},
    ]
    summary = summarize(runs)
    tpot = summary["tpot_ms"]["mean"]
    floor = {"bandwidth_gb_s": 1000.0, "bandwidth_source": "data sheet", "bytes_per_token": 1e9, "parts": parts}
    floor |= {"floor_ms": 1.0, "share_of_floor": 1 / tpot, "achieved_gb_s": 1e3 / tpot}
    return {
        "schema": "ling-prof.bench/1",
        "command": "ling-prof bench --model ling-3.0-tiny",
        "date": "2026-12-01T10:00:00+00:00",
        "lock": {**LOCK.to_dict(), **lock},
        "clocks": {"sm_mhz": 1980, "mem_mhz": 3201},
        "runs": runs,
        "summary": summary,
        "floor": floor,
        "notes": ["random weights"],
    }


def compare(a: dict, b: dict, *args, **kwargs) -> dict:
    return bench_compare.compare(*(bench_compare.of_bench(bench) for bench in (a, b)), *args, **kwargs)


@pytest.fixture
def saved(tmp_path):
    """Writes a benchmark and gives its path."""

    def write(name: str, bench: dict):
        save(bench, tmp_path / name)
        return tmp_path / name

    return write


def text(part) -> str:
    """What the terminal shows, with single spaces."""
    page = io.StringIO()
    Console(width=160, file=page).print(part)
    return " ".join(page.getvalue().split())


def test_the_summary_is_what_a_hand_would_work_out():
    assert summarize(RUNS) == {
        "ttft_ms": {"mean": 12.0, "low": 10.0, "high": 14.0},
        # steps 1 2 3 4: median 2.5; p99 at rank 0.99 x 3 = 2.97, so 3.97
        "tpot_ms": {"mean": 2.5, "low": 2.0, "high": 3.0, "median": 2.5, "p99": pytest.approx(3.97)},
        "tokens_per_s": 400.0,
        "runs": 2,
    }


def test_no_run_has_no_summary():
    with pytest.raises(UserError, match="no run"):
        summarize([])


def test_a_benchmark_survives_its_file_with_keys_of_a_later_version(saved):
    bench = made() | {"added_later": 1}
    path = saved("a.json", bench)
    assert load(path) == bench
    assert [p.name for p in path.parent.iterdir()] == ["a.json"]


def test_times_between_tokens_are_those_of_each_token():
    dice = np.random.default_rng(0)
    for n in range(2, 40):
        steps, tokens = dice.uniform(1, 9, n), dice.integers(1, 6, n)
        run = {"ttft_ms": 1.0, "tpot_ms": 1.0, "step_ms": [*steps], "step_tokens": [*tokens], "tokens": 99}
        times = np.repeat(steps / tokens, tokens)
        told = {"mean": times.mean(), "median": np.median(times), "p99": np.quantile(times, 0.99)}
        assert summarize([run])["itl_ms"] == pytest.approx(told, rel=1e-12)


def test_a_step_may_hold_any_number_of_tokens():
    run = {"ttft_ms": 1.0, "tpot_ms": 1.0, "step_ms": [1.0, 1.0], "step_tokens": [10**9, 1], "tokens": 10**9 + 2}
    assert summarize([run])["itl_ms"] == pytest.approx({"mean": 2e-9, "median": 1e-9, "p99": 1e-9})


def without(*keys: str) -> dict:
    bench = place = deepcopy(made())
    for key in keys[:-1]:
        place = place[int(key)] if isinstance(place, list) else place[key]
    del place[keys[-1]]
    return bench


def altered(**changes) -> dict:
    return made() | changes


EIGHT = {"mean": 8.0, "low": 8.0, "high": 8.0, "median": 8.0, "p99": 8.0}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("nonsense", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('{"schema": NaN}', "not JSON"),
        ("[]", "found no object, not ling-prof.bench/1"),
        ("{}", "found no schema"),
        (altered(schema="ling-prof.report/1"), "found ling-prof.report/1"),
        (without("summary"), "`summary`"),
        (without("runs", "1", "step_ms"), "`step_ms` - at `$.runs[1]`"),
        (without("lock", "torch"), "lacks torch"),
        (altered(runs=[]), "length >= 1"),
        (altered(runs=[RUNS[0] | {"tpot_ms": 0}]), "> 1e-12"),
        (altered(runs=[RUNS[0] | {"tpot_ms": 1.7e308}]), "< 1000000000000.0"),
        (altered(runs=RUNS[:1]), "its summary is not that of its runs"),
        (altered(summary=made()["summary"] | {"tokens_per_s": 1.0}), "its summary is not that of its runs"),
        (altered(summary=made()["summary"] | {"accept_length": EIGHT}), "its summary is not that of its runs"),
        (altered(summary=made()["summary"] | {"itl_ms": EIGHT}), "its summary is not that of its runs"),
        (altered(summary=made()["summary"] | {"ttft_ms": EIGHT}), "its summary is not that of its runs"),
        (altered(runs=[RUNS[0] | {"accept_length": 3.0}] * 2), "its summary is not that of its runs"),
        (altered(runs=[RUNS[0] | {"tpot_ms": 2.5}]), "run 1 has a tpot_ms that is not that of its steps"),
        (altered(runs=[RUNS[0], RUNS[1] | {"step_tokens": [1]}]), "run 2 has not as many step_tokens as step_ms"),
        (altered(runs=[RUNS[0] | {"step_tokens": [10**9, 1]}]), "3 tokens, of which 1000000001 came after the first"),
        *(
            (altered(runs=[RUNS[0] | {"step_tokens": [much, 1]}]), "$.runs[0].step_tokens[0]")
            for much in (10**10, 10**12, 10**30)
        ),
        (altered(runs=[RUNS[0] | {"tokens": "three"}]), "$.runs[0].tokens"),
        (altered(floor=made()["floor"] | {"bytes_per_token": 2e9}), "add up to 1000000000 bytes"),
    ],
)
def test_a_file_that_is_no_benchmark_is_refused(tmp_path, content, words):
    path = tmp_path / "a.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(UserError) as error:
        load(path)
    assert words in str(error.value)
    assert str(path) in str(error.value)


def test_a_place_that_cannot_be_written_is_refused_before_the_run(tmp_path):
    with pytest.raises(UserError, match="its folder does not exist"):
        check_writable(tmp_path / "none" / "a.json")
    with pytest.raises(UserError, match="no regular file"):
        check_writable(tmp_path)


def test_a_write_that_fails_leaves_nothing(tmp_path):
    with pytest.raises(UserError, match="cannot be written"):
        save(made(), tmp_path / ("x" * 300))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("bad", ["\ud800", math.nan, 10**400], ids=["half a character", "NaN", "too large"])
def test_what_could_not_be_read_again_is_not_written(tmp_path, bad):
    path = tmp_path / "a.json"
    path.write_text("before")
    with pytest.raises(UserError) as error:
        save(made() | {"clocks": {"sm_mhz": bad, "mem_mhz": None}}, path)
    assert str(error.value).startswith(f"{path} ")
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("a.json", "before")]


@pytest.mark.parametrize("reader", ["read_bytes", "read_text"])
def test_a_file_larger_than_the_memory_is_refused(saved, monkeypatch, reader):
    def full(*_):
        raise MemoryError

    path = saved("a.json", made())
    monkeypatch.setattr(Path, reader, full)
    with pytest.raises(UserError, match=r"a\.json is too large for the memory of this machine; "):
        bench_compare.measured(path)


def test_a_comparison_is_of_mean_times():
    found = compare(made(runs=MANY), made(0.5, MANY))
    assert (found["schema"], found["ratio"]) == ("ling-prof.bench-compare/1", 0.5)
    assert (found["change_us"], found["change_pct"]) == (-1250.0, -50.0)
    assert (found["ranges_overlap"], found["shown"], found["warnings"]) == (False, True, [])
    assert found["verdict"].startswith("B is faster")
    assert compare(made(runs=MANY), made(2, MANY))["verdict"].startswith("B is slower")
    assert found["a"] == {
        "name": "A",
        "target": "engine",
        "passes": [],
        "runs": 6,
        "tpot_ms": made(runs=MANY)["summary"]["tpot_ms"],
        "accept_length": None,
        "step_ms": {"mean": 2.5, "low": 2.0, "high": 3.0},
        "peak_tokens_per_s": None,
    }


@pytest.mark.parametrize(
    ("scale", "overlap"), [(1.0, True), (1.5, True), (1.51, False), (2 / 3 - 0.01, False), (0.9, True)]
)
def test_ranges_that_touch_show_no_difference(scale, overlap):
    found = compare(made(runs=MANY), made(scale, MANY))  # [2, 3] against [2, 3] x scale
    assert (found["ranges_overlap"], found["shown"]) == (overlap, not overlap)
    assert ("no difference shown beyond the spread" in found["verdict"]) == overlap


@pytest.mark.parametrize("few", [1, 4])
def test_few_runs_show_nothing(few):
    for pair in ((made(runs=MANY[:few]), made(0.5, MANY)), (made(0.5, MANY), made(runs=MANY[:few]))):
        found = compare(*pair)
        assert (found["ranges_overlap"], found["shown"]) == (False, False)
        assert "--runs 5" in found["verdict"]


def test_unlike_measurements_are_compared_only_by_force():
    a, b = made(), made(0.5, torch="2.13")
    with pytest.raises(UserError, match=r"A and B differ in torch \(2.11 / 2.13\); compare anyway with --force"):
        compare(a, b)
    assert compare(a, b, force=True)["warnings"] == ["torch differs: 2.11 in A, 2.13 in B"]
    assert compare(a, made(0.5, passes=["pdl"]))["b"]["passes"] == ["pdl"]


def test_the_text_shows_the_figures():
    page = text(shown.render(made(passes=["pdl"])))
    for figure in (
        "ling-3.0-tiny, bf16, 8192 tokens in, 1024 out, greedy",
        "NVIDIA H200, sm at 1980 MHz, mem at 3201 MHz",
        "driver 570.86, cuda 12.8, torch 2.11, triton 3.5, python 3.11.7, ling-prof 0.1.0",
        "engine, passes: pdl",
        "Time over 2 runs",
        "12.000 ms",
        "2.500 ms 2.000 ms 3.000 ms 2.500 ms 3.970 ms",
        "400.0 333.3 500.0",
        "750.000 MB 75.0 8 x 3 x 1536 x 512 x 2",
        "1.000 GB 100.0",
        "floor 1.000 ms a token at 1000 GB/s (data sheet); achieved 400 GB/s, 40.0 % of what the floor allows",
        "note: random weights",
    ):
        assert figure in page


def test_without_a_bandwidth_there_is_no_floor(saved):
    nothing = {"bandwidth_gb_s": None, "floor_ms": None, "share_of_floor": None, "bandwidth_source": "unknown on a CPU"}
    bench = altered(floor=made()["floor"] | nothing, clocks={})
    page = text(shown.render(load(saved("a.json", bench))))
    assert "achieved 400 GB/s; no floor: unknown on a CPU; give it with --bandwidth GB/s" in page


def test_bench_compare_on_the_command_line(saved):
    a, b = saved("a.json", made(runs=MANY)), saved("b.json", made(0.5, MANY, passes=["pdl"]))
    page = process("bench", "compare", str(a), str(b)).stdout
    for figure in ("2.500 ms", "1.250 ms", "0.5000 of A's time per token (-1.250 ms, -50.00 %)", "B is faster", "pdl"):
        assert figure in page
    found = json.loads(cli("bench", "compare", str(a), str(b), "--json").stdout)
    assert found == compare(made(runs=MANY), made(0.5, MANY, passes=["pdl"]), names=(str(a), str(b)))


def test_bench_compare_refuses_and_can_be_forced(saved):
    a, b = str(saved("a.json", made())), str(saved("b.json", made(isl=1024)))
    assert f"{a} and {b} differ in isl (8192 / 1024); compare anyway with --force." in refused("bench", "compare", a, b)
    forced = cli("bench", "compare", a, b, "--force")
    assert forced.returncode == 0
    assert "warning: isl differs: 8192 in" in forced.stdout
    assert "cannot be read" in refused("bench", "compare", a, "nowhere.json")

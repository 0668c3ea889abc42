"""An ablation's file and its text, and the store that an ablation goes on from."""

import io
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from copy import deepcopy
from pathlib import Path

import pytest
from rich.console import Console
from test_lock import LOCK

from ling_prof.ablation_report import load, save
from ling_prof.errors import UserError
from ling_prof.render.ablation import render
from optim.store import Store

ROOT = Path(__file__).resolve().parents[1]
LOWERS = [
    {"what": "kernels", "before": 613.0, "after": 9.0},
    {"what": "sync_stall", "before": 253.0, "after": 0.0},
]
NO_TIME = {"tpot_ms": None, "low": None, "high": None}


def tpot(ms: float) -> dict:
    return {"tpot_ms": ms, "low": 0.99 * ms, "high": 1.01 * ms}


def row(ms: float, *passes: str) -> dict:
    return {"passes": list(passes), **tpot(ms), "step_ms": 2 * ms, "accept_length": 2.0, "gate": "256 tokens equal"}


def gain(name: str, us: float, **changes) -> dict:
    found = {"pass": name, "gain_us": us, "gain_pct": us / 40, "low": us - 10, "high": us + 10, "method": "shapley"}
    found |= {"predicted_us": None, "predicted_low": None, "predicted_high": None, "exact": True, "gate": "passed"}
    return found | {"took_effect": f"{name} is on", "error_us": None} | changes


def rung(added: str, ms: float, **changes) -> dict:
    return {"added": added, **tpot(ms), "trace": None, "profiled_ratio": None, "lowers": []} | changes


def gate(passes: list[str], ok: bool = True, **changes) -> dict:
    nothing = dict.fromkeys(("first_difference", "top1_agreement", "kl_mean", "kl_max", "positions"))
    return {"passes": passes, "verdict": "256 tokens equal", "ok": ok, "tokens": 256, **nothing} | changes


def made(**changes) -> dict:
    """Of 4 ms, pdl saves 0.5 and bf16_gate with bf16_head 1.5; 0.5 of it, and of 2 in all, they save only together."""
    both = ["bf16_gate", "bf16_head"]
    kernel = {"kernel": "gemv", "passes": ["gemv"], "cold_us": 12.5, "low": 12.0, "high": 13.0}
    near = {"top1_agreement": 0.9975, "kl_mean": 2.5e-5, "kl_max": 3e-3, "positions": 4096, "verdict": "near enough"}
    return {
        "schema": "ling-prof.ablation/1",
        "command": "ling-prof ablate --model ling-3.0-tiny",
        "date": "2026-12-01T10:00:00+00:00",
        "lock": LOCK.to_dict(),
        "target": "engine",
        "design": "factorial",
        "clocks": {"sm_mhz": 1980, "mem_mhz": 3201},
        "noise_floor_pct": 0.2,
        "noise_high_pct": 0.3,
        "windows": 30,
        "steps": 64,
        "baseline": tpot(4.0),
        "all_on": tpot(2.0),
        "rows": [row(4.0), row(3.75, "pdl"), row(2.75, *both), row(2.0, "pdl", *both)],
        "attribution": [gain("pdl", 500.0), gain("bf16_gate+bf16_head", 1500.0, exact=False)],
        "interactions": [{"a": "pdl", "b": "bf16_gate+bf16_head", "us": 500.0, "low": 490.0, "high": 510.0}],
        "ladder": [
            rung("", 4.0, trace="rung0.json.gz", profiled_ratio=1.25),
            rung("pdl", 3.75),
            rung("bf16_gate+bf16_head", 2.0, lowers=LOWERS),
        ],
        "gates": [gate(["pdl"]), gate(both, **near)],
        "blocked": [{"pass": "cuda_graph", "reason": "there is no GPU"}],
        "kernels": [kernel | {"bytes": 50_000_000, "gb_s": 4000.0}],
        "notes": ["random weights"],
    } | changes


def failed() -> dict:
    """pdl's gate failed, also beside the others."""
    data = made(all_on=NO_TIME, design="ladder", interactions=[])
    for one in data["rows"]:
        if "pdl" in one["passes"]:
            one |= NO_TIME | {"step_ms": None, "accept_length": None, "gate": "token 17 differs"}
    data["attribution"][0] |= {"gain_us": None, "gain_pct": None, "low": None, "high": None, "gate": "token 17 differs"}
    data["gates"][0] |= {"ok": False, "verdict": "token 17 differs", "first_difference": 17}
    data["ladder"][1] |= NO_TIME
    return data


def text(data: dict) -> str:
    """What the terminal shows, with single spaces."""
    page = io.StringIO()
    Console(width=200, file=page).print(render(data))
    return " ".join(page.getvalue().split())


@pytest.mark.parametrize("data", [made(), failed(), made() | {"added_later": 1}])
def test_an_ablation_survives_its_file(tmp_path, data):
    save(data, tmp_path / "a.json")
    assert load(tmp_path / "a.json") == data
    assert os.listdir(tmp_path) == ["a.json"]


def put(where: str, value) -> dict:
    """`made` with one place set: 'rows.1.low'."""
    data = place = deepcopy(made())
    *way, last = (int(key) if key.isdigit() else key for key in where.split("."))
    for key in way:
        place = place[key]
    place[last] = value
    return data


def lacking(key: str) -> dict:
    return {k: v for k, v in made().items() if k != key}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("nonsense", "not JSON"),
        ("[]", "found no object, not ling-prof.ablation/1"),
        (
            made(schema="ling-prof.bench/1"),
            "found ling-prof.bench/1, not ling-prof.ablation/1; measure again with ling-prof ablate.",
        ),
        *((lacking(key), f"`{key}`") for key in made() if key != "schema"),
        (put("lock.torch", 2), "its lock cannot be read"),
        (put("target", "vllm"), "'vllm' - at `$.target`"),
        (put("attribution.1.method", "guessed"), "'guessed' - at `$.attribution[1].method`"),
        (put("noise_floor_pct", -1.0), "`float` >= 0.0"),
        (put("gates.1.top1_agreement", 1.5), "`float` <= 1.0"),
        (put("rows.0.tpot_ms", 0.0), "`float` > 1e-12"),
        (put("rows", []), "length >= 1"),
        (put("rows.0.passes", ["pdl"]), "not exactly one of its rows has no passes"),
        (put("rows.1.passes", []), "not exactly one of its rows has no passes"),
        (put("baseline", tpot(4.1)), "its baseline is not the row of no passes"),
        (put("baseline.high", 4.5), "its baseline is not the row of no passes"),
        (put("all_on", tpot(2.75)), "its all_on is not the row of pdl + bf16_gate + bf16_head"),
        (put("all_on", NO_TIME), "its all_on is not the row of pdl + bf16_gate + bf16_head"),
        (put("rows.1.low", 3.8), "rows[1]: tpot_ms 3.75 is not within low 3.8 and high"),
        (put("rows.1.high", None), "rows[1]: tpot_ms 3.75 is not within"),
        (put("attribution.0.high", 499.0), "attribution[0]: gain_us 500.0 is not within"),
        (put("attribution.1.predicted_us", 9.0), "attribution[1]: predicted_us 9.0 is not within predicted_low None"),
        (put("interactions.0.low", 501.0), "interactions[0]: us 500.0 is not within"),
        (put("ladder.2.low", 2.001), "ladder[2]: tpot_ms 2.0 is not within"),
        (put("kernels.0.low", 12.6), "kernels[0]: cold_us 12.5 is not within"),
        (put("attribution.0.gain_us", 500.1), "its gains add up to 2000.1 us, baseline minus all_on is 2000 us"),
        (put("attribution.0.method", "ladder") | {"attribution": [gain("pdl", 500.0)]}, "add up to 500 us"),
    ],
)
def test_a_file_that_is_no_ablation_is_refused(tmp_path, content, words):
    path = tmp_path / "a.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(UserError) as error:
        load(path)
    assert words in str(error.value)
    assert str(path) in str(error.value)


def test_a_baseline_without_time_is_refused(tmp_path):
    data = put("baseline", NO_TIME)
    data["rows"][0] |= NO_TIME
    save(data, tmp_path / "a.json")
    with pytest.raises(UserError, match=r"a\.json: its baseline has no time; measure again with ling-prof ablate\."):
        load(tmp_path / "a.json")


def test_gains_of_leave_one_out_need_not_add_up(tmp_path):
    data = made(design="leave-one-out", attribution=[gain("pdl", 750.0, method="leave-one-out")])
    save(data, tmp_path / "a.json")
    assert load(tmp_path / "a.json") == data


def test_the_text_shows_the_figures():
    page = text(made())
    for figure in (
        "ling-3.0-tiny, bf16, 8192 tokens in, 1024 out, greedy",
        "NVIDIA H200, sm at 1980 MHz, mem at 3201 MHz",
        "2026-12-01T10:00:00+00:00: ling-prof ablate --model ling-3.0-tiny",
        "TPOT 4.000 ms -> 2.000 ms all on, 2.000x, 250.0 -> 500.0 tokens/s",
        "factorial over 30 windows of 64 steps",
        "pdl yes +500.0 us +12.50 490.0 us to 510.0 us shapley passed",
        "bf16_gate+bf16_head no +1.500 ms +37.50 1.490 ms to 1.510 ms shapley passed",
        "baseline 4.000 ms 3.960 ms to 4.040 ms 100.0 - rung0.json.gz 1.250",
        "+ bf16_gate+bf16_head 2.000 ms 1.980 ms to 2.020 ms 50.0 kernels 613.0 -> 9.0; sync_stall 253.0 -> 0.0 us - -",
        "pdl bf16_gate+bf16_head +500.0 us 490.0 us to 510.0 us",
        "bf16_gate, bf16_head near enough 99.75 % 2.50e-05 3.00e-03",
        "pdl 256 tokens equal - - -",
        "gemv gemv 12.5 us 12.0 us to 13.0 us 50.000 MB 4000",
        "A/A noise floor: 0.20 % of TPOT, by chance up to 0.30 %",
        "cuda_graph there is no GPU",
        "note: random weights",
    ):
        assert figure in page
    for absent in ("warning", "within noise", "predicted", "FAILED", "orders drawn"):
        assert absent not in page


def test_noise_is_spoken_of():
    page = text(made(noise_floor_pct=0.5))
    assert "warning: the noise floor is 0.5 % or more" in page
    loud = text(made(noise_floor_pct=13.0))
    assert "shapley passed within noise bf16_gate" in loud  # 12.5 % is, 37.5 % is not
    assert loud.count("within noise") == 1
    slower = put("attribution.0.gain_pct", -12.9) | {"noise_floor_pct": 13.0}
    assert text(slower).count("within noise") == 1


def test_a_gain_is_held_against_the_pair_it_resembles():
    """All on takes half the time: 30 % of it are 15 % of the baseline."""
    data = made(all_on_noise_pct=30.0)
    assert "by chance up to 0.30 %; with all on 30.00 %" in text(data)
    assert "within noise" not in text(data)  # Shapley values: the baseline's pair
    pdl, bf16 = data["attribution"]
    pdl["method"] = bf16["method"] = "ladder"
    assert "within noise" not in text(data)  # the first rung has the baseline in it, the second gains 37.5 %
    bf16["gain_pct"] = 14.0
    assert text(data).count("within noise") == 1
    pdl["method"] = "leave-one-out"
    assert text(data).count("within noise") == 2
    data["all_on_noise_pct"] = None
    assert "within noise" not in text(data)
    data["all_on_noise_pct"], data["noise_floor_pct"] = 0.0, 13.0
    assert text(data | {"attribution": [bf16]}).count("within noise") == 0


def test_predictions_and_sampling_errors_are_shown_where_there_are_any():
    data = made()
    data["attribution"][0] |= {"predicted_us": 480.0, "predicted_low": 400.0, "predicted_high": 600.0}
    data["attribution"][1] |= {"method": "sampled", "error_us": 7.5}
    page = text(data)
    assert "shapley +480.0 us 400.0 us to 600.0 us passed" in page
    assert "What showed that each was on pass proof" in page
    assert "sampled - - passed +/- 7.5 us by the orders drawn" in page


def test_a_failed_pass_shows_no_speed():
    page = text(failed())
    assert "TPOT 4.000 ms -> no time with all on: its gate failed" in page
    assert "pdl yes - - - shapley token 17 differs" in page
    assert "pdl FAILED: token 17 differs" in page
    assert "+ pdl - - - - - -" in page
    assert "Strongest interactions" not in page


def test_the_five_strongest_interactions_are_shown():
    us = {"a": 1.0, "b": -6.0, "c": 3.0, "d": -4.0, "e": 5.0, "f": 2.0, "g": None}
    rows = [{"a": name, "b": "z", "us": x, "low": x and x - 1, "high": x and x + 1} for name, x in us.items()]
    page = text(made(interactions=rows)).split("Strongest interactions, 5 of 6")[1].split("Gates")[0]
    assert [word for word in page.split() if word in us and word != "a"] == ["b", "e", "d", "c", "f"]
    assert "b z -6.0 us -7.0 us to -5.0 us" in page


KEY = {"lock": {"torch": "2.11", "isl": 8192}, "players": [["pdl"], ["bf16_gate", "bf16_head"]], "windows": 30}


@pytest.fixture
def place(tmp_path):
    return tmp_path / "ablation.db"


def test_a_store_goes_on_where_it_ended(place):
    with Store(place, KEY) as store:
        assert (store.windows(), store.window(0), store.get("gate", "pdl")) == ([], None, None)
        store.finish(10, {"": 4e6, "pdl": 3.25e6})
        store.finish(2, {"": 4.5e6})
        store.put("gate", "pdl", {"ok": True, "tokens": 256})
    with Store(place, {**KEY, "players": [("pdl",), ("bf16_gate", "bf16_head")]}) as store:  # a tuple is a list in JSON
        assert store.windows() == [2, 10]
        assert store.window(10) == {"": 4e6, "pdl": 3.25e6}
        assert store.window(3) is None
        assert store.get("gate", "pdl") == {"ok": True, "tokens": 256}
        assert store.get("trace", "pdl") is None


def test_what_is_finished_stays_as_it_is_unless_it_is_replaced(place):
    with Store(place, KEY) as store:
        store.put("gate", "pdl", 1.0)
        store.finish(0, {"": 1.0})
        with pytest.raises(ValueError, match="gate pdl is finished already"):
            store.put("gate", "pdl", 2.0)
        with pytest.raises(ValueError, match="not JSON compliant"):
            store.finish(1, {"": float("nan")})
        store.finish(0, {"": 1.5, "pdl": 1.0})
        store.replace("trace", "pdl", 3.0)
        assert (store.windows(), store.window(0)) == ([0], {"": 1.5, "pdl": 1.0})
        assert (store.get("gate", "pdl"), store.get("trace", "pdl")) == (1.0, 3.0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"windows": 31}, "differs in windows (30 there, 31 now)"),
        ({"lock": {"torch": "2.13", "isl": 8192}}, 'differs in lock.torch ("2.11" there, "2.13" now)'),
        ({"lock": {"torch": "2.11"}, "windows": 9}, "lock.isl (8192 there, null now), windows (30 there, 9 now)"),
        ({"players": [[name * 30] for name in "ab"]}, "differs in players;"),
    ],
)
def test_a_store_of_another_ablation_is_refused(place, changes, words):
    with Store(place, KEY) as store:
        store.finish(0, {"": 1.0})
    before = place.read_bytes()
    with pytest.raises(UserError) as error:
        Store(place, {**KEY, **changes})
    assert words in str(error.value)
    assert str(error.value).startswith(f"{place} holds another ablation")
    assert str(error.value).endswith("give another folder with --output, or delete it.")
    assert place.read_bytes() == before


def foreign(path: Path, statement: str) -> None:
    with sqlite3.connect(path) as db:
        db.execute(statement)
    db.close()


@pytest.mark.parametrize(
    ("fill", "words"),
    [
        (lambda path: path.write_text("nonsense"), "it is no ablation store; give another folder with --output."),
        (lambda path: path.write_bytes(random.Random(0).randbytes(10_000)), "it is no ablation store"),
        (lambda path: foreign(path, "CREATE TABLE mine (x)"), "it is no ablation store"),
        (lambda path: foreign(path, "CREATE TABLE finished (kind, name, value)"), "it is no ablation store"),
        (lambda path: foreign(path, "CREATE TABLE finished (x)"), "SQLite cannot use it (no such column"),
    ],
)
def test_a_file_of_something_else_is_refused_and_left_alone(place, fill, words):
    fill(place)
    before = place.read_bytes()
    with pytest.raises(UserError) as error:
        Store(place, KEY)
    assert words in str(error.value)
    assert str(error.value).startswith(f"{place}: ")
    assert place.read_bytes() == before
    assert os.listdir(place.parent) == [place.name]


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        ("window", "0", "{"),
        ("window", "0", "[1]"),
        ("window", "0", '{"": -1.0}'),
        ("window", "zero", "{}"),
        ("window", "²", "{}"),
        ("key", "", "{"),
        ("key", "", "[]"),
        ("void", "pdl", "3"),
    ],
)
def test_a_damaged_row_is_named(place, kind, name, value):
    with Store(place, KEY) as store:
        store.finish(1, {"": 1.0})
    with sqlite3.connect(place) as db:
        db.execute("INSERT OR REPLACE INTO finished VALUES (?, ?, ?)", (kind, name, value))
    db.close()

    def read():
        with Store(place, KEY) as store:
            return store.windows(), store.get(kind, name)

    with pytest.raises(UserError, match=rf"ablation\.db is damaged: its {kind} .* is not what was kept; give another"):
        read()


def test_a_place_that_cannot_be_written_is_refused(place, monkeypatch):
    with pytest.raises(UserError, match="its folder does not exist"):
        Store(place / "deeper.db", KEY)
    with pytest.raises(UserError, match="SQLite cannot use it"):
        Store(place.with_name("x" * 300), KEY)
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write anywhere
    with pytest.raises(UserError, match=r"ablation\.db cannot be written: its folder is read-only"):
        Store(place, KEY)
    assert os.listdir(place.parent) == []


def test_a_store_is_for_one_run_at_a_time(place):
    with Store(place, KEY) as store:
        store.finish(0, {"": 1.0})
        other = f"from optim.store import Store; from pathlib import Path; Store(Path({str(place)!r}), {KEY!r})"
        done = subprocess.run([sys.executable, "-c", other], cwd=ROOT, capture_output=True, text=True, timeout=60)
        assert "another run is using it; wait until it has ended, or give another folder" in done.stderr
        store.finish(1, {"": 1.0})
    with Store(place, KEY) as store:
        assert store.windows() == [0, 1]


ENDLESS = """
import sys
from pathlib import Path
from optim.store import Store
with Store(Path(sys.argv[1]), {"windows": 30}) as store:
    number = len(store.windows())
    while True:
        store.finish(number, {str(i): number * 1000.0 + i + 1 for i in range(200)})
        print(number, flush=True)
        number += 1
"""


def test_a_killed_run_loses_at_most_its_window(place):
    dice, told = random.Random(1), -1
    for _ in range(5):
        run = subprocess.Popen([sys.executable, "-c", ENDLESS, place], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        first = run.stdout.readline()
        assert first == f"{told + 1}\n" or first == f"{told + 2}\n"  # the kill may fall between keeping and telling
        time.sleep(dice.uniform(0, 0.2))
        run.send_signal(signal.SIGKILL)
        told = int((first + run.stdout.read()).split("\n")[-2])
        assert run.wait() == -signal.SIGKILL
    with Store(place, {"windows": 30}) as store:
        there = store.windows()
        assert there == list(range(len(there)))
        assert len(there) - 1 in (told, told + 1)
        for number in there:
            assert store.window(number) == {str(i): number * 1000.0 + i + 1 for i in range(200)}


def test_these_modules_bring_neither_torch_nor_triton():
    modules = "optim.designs, optim.store, ling_prof.ablation_report, ling_prof.render.ablation"
    program = f"import sys, {modules}; assert not {{'torch', 'triton'}} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, timeout=60)

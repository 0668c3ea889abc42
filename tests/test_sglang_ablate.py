"""The ablation of a SGLang server, with a program in its place that knows its own answers."""

import json
import os
import sqlite3
import sys
from pathlib import Path

import pytest
from conftest import BUNDLED
from test_cli import refused
from typer.testing import CliRunner

from ling_prof import UserError, ablation_report, plain_file
from ling_prof import cli as command_line
from ling_prof.render.ablation import render
from optim.sglang import ablate, plan, rounds, workers
from optim.sglang.plan import Plan

WORKER = Path(__file__).parent / "sglang_worker.py"
TRACE = BUNDLED / "h200_qwen3_graph_stacks.pt.trace.json.gz"
GAINS = {"pdl": 100_000, "bf16_gate": 30_000, "moe_align_pairs": 20_000}


@pytest.fixture(autouse=True)
def short(monkeypatch, tmp_path):
    monkeypatch.setattr(plan, "TOKENS", 8)
    monkeypatch.setattr(rounds, "TOKENS", 8)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(WORKER.parents[1]), *sys.path]))


@pytest.fixture
def fake(monkeypatch):
    """Installs the program; keywords say how it behaves."""

    def install(**how):
        monkeypatch.setattr(workers, "PROGRAMS", dict.fromkeys(workers.PROGRAMS, (sys.executable, str(WORKER))))
        monkeypatch.setattr(ablate, "find_spec", lambda _: object())
        behaviour = {"base": 2_000_000, "gains": GAINS, "osl": 32, "trace": str(TRACE)} | how
        monkeypatch.setenv("FAKE", json.dumps(behaviour))

    return install


@pytest.fixture
def asked(tmp_path):
    def made(passes="moe_align_pairs,bf16_gate,pdl", **how):
        usual = {"isl": 16, "osl": 32, "sample": 3, "alive": 0, "traces": False, "output": tmp_path / "a"}
        return Plan(passes=passes, **{"model": "ling-3.0-tiny"} | usual | how)

    return made


def of(rows, name):
    return next(row for row in rows if row["pass"] == name)


def test_gains_are_what_the_servers_differ_by(fake, asked):
    fake()
    said = []
    found = ablate.measured(asked(), said.append)
    assert [row["passes"] for row in found["rows"]] == [
        [],
        ["moe_align_pairs"],
        ["moe_align_pairs", "bf16_gate"],
        ["moe_align_pairs", "bf16_gate", "pdl"],
    ]
    gains = {row["pass"]: round(row["gain_us"], 6) for row in found["attribution"]}
    assert gains == {name: gain / 1e3 for name, gain in GAINS.items()}
    assert found["baseline"]["tpot_ms"] == 2.0
    assert (found["windows"], found["steps"]) == (3, 31)
    assert of(found["attribution"], "pdl")["took_effect"] == "pdl is seen"
    assert of(found["attribution"], "moe_align_pairs")["gate"] == "8 tokens equal, again after a sampled request"
    assert "round 2, A/A: 2.0000 ms a token" in said


def test_the_file_can_be_read_and_shown(fake, asked):
    fake()
    options = asked(traces=True)
    ablate.save(ablate.measured(options), options)
    found = ablation_report.load(options.folder / "ablation.json")
    assert [rung["trace"] for rung in found["ladder"]] == [
        "00-baseline.json.gz",
        "01-moe_align_pairs.json.gz",
        "02-bf16_gate.json.gz",
        "03-pdl.json.gz",
    ]
    for rung in found["ladder"]:
        assert rung["trace_sha256"] == plain_file.sha256(options.folder / rung["trace"])
        assert rung["profiled_ratio"] > 1
    assert render(found)
    (options.folder / "00-baseline.json.gz").unlink()
    assert "trace_sha256" not in ablate.measured(options)["ladder"][0]


def test_rounding_passes_are_declared_with_what_they_change(fake, asked):
    pytest.importorskip("torch")
    fake(changes="bf16_gate", logits={"bf16_gate": "near"})
    found = ablate.measured(asked("bf16_gate,pdl"))
    gate = "rounding, declared: top-1 equal at 100.00 % of 8 positions, KL 1.4e-02"
    assert [row["gate"] for row in found["rows"]][1:] == [gate, "8 tokens equal, again after a sampled request"]
    assert [gate["ok"] for gate in found["gates"]] == [True] * 3


def test_with_a_pinned_accept_length_tokens_are_not_judged(fake, asked):
    speculative = {"speculative_algorithm": "NEXTN", "speculative_num_steps": 3, "speculative_num_draft_tokens": 4}
    fake(changes="pdl", facts={"server": {**speculative, "dtype": "bfloat16"}})
    found = ablate.measured(asked("pdl", model="ling-3.0-flash-12"))
    pdl = of(found["attribution"], "pdl")
    assert (pdl["gain_us"], pdl["gate"]) == (100.0, "not judged: the accept length is pinned")
    assert {(gate["ok"], gate["tokens"]) for gate in found["gates"]} == {(True, None)}
    assert not any(note.startswith("gate: ") for note in found["notes"])
    decoding = "greedy, NEXTN, 3 steps, 4 draft tokens, accept length pinned to 3"
    assert (found["lock"]["decoding"], found["lock"]["dtype"]) == (decoding, "bf16")


def test_an_exact_pass_that_changes_a_token_shows_no_speed(fake, asked):
    fake(changes="pdl")
    pdl = of(ablate.measured(asked("pdl"))["attribution"], "pdl")
    assert pdl["gain_us"] is None
    assert pdl["gate"] == "token 3 is -1, with none alone 21"


def test_an_exact_pass_beside_rounding_ones_keeps_their_tokens(fake, asked):
    fake(changes="pdl")
    pdl = of(ablate.measured(asked("bf16_gate,moe_align_pairs,pdl"))["attribution"], "pdl")
    assert (pdl["gain_us"], pdl["gate"]) == (None, "token 3 is -1, with bf16_gate alone 21")


def test_the_engine_takes_the_place_of_a_server(fake, asked):
    fake(gains={"engine": 1_000_000}, changes="engine")
    options = asked("engine")
    ablate.save(ablate.measured(options), options)
    found = ablation_report.load(options.folder / "ablation.json")
    assert [row["tpot_ms"] for row in found["rows"]] == [2.0, 1.0]
    engine = of(found["attribution"], "engine")
    assert (engine["gain_us"], engine["exact"], engine["took_effect"]) == (1000.0, False, "engine is seen")
    assert engine["gate"] == "another program, with weights of its own: 8 tokens equal again after a sampled request"
    assert any("sglang 0.5.19" in note for note in found["notes"])


def test_an_engine_that_leaks_into_the_next_request_shows_no_speed(fake, asked):
    fake(gains={}, leaks="engine")
    engine = of(ablate.measured(asked("engine"))["attribution"], "engine")
    assert (engine["gain_us"], engine["gate"]) == (None, "token 3 is -1 after a sampled request, 21 before it")


@pytest.mark.parametrize(
    ("passes", "model", "says"),
    [
        ("pdl,engine", "ling-3.0-tiny", "--passes takes engine alone: passes switch a server."),
        ("engine+pdl", "ling-3.0-tiny", "--passes takes engine alone: passes switch a server."),
        ("engine", "ling-3.0-flash-12", "--passes engine takes a model that drafts nothing."),
        ("engines", "ling-3.0-tiny", r"no pass engines of SGLang; there are .*, engine\."),
    ],
)
def test_the_engine_stands_alone(passes, model, says):
    with pytest.raises(UserError, match=says):
        Plan(model=model, passes=passes)


def test_a_request_that_leaks_into_the_next_shows_no_speed(fake, asked):
    fake(leaks="bf16_gate")
    gate = of(ablate.measured(asked("bf16_gate"))["attribution"], "bf16_gate")
    assert gate["gain_us"] is None
    assert gate["gate"] == "token 3 is -1 after a sampled request, 21 before it"


def test_a_pass_without_effect_shows_no_speed(fake, asked):
    fake(lies="bf16_head")
    found = ablate.measured(asked("pdl"))
    assert of(found["attribution"], "pdl")["gain_us"] == 100.0
    with pytest.raises(UserError, match="bf16_head was asked off and is neither on nor off: bf16_head is seen"):
        ablate.measured(asked("bf16_head", output=asked().folder.parent / "b"))


def test_a_server_that_does_not_start_costs_only_its_own(fake, asked):
    fake(void="pdl")
    found = ablate.measured(asked())
    pdl = of(found["attribution"], "pdl")
    assert pdl["gain_us"] is None
    assert "SGLang did not start: ling-prof: SGLang cannot switch pdl" in pdl["gate"]
    assert of(found["attribution"], "bf16_gate")["gain_us"] == 30.0


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"odd": {"sizes": [32]}}, "gave its 32 tokens in one piece, so that no time per token .* a larger --osl"),
        ({"odd": {"ends_ns": []}}, "gave an answer that is none .*ends_ns.*; its log is none.log; run again"),
        ({"odd": {"sizes": []}}, "gave an answer that is none .*sizes"),
        ({"odd": {"ends_ns": None}}, "gave an answer that is none .*ends_ns"),
        ({"odd": {"accept_length": 0}}, "gave an answer that is none .*accept_length"),
        ({"odd": {"ttft_ms": float("nan")}}, "gave an answer that is none"),
        ({"odd": {"ends_ns": [5] * 32}}, "gave a token every 0 ns, which is no time; run again"),
        ({"odd": {"ends_ns": [9, 5]}}, "gave a token every -.* ns, which is no time; run again"),
        ({"odd": {"tokens": [1]}}, "gave 1 of 32 tokens; run again"),
        ({"line": "Loading weights"}, "gave an answer that is none .*: Loading weights; its log is none.log"),
        ({"line": "[]"}, r"gave an answer that is none .*: \[\]; its log is"),
    ],
)
def test_an_answer_that_is_none_is_said_and_not_kept(fake, asked, how, says):
    fake(**how)
    options = asked("pdl", sample=2)
    with pytest.raises(UserError, match=rf"no round is complete \(without passes: SGLang {says}"):
        ablate.measured(options)
    fake()
    assert ablate.measured(options)["windows"] == 2


def test_facts_that_are_none_are_said(fake, asked):
    fake(facts={"hardware": 5})
    with pytest.raises(UserError, match=r"SGLang gave an answer that is none .*hardware"):
        ablate.measured(asked("pdl", sample=2))


def test_a_recording_that_is_gone_is_said(fake, asked):
    fake(file="/nowhere/1.json.gz")
    said = []
    found = ablate.measured(asked("pdl", sample=2, traces=True), said.append)
    assert [rung["trace"] for rung in found["ladder"]] == [None, None]
    assert "none: /nowhere/1.json.gz holds no recording, which SGLang said that it left there; run again" in said


def test_without_a_baseline_nothing_is_said(fake, asked):
    fake(never=True)
    said = []
    with pytest.raises(
        UserError, match=r"\(without passes: SGLang did not start: ling-prof: never; its log is none\.log\); nothing"
    ):
        ablate.measured(asked("bf16_gate"), said.append)
    assert "none failed: SGLang did not start: ling-prof: never; its log is none.log" in said


@pytest.mark.parametrize("after", [0, 3], ids=["at once", "in a later round"])
def test_a_server_that_dies_is_said_and_can_be_gone_on_with(fake, asked, after):
    """In a round it serves two requests: it is all on."""
    fake(dies="pdl", after=after)
    options = asked("bf16_gate,pdl")
    said = []
    found = ablate.measured(options, said.append)
    pdl = of(found["attribution"], "pdl")
    assert pdl["gain_us"] is None
    assert "Error: the GPU fell off" in pdl["gate"]
    assert (of(found["attribution"], "bf16_gate")["gain_us"], found["windows"]) == (30.0, 3)
    assert any("bf16_gate+pdl failed" in line and "Error: the GPU fell off" in line for line in said)
    fake()
    said.clear()
    assert of(ablate.measured(options, said.append)["attribution"], "pdl")["gain_us"] == 100.0
    assert not any("none" in line for line in said if line.startswith("round"))


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        (
            {"hardware": ["NVIDIA L4"]},
            r"another hardware \(\['NVIDIA H200'\] there, \['NVIDIA L4'\] now\); give another",
        ),
        ({"torch": "2.13", "driver": "590"}, r"another driver \(580 there, 590 now\), torch \(2.11 there, 2.13 now\)"),
        ({"versions": {"sglang": "0.6"}}, "another versions"),
    ],
    ids=["GPU", "driver and torch", "SGLang"],
)
def test_what_was_begun_elsewhere_is_not_gone_on_with(fake, asked, facts, says):
    fake()
    found = ablate.measured(asked("pdl", sample=2))
    fake(facts=facts)
    with pytest.raises(UserError, match=says):
        ablate.measured(asked("pdl"))
    assert ablate.measured(asked("pdl", sample=2)) == found


def test_other_code_is_not_gone_on_with(fake, asked, monkeypatch):
    fake()
    found = ablate.measured(asked("pdl", sample=2))
    monkeypatch.setattr(rounds, "code", lambda: "f" * 16)
    with pytest.raises(UserError, match=rf"another code \({found['code']} there, f{{16}} now\)"):
        ablate.measured(asked("pdl"))


def test_what_is_kept_is_reported_where_sglang_is_missing(fake, asked, monkeypatch):
    fake()
    found = ablate.measured(asked())
    monkeypatch.setattr(ablate, "find_spec", lambda _: None)
    assert ablate.measured(asked()) == found
    again = ablate.measured(asked(sample=2))
    assert again["windows"] == 2
    with pytest.raises(UserError, match="sglang is not installed here"):
        ablate.measured(asked(output=asked().folder.parent / "b"))


def test_servers_one_at_a_time_started_anew(fake, asked):
    fake()
    said = []
    found = ablate.measured(asked("pdl", alive=1, starts=2, sample=4), said.append)
    assert found["windows"] == 4
    assert of(found["attribution"], "pdl")["gain_us"] == 100.0
    assert sorted(line for line in said if "ready" in line) == ["none is ready"] * 2 + ["pdl is ready"] * 2
    assert any("1 of 2 configurations alive at a time" in note for note in found["notes"])


def test_what_drifts_between_groups_is_noted(fake, asked):
    fake()
    alive = [Plan(model="ling-3.0-tiny", passes="moe_align_pairs,bf16_gate,pdl", alive=n).drifts for n in (0, 1, 3, 4)]
    assert alive == [False, True, True, False]
    notes = ablate.measured(asked("bf16_gate,pdl", alive=2, sample=2))["notes"]
    assert any("2 of 3 configurations alive at a time" in note for note in notes)


def test_nothing_is_begun_after_the_minutes(fake, asked):
    fake()
    with pytest.raises(UserError, match=r"no round is complete \(without passes: it was not measured\)"):
        ablate.measured(asked(minutes=1e-9))


def test_a_start_that_the_minutes_cut_short_costs_no_times(fake, asked):
    fake()
    found = ablate.measured(asked("pdl", sample=2))
    fake(slow=60)
    said = []
    again = ablate.measured(asked("pdl", minutes=1 / 60), said.append)
    assert (again["rows"], again["windows"]) == (found["rows"], 2)
    assert said == ["the minutes are over: nothing more is begun"]


def test_a_pass_that_has_nothing_to_act_on_is_blocked(fake, asked):
    fake()
    found = ablate.measured(asked("pdl,kda_verify"))
    assert found["blocked"] == [{"pass": "kda_verify", "reason": "SGLang runs without speculative decoding"}]
    with pytest.raises(UserError, match="kda_verify has nothing to act on"):
        ablate.measured(asked("kda_verify", output=asked().folder.parent / "b"))


def test_what_cannot_be_leaves_nothing(fake, tmp_path):
    fake()
    words = ["ablate", "--target", "sglang", "--model", "ling-3.0-tiny", "--output", str(tmp_path / "a"), "--passes"]
    for passes in ("host_run_ahead", "pdl,pdl", "pdl+pdl", "engine+pdl", ""):
        assert CliRunner().invoke(command_line.whole_app(), [*words, passes]).exception is not None
        assert not (tmp_path / "a").exists()


def test_passes_that_sglang_has_on_are_noted_as_off(fake, asked):
    fake()
    notes = ablate.measured(asked("moe_align_pairs,grouped_topk,pdl"))["notes"]
    assert "without passes: moe_align_pairs, pdl are off, which SGLang has on as it comes" in notes
    notes = ablate.measured(asked("grouped_topk", output=asked().folder.parent / "b"))["notes"]
    assert not any("as it comes" in note for note in notes)


@pytest.fixture
def kept(fake, asked, monkeypatch):
    """A finished ablation, to be reported on alone -> its plan, and what puts another value in a row of its store."""
    fake()
    options = asked("pdl", traces=True, sample=2)
    ablate.measured(options)
    monkeypatch.setattr(ablate, "find_spec", lambda _: None)

    def put(kind, name, value):
        with sqlite3.connect(options.folder / ablate.STORE) as db:
            how = "DELETE FROM finished" if value is None else "UPDATE finished SET value = :value"
            done = db.execute(
                f"{how} WHERE kind = :kind AND name = :name", {"kind": kind, "name": name, "value": value}
            )
            assert done.rowcount == 1

    return options, put


VISIT = '{"ns": 2e6, "ttft_ms": 1.0, "accept_length": %s}'


@pytest.mark.parametrize(
    ("kind", "name", "values"),
    [
        ("begun", "", [None, "{}", "[]", '{"date": "2026"}']),
        ("proof", "none", [None, "[]", '["x"]', "{}"]),
        (
            "proof",
            "pdl",
            ["[]", '[{"schema": "", "sglang": "", "rank": "", "passes": [], "graphs": {}, "refused": null}]'],
        ),
        ("text", "none", ["5", "[[1]]", "[[],[]]", "[[1, 2], [1]]", '["x", "y"]']),
        ("visit", "0/none", ['"x"', "{}", '{"ns": "a"}', *(VISIT % odd for odd in ("null", "0", "-1", "1e9"))]),
        ("visit", "0/A/A", [VISIT.replace("2e6", ns) % 1 for ns in ("1e300", "0", "-1")]),
        ("trace", "pdl", ["5", '"00-baseline.json.gz"', '"."', f'"{"x" * 5000}"']),
        ("void", "pdl", ["5"]),
    ],
)
def test_a_damaged_row_is_said(kept, kind, name, values):
    options, put = kept
    for value in values:
        whole = (options.folder / ablate.STORE).read_bytes()
        put(kind, name, value)
        with pytest.raises(
            UserError, match=rf"ablation\.sqlite is damaged: its {kind} {name or 'row'} is not what was kept"
        ):
            ablate.measured(options)
        (options.folder / ablate.STORE).write_bytes(whole)
    assert ablate.measured(options)


def test_a_recording_that_is_a_folder_is_said(kept):
    options, _ = kept
    (options.folder / "00-baseline.json.gz").unlink()
    (options.folder / "00-baseline.json.gz").mkdir()
    with pytest.raises(UserError, match=r"00-baseline\.json\.gz is no file that can be read; move it away and run"):
        ablate.measured(options)


@pytest.mark.parametrize("name", ["none.log", "proof-none-TP-0.json", "logits-made.npy", "logits-baseline.npy"])
def test_a_folder_in_a_files_place_is_said_before_anything_runs(fake, asked, name):
    fake()
    options = asked("pdl", sample=2)
    (options.folder / name).mkdir(parents=True)
    with pytest.raises(UserError, match=rf"{name} cannot be (written anew|deleted) \(.*\); move it away"):
        ablate.measured(options)
    (options.folder / name).rmdir()
    assert ablate.measured(options)["windows"] == 2


def test_a_folder_in_a_recordings_place_is_said_before_it_is_made(fake, asked):
    fake()
    options, said = asked("pdl", sample=2, traces=True), []
    place = options.folder / "00-baseline.json.gz"
    place.mkdir(parents=True)
    ablate.measured(options, said.append)
    assert f"none: {place} is no regular file; move it away and run again" in said
    assert not [*options.folder.glob("*TP-0.trace.json.gz")]
    place.rmdir()
    assert ablate.measured(options)["ladder"][0]["trace"] == place.name


def test_a_dtype_that_is_no_name_is_kept_as_it_is_written(fake, asked):
    fake(facts={"server": {"dtype": ["x"]}})
    assert ablate.measured(asked("pdl", sample=2))["lock"]["dtype"] == "['x']"


def test_a_report_that_could_not_be_read_again_is_none(kept, monkeypatch):
    odd = {"noise_floor_pct": -1.0, "noise_high_pct": 1.0, "all_on_noise_pct": None}
    monkeypatch.setattr(ablate._Report, "_noise", lambda _: odd)
    with pytest.raises(UserError, match=r"ablation\.sqlite makes no report: not a whole .*noise_floor_pct"):
        ablate.measured(kept[0])


def test_another_ablation_is_not_mixed_in(fake, asked):
    fake()
    ablate.measured(asked("pdl"))
    for other, name in ((asked("bf16_gate"), "passes"), (asked("pdl", alive=1), "alive")):
        with pytest.raises(UserError, match=f"holds another ablation, which differs in {name}"):
            ablate.measured(other)


def test_flash_drafts_with_pinned_acceptance(tmp_path):
    setup = rounds.setup_of(Plan(model="ling-3.0-flash-12", passes="host_run_ahead", output=tmp_path))
    assert setup.environment == {"SGLANG_SIMULATE_ACC_LEN": "3"}
    assert setup.arguments["speculative_algorithm"] == "NEXTN"
    assert json.loads((setup.model / "config.json").read_text())["num_nextn_predict_layers"] == 1


def test_options_are_checked(asked):
    for how, match in (
        ({"passes": "pld"}, "no pass pld of SGLang; there are bf16_gate"),
        ({"passes": ""}, "--passes takes names of passes with commas between them, such as a,b: one is missing"),
        ({"passes": "pdl,"}, "such as a,b: one is missing"),
        ({"passes": "pdl,pdl"}, "pdl is named twice"),
        ({"passes": "pdl+pdl"}, "pdl is named twice"),
        (
            {"passes": "host_run_ahead,kda_verify"},
            "host_run_ahead,kda_verify has nothing to act on: SGLang runs without",
        ),
        ({"sample": 1}, "--sample takes"),
        ({"sample": 5, "starts": 2}, "--sample takes a multiple of --starts"),
        ({"design": "all"}, "--design takes one of"),
        ({"osl": 1}, "--osl takes"),
    ):
        with pytest.raises(UserError, match=match):
            asked(**how)
    with pytest.raises(
        UserError, match="no model 'org/x' for SGLang; --model takes a checkpoint folder, or one of ling"
    ):
        Plan(model="org/x", passes="pdl")


def test_the_command_runs_it(fake, tmp_path):
    fake()
    words = [
        "ablate",
        "--target",
        "sglang",
        "--model",
        "ling-3.0-tiny",
        "--passes",
        "pdl",
        "--isl",
        "16",
        "--osl",
        "32",
    ]
    words += ["--sample", "2", "--no-traces", "--output", str(tmp_path / "a"), "--json"]
    done = CliRunner().invoke(command_line.whole_app(), words)
    assert json.loads(done.stdout)["attribution"][0]["gain_us"] == 100.0
    assert " s  none is ready" in done.stderr
    assert (tmp_path / "a" / "ablation.json").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--target", "sglang", "--passes", "pdl", "--steps", "3"], "--steps is for --target engine only."),
        (["--alive", "0"], "--alive is for --target sglang only."),
        (["--target", "vllm"], "--target takes one of engine, sglang."),
        (["--target", "sglang"], "--target sglang needs --passes"),
    ],
)
def test_options_of_the_other_target_are_refused(words, says):
    assert says in refused("ablate", "--model", "ling-3.0-tiny", *words)

"""Ablations from end to end, at nano size on a CPU, with passes made for the tests."""

import json
import re
import shutil
import sqlite3
from functools import partial

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from conftest import BUNDLED  # noqa: E402
from test_cli import cli, process, refused  # noqa: E402
from test_gate import made, made_passes, one_thread, other  # noqa: E402, F401
from typer.testing import CliRunner  # noqa: E402

from ling_prof import UserError, ablation_report, plain_file  # noqa: E402
from ling_prof.cli import whole_app  # noqa: E402
from optim import ablate, base, bench, designs, extras, gate, session  # noqa: E402
from optim.gate import Gate  # noqa: E402
from optim.measure import Protocol  # noqa: E402
from optim.options import AblateOptions, BenchOptions  # noqa: E402

pytestmark = pytest.mark.usefixtures("made_passes", "one_thread")


@pytest.fixture(autouse=True)
def short_gate(monkeypatch):
    monkeypatch.setattr(ablate, "Gate", partial(Gate, tokens=8, positions=8))


@pytest.fixture
def asked(tmp_path):
    def options(passes, **how):
        asked = {"isl": 32, "osl": 16, "steps": 4, "device": "cpu", "output": tmp_path / "a", "passes": passes}
        return AblateOptions(model="nano", **asked | how)

    return options


def run(options, *progress):
    """As the command does."""
    found = ablate.measured(options, *progress)
    ablate.save(found, options)
    return found


def of(rows, name):
    return next(row for row in rows if row["pass"] == name)


def test_a_slow_pass_is_told_from_one_that_does_nothing(asked):
    found = run(asked("keeps,slow"))
    slow, keeps = of(found["attribution"], "slow"), of(found["attribution"], "keeps")
    assert -120_000 < slow["gain_us"] < -20_000
    assert slow["high"] < 0
    assert keeps["gain_us"] > slow["high"]
    assert (slow["exact"], slow["method"], slow["took_effect"]) == (True, "shapley", "it is on")
    assert slow["gate"] == "8 tokens equal, again after a sampled request"
    assert [row["passes"] for row in found["rows"]] == [[], ["keeps"], ["slow"], ["keeps", "slow"]]
    assert [rung["added"] for rung in found["ladder"]] == ["", "keeps", "slow"]
    assert (found["baseline"]["tpot_ms"], found["all_on"]["tpot_ms"]) == (
        found["rows"][0]["tpot_ms"],
        found["rows"][3]["tpot_ms"],
    )
    assert (found["windows"], found["steps"], found["lock"]["osl"], found["target"]) == (4, 4, 16, "engine")


def test_the_file_is_what_was_returned_and_can_be_read(asked):
    options = asked("keeps,bf16_gate+bf16_head", design="ladder")
    found = run(options)
    assert ablation_report.load(options.folder / "ablation.json") == json.loads(json.dumps(found))
    assert [row["pass"] for row in found["attribution"]] == ["keeps", "bf16_gate+bf16_head"]
    assert found["rows"][2]["gate"].startswith("rounding, declared: top-1 equal at ")
    assert found["gates"][2]["kl_mean"] > 0


def test_what_was_not_gated_is_vouched_for_by_its_windows(asked):
    found = run(asked("keeps,still,bf16_head,calm", osl=8))
    gates = {tuple(row["passes"]): row["gate"] for row in found["rows"]}
    assert gates["keeps", "still"] == "8 tokens equal, again after a sampled request"
    assert gates["keeps", "calm"] == "12 window tokens equal"  # of windows that share four
    assert gates["bf16_head", "calm"] == "12 window tokens equal those with bf16_head alone"


def test_what_nothing_was_compared_with_is_not_judged(asked):
    found = run(asked("proj_concat,bf16_head,calm", design="leave-one-out", osl=8))
    gates = {tuple(row["passes"]): row["gate"] for row in found["rows"]}
    assert gates["bf16_head", "calm"] == "not judged"


def test_an_exact_pass_that_is_wrong_beside_a_rounding_one_shows_no_speed(asked):
    found = run(asked("keeps,still,lies_beside,bf16_head", osl=8))
    both = [row for row in found["rows"] if {"lies_beside", "bf16_head"} <= {*row["passes"]}]
    assert [row["tpot_ms"] for row in both] == [None] * 4
    gates = [
        re.fullmatch(r"token 1 is \d+, with (bf16_head|the rounding passes) alone \d+", row["gate"]) for row in both
    ]
    assert all(gates)


def test_a_pass_that_fails_alone_shows_no_speed(asked):
    found = run(asked("keeps,lies"))
    lies = of(found["attribution"], "lies")
    assert lies["gate"].startswith("token 3 is ")
    assert [lies[key] for key in ("gain_us", "gain_pct", "low", "high")] == [None] * 4
    assert not any("lies" in row["passes"] for row in found["rows"])
    assert of(found["attribution"], "keeps")["gain_us"] is not None
    failed = next(row for row in found["gates"] if row["passes"] == ["lies"])
    assert (failed["ok"], failed["first_difference"]) == (False, 3)


def test_exact_passes_that_fail_only_together_show_no_speed_together(asked, made_passes):  # noqa: F811
    made_passes["keeps"].apply = made(lambda engine, advance: lambda: _jealous(engine, advance)).apply
    found = run(asked("keeps,still,calm", design="leave-one-out", osl=8))
    times = {"+".join(row["passes"]): row["tpot_ms"] for row in found["rows"]}
    assert [name for name, time in times.items() if time is None] == ["keeps+still+calm"]
    assert found["rows"][-1]["gate"].startswith("all exact passes together: token 1 is ")
    assert [row["gain_us"] for row in found["attribution"]] == [None] * 3
    assert any(note.startswith("all exact passes together, keeps+still+calm: token 1 is ") for note in found["notes"])


def _jealous(engine, advance):
    """Wrong beside two others."""
    return other(engine, advance) if {"still", "calm"} <= {*engine.passes} else advance()


def test_the_method_of_a_pass_that_fails_is_that_of_its_place(asked, monkeypatch):
    monkeypatch.setattr(designs, "AFFORDABLE", 1)
    found = run(asked("keeps,lies", osl=8))
    assert [row["method"] for row in found["attribution"]] == ["shapley", "ladder"]


def test_the_gate_has_its_room(asked, monkeypatch):
    opened = []
    monkeypatch.setattr(ablate, "Gate", lambda engine, prompt: opened.append(engine) or Gate(engine, prompt, 8, 8))
    found = run(asked("keeps", osl=8))
    assert opened[0].cache.capacity >= 32 + gate.TOKENS
    assert "rounding was judged on 8 positions, not 1024: raise --osl for more" in found["notes"]


def test_what_fails_only_while_it_is_measured_shows_none_either(asked, made_passes):  # noqa: F811
    late = made(lambda engine, advance: lambda: _late(engine, advance))
    made_passes["keeps"].apply = late.apply
    found = run(asked("keeps,still"))
    keeps = of(found["attribution"], "keeps")
    assert (keeps["gain_us"], of(found["attribution"], "still")["gain_us"]) == (None, None)
    assert keeps["gate"] == found["rows"][1]["gate"]
    assert keeps["gate"].startswith("token 1 is ")
    assert [row["tpot_ms"] is None for row in found["rows"]] == [False, True, False, True]
    assert any(note.startswith("keeps, while it was measured: token 1 is ") for note in found["notes"])


def _late(engine, advance):
    """Wrong only in a request that was restored."""
    return other(engine, advance) if engine.request > engine.prompts else advance()


def test_a_run_that_was_killed_goes_on(asked, monkeypatch):
    visits = []
    visit = Protocol._visit
    monkeypatch.setattr(Protocol, "_visit", lambda *of: visits.append(of[2]) or visit(*of))

    def killed(share):
        if share > 0.6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(asked("keeps,slow"), killed)
    visits.clear()
    found = run(asked("keeps,slow"))
    assert len(visits) == 2 * 6  # two of four windows, four combinations, the baseline and all on again
    assert "2 of 4 windows were measured by an earlier run" in found["notes"]
    assert of(found["attribution"], "slow")["high"] < 0
    visits.clear()
    assert run(asked("keeps,slow"))["rows"] == found["rows"]
    assert not visits


def test_other_code_is_refused(asked, monkeypatch):
    run(asked("keeps", osl=8))
    assert len(ablate.code()) == 16
    was = ablate.code()
    monkeypatch.setattr(ablate, "code", lambda: "f" * 16)
    with pytest.raises(UserError, match=f'differs in code \\("{was}" there, "ffffffffffffffff" now\\); give another'):
        run(asked("keeps", osl=8))


def test_another_ablation_in_the_folder_is_refused(asked):
    run(asked("keeps", osl=8))
    with pytest.raises(UserError, match="holds another ablation, which differs in players"):
        run(asked("slow", osl=8))


def test_a_report_that_no_run_there_left_is_kept(asked):
    asked = asked("keeps")
    asked.folder.mkdir(parents=True)
    (asked.folder / "ablation.json").write_text("mine")
    with pytest.raises(
        UserError, match=r"ablation\.json is there without the ablation\.sqlite of its run; move it away"
    ):
        run(asked)
    assert (asked.folder / "ablation.json").read_text() == "mine"


def test_a_report_that_cannot_be_written_is_found_out_before_the_model_is_built(asked, monkeypatch):
    monkeypatch.setattr(ablate, "open_engine", None)
    asked = asked("keeps")
    (asked.folder / "ablation.json").mkdir(parents=True)
    with pytest.raises(UserError, match="it is no regular file"):
        run(asked)


def test_a_folder_that_cannot_be_made_is_named(asked):
    with pytest.raises(UserError, match=r"cannot be made \(File name too long\); give another folder"):
        run(asked("keeps", output=asked("keeps").folder / ("x" * 300)))


def test_a_verdict_that_is_damaged_is_named(asked):
    asked = asked("keeps")
    run(asked)
    with sqlite3.connect(asked.folder / "ablation.sqlite") as db:
        db.execute("UPDATE finished SET value = ? WHERE kind = 'gate'", ('{"x": 1}',))
    db.close()
    with pytest.raises(UserError, match=r"is damaged: its gate"):
        run(asked)


def test_a_run_that_only_repeats_what_is_there_keeps_its_date(asked):
    asked = asked("keeps")
    first = run(asked)
    with sqlite3.connect(asked.folder / "ablation.sqlite") as db:
        db.execute("UPDATE finished SET value = replace(value, '20', '19') WHERE kind = 'begun'")
    db.close()
    assert run(asked)["date"] == first["date"].replace("20", "19")


def test_where_nothing_can_be_applied_the_baseline_is_told(asked):
    found = run(asked("cuda_graph+pdl,host_run_ahead"))
    assert [row["passes"] for row in found["rows"]] == [[]]
    assert found["baseline"] == found["all_on"]
    assert (found["attribution"], found["interactions"]) == ([], [])
    assert of(found["blocked"], "cuda_graph+pdl")["reason"] == "a CUDA graph needs a GPU and the Triton kernels"
    assert "no pass can be measured here: only the baseline is" in found["notes"]


def test_without_names_all_are_asked_for_by_rungs(asked):
    engine = session.open_engine(asked(None), 16)
    players = ablate.players_of(engine, asked(None))
    assert ("bf16_gate", "bf16_head") in players
    assert [name for player in players for name in player] == list(base.passes())
    engine.passes = ("cuda_graph",)
    assert ("cuda_graph",) not in ablate.players_of(engine, asked(None))
    with pytest.raises(UserError, match="cuda_graph is on already; leave it out of --passes, or measure it with"):
        ablate.players_of(engine, asked("cuda_graph"))


@pytest.mark.parametrize("design", ["leave-one-out", "sampled"])
def test_the_ladder_has_the_rungs_that_were_measured(asked, design):
    found = run(asked("keeps,still,bf16_head", design=design, osl=8))
    assert found["ladder"][0]["added"] == ""
    assert "".join(rung["added"] for rung in found["ladder"]).endswith("bf16_head")
    assert found["ladder"][-1]["tpot_ms"] == found["all_on"]["tpot_ms"]


def test_every_rung_is_recorded_with_its_ratio(asked, monkeypatch, made_passes):  # noqa: F811
    """As on a GPU, with a bundled recording in place of the profiler's."""
    recorded = []

    def record(engine, path, steps):
        recorded.append((path.name, engine.passes, steps))
        shutil.copy(BUNDLED / "h200_ling_tiny_graph_stacks.pt.trace.json.gz", path)

    monkeypatch.setattr(extras, "record_open", record)
    monkeypatch.setattr(extras, "rehearse", lambda engine: 2.0)
    monkeypatch.setattr(extras, "records", lambda *_: True)
    made_passes["keeps"].lowers = "kernels"
    found = run(asked("keeps", osl=8))
    assert recorded == [("00-baseline.json.gz", (), 12), ("01-keeps.json.gz", ("keeps",), 12)]
    assert [rung["trace"] for rung in found["ladder"]] == ["00-baseline.json.gz", "01-keeps.json.gz"]
    for rung in found["ladder"]:
        assert rung["trace_sha256"] == plain_file.sha256(BUNDLED / "h200_ling_tiny_graph_stacks.pt.trace.json.gz")
        assert rung["profiled_ratio"] == pytest.approx(4.171678 / 2)  # by the steps just before, not by the windows
    assert found["ladder"][0]["lowers"] == []
    (lowers,) = found["ladder"][1]["lowers"]
    assert lowers["what"] == "kernels"
    assert lowers["before"] == lowers["after"] > 500
    assert run(asked("keeps", osl=8))["ladder"] == found["ladder"]
    assert len(recorded) == 2


def test_a_recording_that_is_gone_or_another_is_made_again_with_its_figures(asked, monkeypatch):
    plain, recorded = iter([2.0, 4.0, 8.0, 1.0]), []

    def record(engine, path, steps):
        recorded.append(path.name)
        shutil.copy(BUNDLED / "h200_ling_tiny_graph_stacks.pt.trace.json.gz", path)

    monkeypatch.setattr(extras, "record_open", record)
    monkeypatch.setattr(extras, "rehearse", lambda engine: next(plain))
    monkeypatch.setattr(extras, "records", lambda *_: True)
    options = asked("keeps", osl=8)

    def ratios():
        return [rung["profiled_ratio"] for rung in run(options)["ladder"]]

    first, second = (4.171678 / ms for ms in (2, 4))
    assert ratios() == pytest.approx([first, second])
    (options.folder / "00-baseline.json.gz").unlink()
    assert ratios() == pytest.approx([4.171678 / 8, second])
    (options.folder / "01-keeps.json.gz").write_bytes(b"of another run")
    assert ratios() == pytest.approx([4.171678 / 8, 4.171678])
    assert recorded == [f"{name}.json.gz" for name in ("00-baseline", "01-keeps", "00-baseline", "01-keeps")]


def test_a_gate_that_the_gpu_had_too_little_for_is_tried_again(asked, made_passes):  # noqa: F811
    full, keeping = [True], made_passes["keeps"].apply

    def apply(engine):
        if full[0]:
            raise torch.cuda.OutOfMemoryError("3 GB")
        return keeping(engine)

    made_passes["keeps"].apply = apply
    options = asked("keeps,still", osl=8)
    assert of(run(options)["attribution"], "keeps")["gate"].startswith("the GPU has too little for it")
    full[0] = False
    again = run(options)
    assert of(again["attribution"], "keeps")["gain_us"] is not None
    assert again["rows"][1]["gate"] == "8 tokens equal, again after a sampled request"


def test_a_window_that_lacks_a_time_is_measured_again(asked, monkeypatch):
    visits = []
    visit = Protocol._visit

    def failing(self, saved, passes):
        visits.append(passes)
        scarce = gate.Passing("the GPU has too little for it") if len(visits) > 6 and passes == ("keeps",) else None
        return scarce or visit(self, saved, passes)

    monkeypatch.setattr(Protocol, "_visit", failing)
    options = asked("keeps", osl=12)
    assert run(options)["attribution"][0]["gain_us"] is None
    monkeypatch.setattr(Protocol, "_visit", lambda *of: visits.append(of[2]) or visit(*of))
    visits.clear()
    again = run(options)
    assert again["attribution"][0]["gain_us"] is not None
    assert len(visits) == 2 * 4  # the first window is kept
    assert "1 of 3 windows were measured by an earlier run" in again["notes"]


def test_the_report_says_what_ran_and_how_much_it_jitters(asked):
    found = run(asked("keeps,bf16_head", osl=8))
    assert found["code"] == ablate.code()
    assert found["all_on_noise_pct"] >= 0
    assert any("accept length is 1 by construction" in note for note in found["notes"])


def test_an_error_in_what_is_added_costs_no_measurement(asked, monkeypatch):
    options, there = asked("keeps", osl=8), []

    def record(engine, path, steps):
        there.append(ablation_report.load(options.folder / "ablation.json")["baseline"])
        raise RuntimeError("no\nprofiler")

    monkeypatch.setattr(extras, "record_open", record)
    monkeypatch.setattr(extras, "records", lambda *_: True)
    found = run(options)
    assert there == [found["baseline"]] * 2
    assert "the recording of keeps: missing, RuntimeError, no profiler" in found["notes"]
    assert [rung["trace"] for rung in found["ladder"]] == [None, None]


def test_kernels_are_timed_once(asked, monkeypatch):
    row = {"kernel": "gemv", "passes": [], "cold_us": 2.0, "low": 1.0, "high": 3.0, "bytes": 8, "gb_s": 1.0}
    timed = []
    monkeypatch.setattr(extras.microbench, "projections", lambda engine: timed.append(engine) or [row])
    for _ in range(2):
        assert run(asked("keeps", osl=8))["kernels"] == [row]
    assert len(timed) == 1


def test_progress_rises_to_one(asked):
    shares = []
    run(asked("keeps", osl=8), shares.append)
    assert shares == sorted(shares)
    assert shares[-1] == 1


def test_tokens_beyond_whole_windows_are_told(asked):
    found = run(asked("keeps", osl=10))
    assert "whole windows only: the last 2 of 10 tokens are not measured" in found["notes"]
    assert (found["lock"]["osl"], found["windows"]) == (8, 2)


def test_the_command_makes_it_again(asked, tmp_path):
    assert asked("keeps,slow", traces=False, eager=True).command == (
        f"ling-prof ablate --model nano --isl 32 --osl 16 --design factorial --steps 4 --seed 0 --no-traces "
        f"--output {tmp_path}/a --dtype bf16 --device cpu --eager --passes keeps,slow"
    )
    assert AblateOptions(model="models/some").folder.name == "ablation-some"


ASKED = ("ablate", "--model", "nano", "--isl", "32", "--osl", "8", "--steps", "4", "--device", "cpu")


def test_the_command_line_end_to_end(tmp_path, made_passes):  # noqa: F811
    """A process repeats what this one measured, which judges few tokens."""
    made_passes.clear()
    done = cli(*ASKED, "--output", str(tmp_path / "new" / "a"), "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found = ablation_report.load(tmp_path / "new" / "a" / "ablation.json")
    assert json.loads(done.stdout) == found
    assert {row["pass"] for row in found["blocked"]} >= {"cuda_graph", "pdl", "kda_fused"}
    page = process(*ASKED, "--output", str(tmp_path / "new" / "a")).stdout
    assert "bf16_gate+bf16_head" in page
    assert "a CUDA graph needs a GPU and the Triton kernels" in page


def test_what_cannot_be_saved_is_still_printed(tmp_path, monkeypatch):
    def full(found, options):
        raise UserError("ablation.json cannot be written (No space left on device).")

    monkeypatch.setattr(ablate, "save", full)
    sizes = ["--isl", "32", "--osl", "16", "--steps", "4", "--device", "cpu", "--output", str(tmp_path / "a")]
    done = CliRunner().invoke(whole_app(), ["ablate", "--model", "nano", "--passes", "keeps", *sizes, "--json"])
    assert "No space left on device" in str(done.exception)
    assert json.loads(done.stdout)["baseline"]["tpot_ms"] > 0


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--passes", "pld"), "no pass pld; there are cuda_graph, "),
        (("--passes", "pdl,"), "--passes takes names of passes"),
        (("--passes", ""), "--passes takes names of passes"),
        (("--passes", "all"), "leave it out for all"),
        (("--passes", "bf16_head,pdl+bf16_head"), "--passes takes each pass once"),
        (("--design", "best"), "--design takes one of factorial, "),
        (("--osl", "7"), "--osl takes a number of tokens that holds two windows"),
        (("--steps", "0"), "--steps takes"),
        (("--seed", "-1"), "--seed takes"),
        (("--model", "huge"), "no model 'huge'"),
        (("--output", "/dev/null"), "/dev/null is no folder"),
        (("--output", "/dev/null/a"), "/dev/null is no folder"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bad_input_ends_in_one_sentence(tmp_path, more, words):
    assert words in refused(*ASKED, "--output", str(tmp_path / "a"), *more)
    assert not (tmp_path / "a" / "ablation.json").exists()


def test_bench_switches_passes():
    asked = {"model": "nano", "isl": 8, "osl": 4, "runs": 1, "device": "cpu"}
    found = bench.run(BenchOptions(**asked, passes="bf16_head"))
    assert found["lock"]["passes"] == ["bf16_head"]
    assert "bf16_head: the head is torch.bfloat16" in found["notes"]
    assert found["command"].endswith("--device cpu --passes bf16_head")
    with pytest.raises(UserError, match="no pass pld"):
        bench.run(BenchOptions(**asked, passes="pld"))
    with pytest.raises(UserError, match="cuda_graph cannot be applied"):
        bench.run(BenchOptions(**asked, passes="cuda_graph"))


def test_all_are_those_that_can_be_on(asked):
    engine = session.open_engine(asked(None), 16)
    there = BenchOptions(model="nano", passes="all").names(engine)
    assert {"bf16_gate", "bf16_head", "keeps"} <= {*there}
    assert not {"cuda_graph", "pdl"} & {*there}


def test_a_sample_of_windows_is_spread_over_the_request():
    options = {"model": "nano", "osl": 1024, "steps": 32}
    assert AblateOptions(**options).measured == list(range(32))
    assert AblateOptions(**options, sample=5).measured == [0, 8, 16, 23, 31]
    for wrong in (1, 33):
        with pytest.raises(UserError, match="--sample takes a number of windows, from 2 to the 32 there are"):
            AblateOptions(**options, sample=wrong)

"""How far rounding passes move a server's logits: asked of the program that stands in for SGLang, kept, and judged."""
# ruff: noqa: F811 - fixtures

import json
import sqlite3
import sys

import numpy as np
import pytest

pytest.importorskip("torch")

from test_sglang_ablate import asked, fake, of, short  # noqa: F401

from ling_prof import UserError, ablation_report
from ling_prof.render.ablation import render
from optim import distance
from optim.sglang import ablate, distances
from optim.sglang.forced import check_likeliest

NEAR = "rounding, declared: top-1 equal at 100.00 % of 8 positions, KL 1.4e-02"
BOUNDS = "too far from the server without passes (at least 50 %, at most 0.1)"
FAR = f"top-1 equal at 0.00 % of 8 positions, KL 2.1e+00, 2.1e+00 at one of them: {BOUNDS[:-1]}, 0.5 at one)"
TOKENS = "all tokens are those without the passes"


def gates(found):
    return {"+".join(gate["passes"]): gate["verdict"] for gate in found["gates"]}


def ready(said):
    return sorted(line.removesuffix(" is ready") for line in said if line.endswith(" is ready"))


def files(options):
    return sorted(path.name for path in options.folder.glob("*.npy"))


def forget(options, kind, name):
    """Takes a row from the store."""
    with sqlite3.connect(options.folder / ablate.STORE) as db:
        assert db.execute("DELETE FROM finished WHERE kind = ? AND name = ?", (kind, name)).rowcount == 1


@pytest.mark.parametrize("alive", [0, 1])
def test_rounding_passes_are_judged_by_their_logits(fake, asked, alive):
    """p = softmax(5, 0 ...), q the same with another logit at 3: KL is log(Zq / Zp) - 3 / Zp."""
    fake(logits={"bf16_gate": "near"})
    options = asked("bf16_gate,pdl", alive=alive)
    ablate.save(ablate.measured(options), options)
    found = ablation_report.load(options.folder / "ablation.json")
    assert gates(found) == {
        "": "8 tokens equal, again after a sampled request",
        "bf16_gate": NEAR,
        "bf16_gate+pdl": "8 tokens equal, again after a sampled request",
    }
    base, near, both = found["gates"]
    p, q = np.exp(5) + 999, np.exp(5) + 998 + np.exp(3)
    assert near["kl_mean"] == pytest.approx(np.log(q / p) - 3 / p, rel=1e-6)
    assert near["kl_max"] == pytest.approx(near["kl_mean"])
    assert (near["top1_agreement"], near["positions"], near["ok"]) == (1.0, 8, True)
    assert {gate[key] for gate in (base, both) for key in ("kl_mean", "kl_max", "top1_agreement", "positions")} == {
        None
    }
    assert "gate of rounding passes: their logits at 8 positions of the text without passes" in found["notes"]
    assert files(options) == []
    assert render(found)


def test_too_far_shows_no_speed_nor_do_exact_passes_beside_it(fake, asked):
    fake(logits={"bf16_gate": "far"})
    found = ablate.measured(asked("bf16_gate,pdl,mla_splits"))
    says = gates(found)
    assert says["bf16_gate"] == FAR
    assert says["bf16_gate+pdl"] == f"as with bf16_gate alone: {FAR}"
    assert [gate["ok"] for gate in found["gates"]] == [True, False, False, False]
    assert found["gates"][1]["kl_mean"] == pytest.approx(2.079, abs=1e-3)
    assert of(found["attribution"], "bf16_gate")["gain_us"] is None
    assert [row["tpot_ms"] is None for row in found["rows"]] == [False, True, True, True]


def test_what_is_not_finite_shows_no_speed(fake, asked):
    fake(logits={"bf16_gate": "nan"})
    options = asked("bf16_gate")
    ablate.save(ablate.measured(options), options)
    gate = ablation_report.load(options.folder / "ablation.json")["gates"][1]
    assert (gate["ok"], gate["verdict"]) == (False, "the logits are not finite")
    assert (gate["positions"], gate["kl_mean"], gate["top1_agreement"]) == (8, None, None)


def test_a_baseline_that_is_not_finite_says_nothing(fake, asked):
    fake(logits={"none": "nan"})
    with pytest.raises(UserError, match=r"no round is complete \(without passes: the logits are not finite\)"):
        ablate.measured(asked("bf16_gate"))


@pytest.mark.parametrize("seed", range(4))
def test_one_at_a_time_the_baseline_comes_first_and_nothing_is_done_again(fake, asked, seed):
    fake(logits={"bf16_gate": "near", "mla_splits": "near"})
    options, said = asked("bf16_gate,mla_splits", alive=1, starts=2, sample=4, seed=seed), []
    found = ablate.measured(options, said.append)
    compared = [line for line in said if "logits" in line]
    assert compared[0] == "none: its logits are kept"
    assert sorted(compared[1:]) == [
        "bf16_gate+mla_splits: its logits are compared",
        "bf16_gate: its logits are compared",
    ]
    assert ready(said) == sorted(2 * ["none", "bf16_gate", "bf16_gate+mla_splits"])
    said.clear()
    assert ablate.measured(options, said.append) == found
    assert (said, files(options)) == ([], [])


def test_exact_passes_alone_ask_for_no_logits(fake, asked):
    fake()
    said = []
    notes = ablate.measured(asked("pdl,moe_align_pairs"), said.append)["notes"]
    assert not any("logits" in line for line in [*said, *notes])


@pytest.mark.parametrize(("passes", "model"), [("bf16_gate", "ling-3.0-flash-12"), ("engine", "ling-3.0-tiny")])
def test_neither_a_pinned_server_nor_the_engine_is_asked(fake, asked, passes, model):
    fake()
    said = []
    ablate.measured(asked(passes, model=model), said.append)
    assert ready(said) == sorted(["none", passes])
    assert not any("logits" in line for line in said)


def test_a_distance_that_fails_is_said_and_tried_again_alone(fake, asked):
    """It shows no speed until then, nor do exact passes beside it. The baseline's logits wait for it."""
    fake(changes="bf16_gate", logits={"bf16_gate": "3 of 8 positions came."})
    options, said = asked("bf16_gate,pdl", alive=1), []
    found = ablate.measured(options, said.append)
    says = "not judged: 3 of 8 positions came; the first 3 tokens are those without the passes"
    assert gates(found)["bf16_gate"] == says
    assert gates(found)["bf16_gate+pdl"] == f"as with bf16_gate alone: {says}"
    assert [gate["ok"] for gate in found["gates"]] == [True, False, False]
    assert [row["tpot_ms"] is None for row in found["rows"]] == [False, True, True]
    assert of(found["attribution"], "bf16_gate")["gain_us"] is None
    assert "bf16_gate: 3 of 8 positions came." in said
    assert files(options) == [distances.BASELINE]
    fake(changes="bf16_gate", logits={"bf16_gate": "near"})
    said.clear()
    again = ablate.measured(options, said.append)
    assert gates(again)["bf16_gate"] == NEAR
    assert of(again["attribution"], "bf16_gate")["gain_us"] == 30.0
    assert (ready(said), [line for line in said if line.startswith("round")]) == (["bf16_gate"], [])
    assert files(options) == []


def test_the_baselines_logits_are_made_anew_where_they_are_gone(fake, asked):
    fake(logits={"bf16_gate": "near"})
    options, said = asked("bf16_gate,pdl", alive=1), []
    found = ablate.measured(options)
    forget(options, "distance", "bf16_gate")
    assert ablate.measured(options, said.append) == found
    assert ready(said) == ["bf16_gate", "none"]
    assert files(options) == []


def test_without_the_baselines_logits_it_is_said_why(fake, asked):
    fake(logits={"none": "no room.", "bf16_gate": "near"})
    options = asked("bf16_gate", alive=1)
    says = f"not judged: there are no logits without passes (no room); {TOKENS}"
    assert gates(ablate.measured(options))["bf16_gate"] == says
    assert files(options) == []
    fake(logits={"bf16_gate": "near"})
    assert gates(ablate.measured(options))["bf16_gate"] == NEAR


def test_logits_of_another_run_are_not_compared_with(fake, asked):
    fake(logits={"bf16_gate": "near"})
    options = asked("bf16_gate")
    options.folder.mkdir()
    for name in (distances.BASELINE, distances.MADE):
        np.save(options.folder / name, np.ones((8, 1000), np.float32))
    assert gates(ablate.measured(options))["bf16_gate"] == NEAR
    assert files(options) == []


@pytest.mark.parametrize("alive", [0, 1])
def test_of_servers_alive_together_those_alone_start_that_lack_something(fake, asked, alive):
    fake(logits={"bf16_gate": "near"})
    options, said = asked("bf16_gate,pdl,moe_align_pairs", alive=alive), []
    found = ablate.measured(options)
    forget(options, "distance", "bf16_gate")
    assert ablate.measured(options, said.append) == found
    assert ready(said) == ["bf16_gate", "none"]
    assert not any(line.startswith("round") for line in said)
    said.clear()
    forget(options, "visit", "1/bf16_gate")
    assert ablate.measured(options, said.append) == found
    assert len(ready(said)) == (1 if alive else len(found["gates"]))  # times are taken side by side
    assert [line for line in said if line.startswith("round")] == ["round 1, bf16_gate: 1.9700 ms a token"]


def test_why_there_was_no_distance_is_forgotten_once_there_is_one(fake, asked, monkeypatch):
    fake(logits={"none": "no room."})
    options = asked("bf16_gate", alive=1)
    assert not ablate.measured(options)["gates"][1]["ok"]
    fake()
    ablate.measured(options)
    with sqlite3.connect(options.folder / ablate.STORE) as db:
        kept = db.execute("SELECT name, value FROM finished WHERE kind = 'unjudged'").fetchall()
    assert sorted(kept) == [("bf16_gate", '""'), ("none", '""')]
    forget(options, "distance", "bf16_gate")
    monkeypatch.setattr(ablate, "find_spec", lambda _: None)
    assert gates(ablate.measured(options))["bf16_gate"] == f"not judged: rounding is declared; {TOKENS}"


@pytest.mark.parametrize("alive", [0, 1])
def test_damaged_logits_are_deleted_and_made_anew_by_the_next_run(fake, asked, alive):
    fake(logits={"bf16_gate": "no."})
    options, said = asked("bf16_gate", alive=alive), []
    ablate.measured(options)
    fake(logits={"bf16_gate": "near"})
    (options.folder / distances.BASELINE).write_bytes(b"\x93NUMPY")
    says = gates(ablate.measured(options))["bf16_gate"]
    assert says.startswith("not judged: ")
    assert says.endswith(f"logits-baseline.npy holds no logits and is deleted; run again to make it anew; {TOKENS}")
    assert files(options) == []
    assert gates(ablate.measured(options, said.append))["bf16_gate"] == NEAR
    assert ready(said) == ["bf16_gate", "none"]


@pytest.mark.parametrize("odd", [np.nan, 0.0])
def test_other_logits_in_the_baselines_file_are_not_compared_with(fake, asked, odd):
    fake(logits={"bf16_gate": "no."})
    options = asked("bf16_gate", alive=1, sample=2)
    ablate.measured(options)
    np.save(options.folder / distances.BASELINE, np.full((8, 1000), odd, np.float32))
    fake(logits={"bf16_gate": "near"})
    says = gates(ablate.measured(options))["bf16_gate"]
    kept = "logits-baseline.npy does not hold the logits that were kept and is deleted; run again to make it anew"
    assert says.endswith(f"{kept}; {TOKENS}")
    assert gates(ablate.measured(options))["bf16_gate"] == NEAR


def test_a_store_without_distances_is_reported_on(fake, asked, monkeypatch):
    """As those made before there were any."""
    fake(changes="bf16_gate", logits={"bf16_gate": "far"})
    options = asked("bf16_gate")
    ablate.measured(options)
    for name in ("none", "bf16_gate"):
        forget(options, "distance", name)
    monkeypatch.setattr(ablate, "find_spec", lambda _: None)
    says = "not judged: rounding is declared; the first 3 tokens are those without the passes"
    found = ablate.measured(options)
    assert gates(found)["bf16_gate"] == says
    assert [gate["ok"] for gate in found["gates"]] == [True, True]


@pytest.mark.parametrize(
    "odd",
    [
        *(
            {"finite": True, "kl_mean": None},
            {"kl_mean": -1.0},
            {"top1_agreement": 2.0},
            {"positions": 0},
            {"finite": 1},
        ),
        *({"kl_mean": 0.1, "kl_max": 0.09}, {"positions": 257}),
    ],
)
def test_a_damaged_distance_is_said(fake, asked, monkeypatch, odd):
    fake()
    options = asked("bf16_gate", sample=2)
    ablate.measured(options)
    monkeypatch.setattr(ablate, "find_spec", lambda _: None)
    whole = {"finite": True, "positions": 8, "top1_agreement": 1.0, "kl_mean": 0.0, "kl_max": 0.0}
    for kept, fails in ((whole, False), (whole | odd, True)):
        with sqlite3.connect(options.folder / ablate.STORE) as db:
            how = "UPDATE finished SET value = ? WHERE kind = 'distance' AND name = 'bf16_gate'"
            db.execute(how, (json.dumps(kept),))
        if fails:
            with pytest.raises(UserError, match="is damaged: its distance bf16_gate is not what was kept"):
                ablate.measured(options)
        else:
            assert ablate.measured(options)


def test_the_smallest_that_round_alike_are_judged():
    some = [(), ("pdl",), ("pdl", "bf16_gate"), ("pdl", "bf16_gate", "overlap"), ("pdl", "bf16_gate", "mla_splits")]
    assert distances.declared(some) == [some[2], some[4]]
    assert [distances.smallest(some, one) for one in some] == [(), (), some[2], some[2], some[4]]


def compared(*pair):
    return distances.compared(*map(np.array, pair))


def test_a_comparison_by_hand(monkeypatch):
    """p = (1/2, 1/2), q = (1/4, 3/4): KL is log(2 / sqrt 3); also where rows are compared in blocks."""
    monkeypatch.setattr(distances, "ROWS", 2)
    p, q = np.zeros(2, np.float32), np.log(np.array([0.25, 0.75], np.float32))
    found = compared([p, q, q], [q, q, q])
    assert found["kl_max"] == pytest.approx(0.143841, abs=1e-6)
    assert found["kl_mean"] == pytest.approx(0.143841 / 3, abs=1e-6)
    assert (found["top1_agreement"], found["positions"], found["finite"]) == (pytest.approx(2 / 3), 3, True)


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("side", [0, 1])
def test_no_figures_of_what_is_not_finite(odd, side):
    rows = np.zeros((2, 20, 3), np.float32)
    rows[side, 17, 1] = odd
    found = compared(*rows)
    assert found == {"finite": False, "positions": 20, "top1_agreement": None, "kl_mean": None, "kl_max": None}


def test_what_cannot_be_compared_is_said(tmp_path, monkeypatch):
    rows, file = np.zeros((4, 3), np.float32), tmp_path / "f.npy"
    for odd, positions in ((rows, 5), (rows.astype(np.float64), 4), (rows[:, 0], 4)):
        np.save(file, odd)
        with pytest.raises(UserError, match=rf"f\.npy does not hold {positions} rows of logits$"):
            distances._loaded(file, positions)
    with open(file, "wb") as archive:
        np.savez(archive, rows)
    with pytest.raises(UserError, match=r"f\.npy holds no logits$"):
        distances._loaded(file, 4)
    with pytest.raises(UserError, match=r"gone\.npy holds no logits$"):
        distances._loaded(tmp_path / "gone.npy", 4)
    with pytest.raises(UserError, match="logits of 2 tokens are compared with some of 3"):
        compared(rows, rows[:, :2])
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UserError, match="torch is missing here"):
        compared(rows, rows)


def test_rows_that_did_not_choose_their_tokens_are_none_of_the_baselines():
    rows, name = np.array([[0, 2, 1], [3, 3, 0]], np.float32), "the text without passes"
    for text in ([1, 0], [1, 1]):  # a tie is either's
        check_likeliest(rows, text, name)
    for text, at in (([0, 1], 0), ([1, 2], 1), ([1, 3], 1), ([1, -1], 1)):
        with pytest.raises(UserError, match=f"token {at} of the text without passes is not the likeliest"):
            check_likeliest(rows, text, name)


def test_the_baseline_is_not_compared_with_itself(fake, asked, monkeypatch):
    """Its row has no figures; that torch is missing is said of the others."""
    fake()
    monkeypatch.setitem(sys.modules, "torch", None)
    options, said = asked("bf16_gate", alive=1), []
    gates = ablate.measured(options, said.append)["gates"]
    assert "none: its logits are kept" in said
    assert [gate["ok"] for gate in gates] == [True, False]
    assert {gates[0][key] for key in ("kl_mean", "kl_max", "top1_agreement", "positions")} == {None}
    assert gates[1]["verdict"] == f"not judged: torch is missing here, which compares logits; {TOKENS}"


def test_a_baseline_whose_rows_are_others_is_not_compared_with(fake, asked):
    fake(logits={"none": "far"})
    says = gates(ablate.measured(asked("bf16_gate")))["bf16_gate"]
    why = (
        "there are no logits without passes (token 0 of the text without passes is not the likeliest by its own logits)"
    )
    assert says == f"not judged: {why}; {TOKENS}"


@pytest.mark.parametrize(
    ("agreement", "kl_mean", "near"), [(0.5, 0.1, True), (0.499, 0.1, False), (0.5, 0.101, False), (1.0, 5.0, False)]
)
def test_both_bounds_hold(agreement, kl_mean, near):
    ok, said = distance.within(agreement, kl_mean, 0.5, 8, "the server")
    assert (ok, said.startswith("rounding, declared: "), said.endswith(BOUNDS)) == (near, near, not near)


def test_one_position_of_many_that_is_unrelated_is_too_far():
    expected = np.random.default_rng(0).normal(0, 2, (128, 1000)).astype(np.float32)
    kept = compared(expected, [expected[1], *expected[1:]])
    assert kept["kl_mean"] < distance.MOST_KL_MEAN
    assert kept["top1_agreement"] > 0.99
    ok, said = distance.within(kept["top1_agreement"], kept["kl_mean"], kept["kl_max"], 128, "the server")
    assert not ok
    begins = f"top-1 equal at 99.22 % of 128 positions, KL {kept['kl_mean']:.1e}, {kept['kl_max']:.1e} at one of them: "
    assert said == f"{begins}{BOUNDS[:-1]}, 0.5 at one)"


def test_a_server_is_held_to_the_bound_of_one_position(fake, asked, monkeypatch):
    fake(logits={"bf16_gate": "near"})
    monkeypatch.setattr(distance, "MOST_KL_MAX", 0.01)
    gate = ablate.measured(asked("bf16_gate"))["gates"][1]
    assert (gate["ok"], gate["verdict"].endswith("at most 0.1, 0.01 at one)")) == (False, True)

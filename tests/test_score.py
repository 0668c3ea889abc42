"""Predictions beside measurements: the committed score, and scores of small made-up ablations."""

import copy
import io
import os
import re

import pytest
from conftest import BUNDLED
from rich.console import Console
from test_cli import refused

from ling_prof import ablation_report, plain_file
from ling_prof.errors import UserError
from optim import score as scoring
from optim import show
from optim.score import filled, renew, score, table

ROOT = BUNDLED.parent
RESULT, TRACE, PAGE = (
    ROOT / name
    for name in ("docs/results/h200-tiny-ablation.json", "traces/ladder/00-baseline.json.gz", "docs/predictions.md")
)


@pytest.fixture(scope="module")
def ablation():
    return ablation_report.load(RESULT)


def first(ablation, count: int):
    """The ablation of its first `count` players in a ladder."""
    some = copy.deepcopy(ablation)
    some["design"], some["attribution"] = "ladder", some["attribution"][:count]
    return some


@pytest.fixture(scope="module")
def scored(ablation):
    return score(ablation, TRACE)


def test_the_committed_predictions_are_what_the_command_says(ablation, scored):
    assert filled(ablation, scored) == ablation
    assert table(scored) in PAGE.read_text()


def test_they_hold_what_the_project_asks_of_them(ablation, scored):
    """Median error at most 15 % of the gain or 2 % of the step, whichever is larger; 80 % inside their bands."""
    count = len(scored["rows"])
    assert count == 16
    assert scored["median_error_us"] <= 0.02e3 * ablation["baseline"]["tpot_ms"]
    assert scored["small"] >= count / 2
    assert scored["inside"] >= 0.8 * count
    assert scored["median_error_us"] < 0.5 * scored["zero_error_us"]  # of one who predicts nothing
    for row in scored["rows"]:
        assert row["inside"] == (row["predicted_low"] <= row["measured_us"] <= row["predicted_high"])
        assert row["error_us"] == pytest.approx(row["predicted_us"] - row["measured_us"])


def test_every_miss_is_explained(scored):
    explained = PAGE.read_text().split("## The misses")[1]
    for row in scored["rows"]:
        assert row["inside"] or f"`{row['pass']}`" in explained, row["pass"]


def test_ladder_gains_add_up_to_the_predicted_total(ablation):
    found = score(first(ablation, 3), TRACE)
    assert sum(row["predicted_us"] for row in found["rows"]) == pytest.approx(found["total"]["predicted_us"])


def test_without_gains_there_is_nothing_to_score(ablation):
    nothing = first(ablation, 0)
    with pytest.raises(UserError, match="holds no gain to score"):
        score(nothing, TRACE)


def drafting(ablation, length: float):
    """The same steps, each of `length` tokens."""
    some = first(ablation, 2)
    for row in (some["baseline"], some["all_on"], *some["rows"], *some["attribution"]):
        row |= {key: row[key] / length for key in ("tpot_ms", "gain_us") if row.get(key) is not None}
    for row in some["rows"]:
        row["accept_length"] *= length
    return some


def test_a_step_of_several_tokens_is_replayed_as_a_step_and_scored_by_the_token(ablation):
    one, four = score(first(ablation, 2), TRACE), score(drafting(ablation, 4), TRACE)
    assert (four["accept_length"], four["basis"], four["small"]) == (4, one["basis"], one["small"])
    for a, b in zip([*one["rows"], one["total"]], [*four["rows"], four["total"]], strict=True):
        for key in ("measured_us", "predicted_us", "predicted_low", "predicted_high", "error_us"):
            assert b[key] == pytest.approx(a[key] / 4)
    assert "a step makes 4.000" in table(four)
    assert "a step makes" not in table(one)


def renamed(ablation, count: int, **names: str):
    some = first(ablation, count)
    for row in some["attribution"]:
        row["pass"] = names.get(row["pass"], row["pass"])
    return some


def test_what_cannot_be_predicted_is_named_and_the_rest_scored(ablation):
    whole = score(first(ablation, 3), TRACE)["rows"]
    found = score(renamed(ablation, 3, pdl="mla_splits+bf16_head"), TRACE)
    assert found["rows"] == whole[:2]
    assert (found["unpredicted"], found["total"]) == (["mla_splits+bf16_head"], None)
    assert "mla_splits+bf16_head cannot be predicted" in table(found)


def test_a_pass_that_finds_nothing_has_no_row():
    """SGLang's routers and head: a replayed graph does not tell which kernels they are."""
    ablation = ablation_report.load(ROOT / "docs/results/h200-tiny-sglang-ablation.json")
    found = score(ablation, ROOT / "traces/sglang/tiny-none.json.gz")
    assert [row["pass"] for row in found["rows"]] == ["moe_align_pairs", "pdl"]
    assert (found["unpredicted"], found["total"]) == (["bf16_gate", "bf16_head"], None)
    stale = [{**row, "predicted_us": 1.0} for row in ablation["attribution"]]
    again = filled({**ablation, "attribution": stale}, found)["attribution"]
    assert [row["predicted_us"] is None for row in again] == [False, True, True, False]
    assert again == ablation["attribution"]  # as committed


def test_the_recording_of_another_baseline_is_refused(tmp_path):
    result = ROOT / "docs/results/h200-tiny-sglang-stock-ablation.json"
    (copied := tmp_path / "ablation.json").write_bytes(result.read_bytes())
    for name in ("tiny-none", "flash12-readback"):
        said = refused("score", str(copied), str(ROOT / f"traces/sglang/{name}.json.gz"), "--update")
        assert f"{name}.json.gz is no recording of the ablation's baseline: the report names tiny-stock.json.gz" in said
    assert copied.read_bytes() == result.read_bytes()


def test_where_nothing_can_be_predicted_it_is_one_sentence():
    said = refused("score", str(ROOT / "docs/results/h200-engine-vs-sglang.json"), str(TRACE))
    assert "h200-engine-vs-sglang.json: engine cannot be predicted here; give an ablation of passes that " in said


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("traces/ladder/16-seam_fuse.json.gz", "its step takes 0.933 ms, less than the 2.755 ms without a profiler"),
        ("traces/h200_qwen3_graph_nodes.sqlite.gz", ""),
    ],
)
def test_a_recording_of_something_else_is_refused(ablation, name, words):
    if words:
        with pytest.raises(UserError, match=f"is no recording of the ablation's baseline: {words}"):
            score(ablation, ROOT / name)
    other = copy.deepcopy(ablation)
    other["lock"]["hardware"] = ["NVIDIA B200"]
    with pytest.raises(UserError, match="it was made on NVIDIA H200, the ablation on NVIDIA B200; record it with"):
        score(other, ROOT / name)


def test_a_page_is_renewed_between_its_marks(tmp_path, ablation):
    found, page = score(first(ablation, 1), TRACE), tmp_path / "page.md"
    page.write_text(f"above\n\n{scoring.BEGIN}\nstale\n{scoring.END}\n\nbelow\n")
    renew(page, found)
    renew(page, found)
    renew(page, {**found, "ablation": f"ling-prof ablate {scoring.END} \x1b[31m"})
    text = page.read_text()
    assert (text.count(scoring.END), "\x1b" in text) == (1, False)
    assert (text.startswith("above\n\n"), text.endswith("\n\nbelow\n"), "stale" in text) == (True, True, False)
    assert text.count("| host_run_ahead | shapley |") == 1


@pytest.mark.parametrize("text", ["", "<!-- ling-prof score -->", "<!-- end of the table --><!-- ling-prof score -->"])
def test_a_page_without_marks_is_refused_before_anything_is_written(tmp_path, text):
    page = tmp_path / "page.md"
    page.write_text(text)
    copied = tmp_path / "ablation.json"
    copied.write_bytes(RESULT.read_bytes())
    said = refused("score", str(copied), str(TRACE), "--update", "--page", str(page))
    assert "put both where the table belongs" in said
    assert (page.read_text(), copied.read_bytes()) == (text, RESULT.read_bytes())


def test_the_terminal_shows_both_and_what_is_no_ablation_is_refused(scored):
    page = io.StringIO()
    Console(file=page, width=160).print(*show.score(scored))
    row = next(row for row in scored["rows"] if row["pass"] == "splitk_gemv")
    shown = " +".join([r"splitk_gemv +ladder", *(f"{row[key]:.1f} us" for key in ("measured_us", "predicted_us"))])
    assert re.search(f"{shown} .* yes", page.getvalue())
    assert re.search(r"swiglu_epilogue .* NO", page.getvalue())
    assert "not ling-prof.ablation/1" in refused("score", str(ROOT / "traces/manifest.json"), str(TRACE))
    assert "README.md" in refused("score", str(RESULT), str(ROOT / "README.md"))


def test_read_only_files_stay_and_links_stay_links(tmp_path, monkeypatch):
    real, link = tmp_path / "real.md", tmp_path / "link.md"
    real.write_text("old")
    link.symlink_to(real)
    plain_file.write_text("new", link)
    assert (real.read_text(), link.is_symlink()) == ("new", True)
    monkeypatch.setattr(os, "access", lambda path, mode: not str(path).endswith("real.md"))  # root may write anywhere
    with pytest.raises(UserError, match=r"real\.md cannot be written: it is read-only"):
        plain_file.write_text("other", real)
    assert real.read_text() == "new"

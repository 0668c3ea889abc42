"""Figures and windows: they show the numbers of the report, and names as text."""

import itertools
import json
import re
import subprocess
import sys

import numpy as np
import pytest
from conftest import BUNDLED
from hypothesis import given, settings
from hypothesis import strategies as st
from test_cli import DEMO
from timelines import Recording

import ling_prof
from ling_prof import ablation_report, bench_report, intervals
from ling_prof.analyses.launches import series
from ling_prof.errors import UserError
from ling_prof.render import figures
from ling_prof.render.figures.style import CLASS_COLOURS, ROLE_COLOURS
from ling_prof.timeline import CLASSES
from ling_prof.view import Options, view
from ling_prof.window import median_window, thinned, window

HOSTILE = '<script>alert(1)</script><b>b</b><a href="javascript:alert(2)">a</a><br>&lt; %{x} $y$ \u202e\x1b[0m'
RESULTS = BUNDLED.parent / "docs/results"
STACKS = BUNDLED / "h200_kimi_eager_stacks.pt.trace.json.gz"


@pytest.fixture(scope="module")
def seen():
    return view(ling_prof.load(DEMO), Options(unprofiled_tpot=2_223_000))


@pytest.fixture(scope="module")
def report(seen):
    return ling_prof.report(seen.trace, seen.options).data


@pytest.fixture(scope="module")
def ablation():
    return ablation_report.load(RESULTS / "h200-tiny-ablation.json")


def total(traces, axis):
    return sum(float(np.sum(trace[axis])) for trace in traces)


def by_name(figure):
    return {trace.name: trace for trace in figure.data}


def test_the_steps_are_those_of_the_report(report):
    bars = by_name(figures.ledger_steps(report))
    for i, step in enumerate(report["steps"]):
        assert {name: round(1e6 * bar.y[i]) for name, bar in bars.items() if bar.y[i]} == {
            name: ns for name, ns in step["ledger"].items() if ns
        }
        assert bars["busy"].x[i] == step["index"]


def test_many_steps_are_drawn_as_means(report):
    many = {**report, "steps": [{**report["steps"][1], "index": i} for i in range(1000)]}
    figure = figures.ledger_steps(many)
    assert {len(bar.x) for bar in figure.data} == {334}
    assert total(figure.data, "y") / 334 == pytest.approx(report["steps"][1]["wall_ns"] / 1e6)
    assert figure.layout.xaxis.title.text == "step (each bar the mean of 3)"
    mixed = {**many, "steps": [{**report["steps"][0], "note": "warm-up", "index": 0}, *many["steps"][1:]]}
    said = figures.ledger_steps(mixed).data[0].hovertext[0]
    assert "steps 0 to 2" in said
    assert "prefill, decode" in said
    assert "1 of 3 left out of means" in said


def test_a_long_prefill_does_not_flatten_the_decode_steps(report):
    figure = figures.ledger_steps(report)
    walls = {step["wall_ns"] for step in report["steps"] if step["phase"] == "decode"}
    assert max(walls) / 1e6 <= figure.layout.yaxis.range[1] < 2 * max(walls) / 1e6
    assert [note.text for note in figure.layout.annotations] == ["30.755 ms \u2191"]


def test_the_waterfall_ends_at_the_wall(report):
    (summary,) = report["summary"]
    for name, bars in by_name(figures.ledger_waterfall(report)).items():
        side = summary["ledger" if name == "recorded" else "calibrated"]
        means = {c: row["mean"] / 1e6 for c, row in side.items()}
        *steps, wall = zip(bars.y, bars.base, bars.x, strict=True)
        assert [x for _, _, x in steps] == pytest.approx([means[c] for c, _, _ in steps])
        assert [base for _, base, _ in steps] == pytest.approx([0, *itertools.accumulate(x for _, _, x in steps[:-1])])
        assert wall == ("wall", 0, pytest.approx(sum(means.values())))


def test_roles_and_savings_are_those_of_the_report(report):
    (bars,) = figures.roles(report).data
    assert sorted(bars.x) == pytest.approx(
        sorted(r["mean"] / 1e3 for r in report["summary"][0]["roles"].values() if r["mean"])
    )
    (bars,) = figures.savings(report["helps"]["rows"]).data
    rows = report["helps"]["rows"]
    assert list(bars.x) == pytest.approx([row["saved_ns"] / 1e3 for row in rows])
    assert bars.x + bars.error_x.array == pytest.approx([row["high_ns"] / 1e3 for row in rows])
    assert bars.x - bars.error_x.arrayminus == pytest.approx([row["low_ns"] / 1e3 for row in rows])


def test_gains_stand_beside_their_predictions(ablation):
    measured, predicted = figures.shapley(ablation).data
    rows = ablation["attribution"]
    assert list(measured.x) == [row["gain_us"] for row in rows]
    assert list(predicted.x) == [row["predicted_us"] for row in rows]
    assert sum(measured.x) == pytest.approx(1e3 * (ablation["baseline"]["tpot_ms"] - ablation["all_on"]["tpot_ms"]))
    diagonal, dots = figures.predicted_measured(ablation).data
    assert (list(dots.x), list(dots.y)) == (list(measured.x), list(predicted.x))
    assert diagonal.x == diagonal.y


def test_the_ladder_shows_predictions_only_where_they_are_of_the_rungs(ablation):
    measured, predicted = figures.ladder(ablation).data
    assert list(measured.y) == [rung["tpot_ms"] for rung in ablation["ladder"]]
    shared = [row["pass"] for row in ablation["attribution"] if row["method"] == "shapley"]
    assert predicted.x[0] == len(shared)
    assert predicted.x[-1] == len(ablation["ladder"]) - 1
    saved = sum(row["predicted_us"] for row in ablation["attribution"])
    assert predicted.y[-1] == pytest.approx(ablation["baseline"]["tpot_ms"] - saved / 1e3)


def test_interactions_are_symmetric(ablation):
    table = np.array(figures.interactions(ablation).data[0].z)
    assert np.array_equal(table, table.T, equal_nan=True)
    assert np.nansum(table) / 2 == pytest.approx(sum(row["us"] for row in ablation["interactions"]))


def test_a_failed_gate_shows_no_gain(ablation):
    nothing = dict.fromkeys(("gain_us", "gain_pct", "low", "high"))
    rows = [{**row, **nothing} for row in ablation["attribution"]]
    for figure in (figures.shapley, figures.predicted_measured):
        assert not figure({**ablation, "attribution": rows}).data
    (bars, _) = figures.shapley({**ablation, "attribution": [*rows[:1], *ablation["attribution"][1:]]}).data
    assert rows[0]["pass"] not in bars.y


def test_what_an_ablation_lacks_is_not_drawn_and_the_rest_is(ablation):
    empty = {**ablation, "attribution": []}
    (measured,) = figures.ladder(empty).data
    assert list(measured.y) == [rung["tpot_ms"] for rung in ablation["ladder"]]
    assert "No pass of this ablation has a measured gain" in figures.shapley(empty).layout.annotations[0].text
    rows = [{**ablation["attribution"][0], "gain_pct": None}, *ablation["attribution"][1:]]
    (bars, _) = figures.shapley({**ablation, "attribution": rows}).data
    assert bars.hovertext[0].startswith(f"{rows[0]['pass']}<br>{rows[0]['gain_us']:.1f} us, by shapley<br>")
    assert " % of the baseline, by shapley" in bars.hovertext[1]


def test_a_diff_goes_from_a_to_b():
    a, b = (ling_prof.load(BUNDLED / f"ladder/{name}.json.gz") for name in ("02-seam_graph", "03-pdl"))
    found = ling_prof.diff(a, b)
    (bars,) = figures.diff_classes(found).data
    assert sum(bars.y[:-1]) == pytest.approx(bars.y[-1]) == pytest.approx(found["wall"]["b_ns"] / 1e6)
    changes = {row["name"]: row["change_ns"] / 1e6 for row in found["classes"] if row["change_ns"]}
    assert dict(zip(bars.x[1:-1], bars.y[1:-1], strict=True)) == pytest.approx(changes)
    low, high = figures.diff_classes(found).layout.yaxis.range
    assert low < min(np.cumsum(bars.y[:-1])) <= max(np.cumsum(bars.y[:-1])) < high


def test_benchmarks_side_by_side():
    found = {path.stem: bench_report.load(path) for path in sorted(RESULTS.glob("*baseline.json"))}
    (bars,) = figures.bench(found).data
    assert list(bars.x) == [one["summary"]["tpot_ms"]["mean"] for one in found.values()]


def test_the_idle_time_of_a_window_is_that_of_the_ledger(seen, report):
    for step in report["steps"]:
        boxes = window(seen, step["index"], most=10**9).boxes
        idle = boxes[boxes["group"].isin(CLASSES)].groupby("group")["total"].sum().to_dict()
        assert idle == {name: ns for name, ns in step["ledger"].items() if ns and name != "busy"}


def test_a_window_holds_every_op_call_and_name(seen):
    whole = window(seen, 2)
    step = seen.steps.table.loc[2]
    inside = (seen.ops.start < step["end"]) & (seen.ops.end > step["start"])
    streams = [i for i, name in enumerate(whole.lanes) if name.startswith("stream")]
    assert whole.boxes["lane"].isin(streams).sum() == inside.sum()
    assert whole.lanes[0].endswith("code")
    (waits,) = whole.boxes[whole.boxes["group"] == "blocking"].itertuples()
    assert waits.label == "cudaStreamSynchronize"
    assert "aten::item < decode (hf_decode.py:" in waits.detail
    assert {"cudaGraphLaunch", "decode (hf_decode.py:123)", "sync_stall"} <= set(whole.boxes["label"])


def assert_apart(boxes):
    for _, lane in boxes.sort_values(["lane", "start"]).groupby("lane"):
        assert (lane["start"].to_numpy()[1:] >= lane["end"].to_numpy()[:-1]).all()


@pytest.mark.parametrize("path", [DEMO, STACKS, BUNDLED / "ladder/16-seam_fuse.json.gz"], ids=str)
@pytest.mark.parametrize("most", [40, 400, 4000])
def test_what_is_drawn_together_keeps_its_totals(path, most):
    looked_at = view(ling_prof.load(path))
    whole, few = (median_window(looked_at, n) for n in (10**9, most))
    assert len(few.boxes) <= max(most, len(few.lanes))
    assert few.lanes == whole.lanes
    for boxes in (whole.boxes, few.boxes):
        assert_apart(boxes)
        assert boxes["start"].min() >= few.start
        assert boxes["end"].max() <= few.end
    for key in ("count", "total"):
        assert few.boxes.groupby("lane")[key].sum().equals(whole.boxes.groupby("lane")[key].sum())


def test_all_200_overlapping_kernels_are_drawn(shared):
    found = median_window(view(ling_prof.load(shared / "h200_triton_chain_pdl1.json.gz")))
    kernels = found.boxes[found.boxes["group"] == "other"]
    assert len(kernels) == 200
    assert len({found.lanes[lane] for lane in kernels["lane"]}) > 1
    assert_apart(found.boxes)


def test_a_part_of_a_step_is_cut_at_its_ends(seen):
    step = seen.steps.table.loc[2]
    begin, until = int(step["start"]) + 1_000_000, int(step["start"]) + 1_100_000
    part = window(seen, 2, begin, until)
    assert (part.origin, part.start, part.end) == (step["start"], begin, until)
    assert part.boxes["start"].min() == begin
    assert part.boxes["end"].max() <= until
    figure = figures.timeline(part)
    assert list(figure.layout.xaxis.range) == [1000, 1100]
    assert figure.layout.xaxis.title.text.startswith("us ")


def test_no_such_step_or_window_is_one_sentence(seen):
    with pytest.raises(UserError, match="no step 99; there are 6"):
        window(seen, 99)
    with pytest.raises(UserError, match="has no length"):
        window(seen, 1, 5, 5)


def test_the_timeline_has_a_trace_a_colour_and_webgl(seen):
    found = median_window(seen)
    figure = figures.timeline(found)
    assert {trace.type for trace in figure.data} == {"scattergl"}
    assert len(figure.data) == found.boxes["group"].nunique() + 1
    drawn = sum(np.nansum(np.diff(np.reshape(trace.x, (-1, 3))[:, :2])) for trace in figure.data[:-1])
    assert drawn == pytest.approx((found.boxes["end"] - found.boxes["start"]).sum() / 1e6)
    assert len(figure.data[-1].x) >= len(found.boxes)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20)), max_size=30))
def test_lanes_are_as_few_as_overlap(spans):
    spans.sort()
    start = np.array([begun for begun, _ in spans], np.int64)
    end = start + np.array([length for _, length in spans], np.int64)
    lane = intervals.lanes(start, end)
    for one in np.unique(lane):
        assert (start[lane == one][1:] >= end[lane == one][:-1]).all()
    deepest = max((sum(b <= t < e for b, e in zip(start, end, strict=True)) for t in start), default=0)
    assert lane.max(initial=-1) + 1 == deepest


def test_launches_are_thinned_to_their_extremes(seen):
    launches = series(seen)
    few = thinned(launches, 50)
    assert len(few) <= 50 < len(launches)
    assert (few["ahead_ns"].min(), few["ahead_ns"].max()) == (launches["ahead_ns"].min(), launches["ahead_ns"].max())
    (line,) = figures.run_ahead(few).data
    assert list(line.y) == pytest.approx(few["ahead_ns"] / 1e6)


def strings(data):
    if isinstance(data, dict):
        for key, value in data.items():
            if key not in ("hovertemplate", "texttemplate", "bdata"):  # ours, without names
                yield from strings(value)
    elif isinstance(data, list):
        for value in data:
            yield from strings(value)
    elif isinstance(data, str):
        yield data


def shown(text):
    """A string as plotly shows it."""
    for entity, char in (("&lt;", "<"), ("&gt;", ">"), ("&#36;", "$"), ("&amp;", "&")):
        text = text.replace(entity, char)
    return text


def hostile_view():
    made = Recording()
    for i in range(4):
        at = 1000 * i
        made.inside("annotation", f"decode_step_{i} {HOSTILE}", at, at + 900).inside("op", HOSTILE, at + 1, at + 800)
        made.kernel(HOSTILE, (at + 5, at + 50), (at + 100, at + 300), 2 * i + 1)
        made.kernel(f"gemm {HOSTILE}", (at + 320, at + 330), (at + 350, at + 600), 2 * i + 2)
        made.call("cudaStreamSynchronize", at + 400, at + 620)
    return view(made.trace(), Options(steps="^decode_step"))


def test_names_stay_text(ablation):
    looked_at = hostile_view()
    data = ling_prof.report(looked_at.trace, looked_at.options).data
    data["trace"]["path"] = HOSTILE
    rows = [{"edits": [HOSTILE], "saved_ns": 5, "low_ns": 1, "high_ns": 9, "sites": [{"site": HOSTILE, "count": 1}]}]
    renamed = json.loads(json.dumps(ablation).replace("moe_fuse", json.dumps(HOSTILE)[1:-1]))
    bench = {HOSTILE: bench_report.load(RESULTS / "h200-tiny-baseline.json")}
    made = [figures.timeline(median_window(looked_at)), figures.ledger_steps(data), figures.savings(rows)]
    made += [make(renamed) for make in (figures.shapley, figures.ladder, figures.predicted_measured)]
    made += [figures.bench(bench)]
    for figure in made:
        found = list(strings(json.loads(figure.to_json())))
        assert not [text for text in found if re.search(r"[<>$]", text.replace("<br>", ""))]
        assert any("<script>alert(1)</script><b>b</b>" in shown(text) for text in found)
        assert not [text for text in found if "\u202e" in text or "\x1b" in text]


LINEAR = {  # Machado, Oliveira and Fernandes, IEEE TVCG 15(6), 2009, severity 1
    "all": np.eye(3),
    "no red": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "no green": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "no blue": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}


def cie_lab(linear):
    xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]] @ np.clip(linear, 0, 1)
    f = [np.cbrt(v) if v > 0.008856 else 7.787 * v + 16 / 116 for v in xyz / np.array([0.9505, 1, 1.089])]
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("colours", [CLASS_COLOURS, ROLE_COLOURS], ids=["classes", "roles"])
@pytest.mark.parametrize("vision", LINEAR)
def test_colours_are_told_apart_with_any_colour_vision(colours, vision):
    light = [np.array([int(c[i : i + 2], 16) / 255 for i in (1, 3, 5)]) for c in colours.values()]
    linear = [np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4) for c in light]
    points = [cie_lab(np.array(LINEAR[vision]) @ c) for c in linear]
    assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(points, 2)) > 15


@pytest.mark.parametrize("make", [figures.ledger_waterfall, figures.ledger_steps, figures.roles])
def test_dark_figures_differ_in_ink_only(report, make):
    light, dark = (json.loads(make(report, dark=dark).to_json()) for dark in (False, True))
    assert light["layout"].pop("template") != dark["layout"].pop("template")
    assert light == dark


def test_without_plotly_it_is_one_sentence_and_nothing_else_needs_it():
    code = (
        "import sys; sys.modules['plotly'] = None\n"
        "from ling_prof.cli import main\n"
        "sys.argv = ['ling-prof', *sys.argv[1:]]; main()"
    )
    run = [sys.executable, "-c", code]
    assert subprocess.run([*run, "report", DEMO], capture_output=True, text=True).returncode == 0
    done = subprocess.run([*run, "report", DEMO, "--html", "out.html"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "ling-prof: a figure needs plotly; pip install 'ling-prof[app]'.\n"

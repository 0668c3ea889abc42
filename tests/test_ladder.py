"""What a rung lowers, on bundled recordings; those of the ladder show what the committed ablation says of them."""

import hashlib
import json
import re
from pathlib import Path

import pytest
from conftest import BUNDLED

import ling_prof
from ling_prof import ablation_report
from optim import base
from optim.base import SHOWN
from optim.ladder import lowered, quantities, quantity

LADDER = BUNDLED / "ladder"
FILES = json.loads((LADDER / "manifest.json").read_text())
RESULT = ablation_report.load(Path(__file__).resolve().parents[1] / "docs/results/h200-tiny-ablation.json")
RUNGS = {row["trace"]: row for row in RESULT["ladder"]}


@pytest.fixture(scope="module")
def report():
    return ling_prof.report(ling_prof.load(BUNDLED / "h200_ling_tiny_graph_stacks.pt.trace.json.gz"))


def test_quantities_are_means_over_the_counted_steps(report):
    steps = [step for step in report["steps"] if not step["note"]]
    mean = {what: sum(step["ledger"][what] for step in steps) / len(steps) / 1e3 for what in ("sync_stall", "busy")}
    mean |= {"kda": sum(step["roles"]["kda"] for step in steps) / len(steps) / 1e3}
    mean |= {"kernels": sum(step["kernels"] for step in steps) / len(steps)}
    mean |= {"launches": sum(row["launches"] for row in report["launches"]) / len(steps)}
    assert {what: quantity(report, what) for what in mean} == pytest.approx(mean, abs=2e-3)
    assert min(mean.values()) > 0


def test_all_quantities_are_there(report):
    found = quantities(report)
    assert tuple(found) == SHOWN
    assert sum(found[what] for what in report["summary"][0]["roles"]) == pytest.approx(found["busy"])


def test_passes_name_what_they_lower(monkeypatch):
    there = base.passes()
    for name, what in {"pdl": "graph_dependency", "bf16_gate": "dense_gemm", "bf16_head": "dense_gemm"}.items():
        monkeypatch.setattr(there[name], "lowers", what, raising=False)
    before, after = ({"graph_dependency": x, "dense_gemm": x, "mla": x} for x in (3.0, 2.0))
    rows = lowered(["pdl", "bf16_gate", "bf16_head"], before, after)
    assert rows == [{"what": what, "before": 3.0, "after": 2.0} for what in ("graph_dependency", "dense_gemm")]


def test_every_pass_lowers_something_that_is_measured():
    for name, module in base.passes().items():
        assert module.lowers in SHOWN, name


@pytest.mark.parametrize("row", json.loads((BUNDLED / "sglang/manifest.json").read_text()), ids=lambda row: row["file"])
def test_sglangs_recordings_are_those_of_their_results(row):
    path = BUNDLED / "sglang" / row["file"]
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    report = ling_prof.report(ling_prof.load(path))
    (result,) = re.findall(r"docs/results/\S+", row["unprofiled_basis"])
    of = ablation_report.load(BUNDLED.parent / result)
    (rung,) = (rung for rung in of["ladder"] if rung["trace"] == row["file"])
    step = rung["tpot_ms"] * row["accept_length"]
    assert (rung["trace_sha256"], row["sha256"]) == (digest, digest)
    assert (report["summary"][0]["rounds"], row["unprofiled_step_ms"]) == (11, pytest.approx(step, abs=1e-4))
    assert report["summary"][0]["wall_ns"]["mean"] / 1e6 / step == pytest.approx(rung["profiled_ratio"], rel=1e-3)


def test_the_ladder_is_whole():
    assert {path.name for path in LADDER.glob("*.gz")} == {row["file"] for row in FILES} > set(RUNGS)
    assert [row["added"] for row in RUNGS.values()][:3] == ["", "host_run_ahead", "seam_graph"]
    switched = {name for row in RUNGS.values() for name in row["added"].split("+") if name}
    assert switched == {*base.passes()} - {"cuda_graph"}
    for row in FILES:
        assert hashlib.sha256((LADDER / row["file"]).read_bytes()).hexdigest() == row["sha256"], row["file"]


def test_every_rung_lowers_what_its_passes_claim():
    before = {}
    for name, row in RUNGS.items():
        after = quantities(ling_prof.report(ling_prof.load(LADDER / name)))
        if before:
            assert row["lowers"] == lowered(row["added"].split("+"), before, after), name
            assert all(claim["after"] < claim["before"] for claim in row["lowers"]), name
        before = after


def test_nsight_systems_sees_the_same_ladder():
    """Where two recorders look at the same work: sync stalls and most kernels are gone at its end."""
    ends = [quantities(ling_prof.report(ling_prof.load(LADDER / row["file"]))) for row in FILES if "nsys" in row]
    first, last = ends
    assert first["sync_stall"] > 50 > 1 > last["sync_stall"]
    assert last["kernels"] < first["kernels"] / 3
    assert last["small_kernels"] < first["small_kernels"] / 10

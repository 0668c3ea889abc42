"""What a rung lowers, on a bundled recording."""

import pytest
from conftest import BUNDLED

import ling_prof
from optim import base
from optim.base import SHOWN
from optim.ladder import lowered, quantities, quantity


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

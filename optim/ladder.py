"""What a rung of the ladder lowers, read from the recordings before and after its passes joined."""

from collections.abc import Iterable
from typing import Any

from ling_prof.report import Report
from optim import base


def quantity(report: Report, what: str) -> float:
    """One of `base.SHOWN`, a step: a ledger class or a role in us; kernels, or calls that launch, as a number."""
    summary = report["summary"][0]
    if what == "kernels":
        return summary["kernels"]
    if what == "launches":
        calls = [row["launches"] for row in report["launches"] if row["device"] == summary["device"]]
        return sum(calls) / len(calls)
    return (summary["ledger"] | summary["roles"])[what]["mean"] / 1e3


def quantities(report: Report) -> dict[str, float]:
    """All of them by name: what a later rung is compared with."""
    return {what: quantity(report, what) for what in base.SHOWN}


def lowered(passes: Iterable[str], before: dict[str, float], after: dict[str, float]) -> list[dict[str, Any]]:
    """What these passes say they lower, each thing once: rows of ablation_report.Lowered."""
    named = base.named(list(passes)).values()
    said = dict.fromkeys(module.lowers for module in named)
    return [{"what": what, "before": before[what], "after": after[what]} for what in said]

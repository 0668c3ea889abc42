"""Limits on the classes of a mean step, for CI."""

from typing import Any

from ling_prof.errors import UserError
from ling_prof.report import Report
from ling_prof.timeline import CLASSES
from ling_prof.units import parse_time, show_time


def parse_limits(texts: list[str]) -> dict[str, int]:
    """['sync_stall=50us'] -> {'sync_stall': 50000}. Raises UserError for an unknown class or a malformed time."""
    limits = {}
    for text in texts:
        name, equals, time = text.partition("=")
        if not equals or name not in (*CLASSES, "wall"):
            raise UserError(f"--max-class {text!r}: give CLASS=TIME with a class of {', '.join(CLASSES)} or wall.")
        limits[name] = parse_time(time, f"--max-class {name}")
    return limits


def judge(report: Report, limits: dict[str, int]) -> list[dict[str, Any]]:
    """One row per device and limit: {"device", "class", "mean_ns", "limit_ns", "ok", "sentence"}. With an unprofiled
    TPOT the calibrated step is judged."""
    if not report["summary"]:
        raise UserError(f"{report['trace']['path']}: no GPU activity to judge.")
    rows = []
    for summary in report["summary"]:
        classes = summary.get("calibrated", summary["ledger"])
        if not summary["rounds"]:
            raise UserError(
                f"{report['trace']['path']}: no {summary['focus']} step to judge on device {summary['device']}."
            )
        for name, limit in limits.items():
            mean = sum(c["mean"] for c in classes.values()) if name == "wall" else classes[name]["mean"]
            verdict = "ok" if mean <= limit else "EXCEEDED"
            sentence = (
                f"device {summary['device']}: {name} {show_time(mean)} of at most {show_time(limit)} a step: {verdict}"
            )
            rows.append(
                {
                    "device": summary["device"],
                    "class": name,
                    "mean_ns": mean,
                    "limit_ns": limit,
                    "ok": mean <= limit,
                    "sentence": sentence,
                }
            )
    return rows

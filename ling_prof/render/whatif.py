"""Predictions as tables for a terminal."""

from collections.abc import Sequence
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from ling_prof.render.tables import alone
from ling_prof.render.text import pairs, shown, table_of
from ling_prof.units import one_line, show_time


def render(found: dict[str, Any], top: int) -> list[RenderableType]:
    """One prediction; of a listing also every pass alone."""
    saved, band = show_time(found["saved_ns"]), f"{show_time(found['low_ns'])} to {show_time(found['high_ns'])}"
    replayed = f"{show_time(found['replayed_ns'])}, {found['replay_error_pct']:+.2f} %"
    lines = [
        Text(one_line(found["trace"]), style="bold"),
        Text(f"step {show_time(found['recorded_ns'])} as recorded, replayed unchanged {replayed}"),
        Text(one_line(found["basis"])),
        *(Text(one_line(f"note: {said}"), style="yellow") for said in found["cannot_say"]),
    ]
    if not found["edits"]:
        return [*lines, *_path(found)]
    together = Text(f"\n{', '.join(found['edits'])}: {_from_to(found)}, saves {saved} ({band})", style="bold")
    if "alone" in found:
        return [*lines, *shown(alone(found["alone"], top)), together, *_path(found)]
    return [*lines, together, *_sites(found["sites"], top)]


def _from_to(found: dict[str, Any]) -> str:
    return f"{show_time(found['step_ns'])} -> {show_time(found['predicted_ns'])}"


def _sites(sites: Sequence[dict[str, Any]], top: int) -> list[RenderableType]:
    table = table_of("What changes", "a step", "kernel or call", left=("kernel or call",))
    for site in sites[:top]:
        table.add_row(f"{site['count']:g}", Text(one_line(site["site"])))
    return [table] if sites else []


def _path(found: dict[str, Any]) -> list[RenderableType]:
    step = sum(found["critical_path"].values())
    shares = {name: f"{show_time(ns)}, {100 * ns / step:.1f} %" for name, ns in found["critical_path"].items()}
    slack = found["host_slack_ns"]
    said = "nothing shows how much longer" if slack is None else f"{show_time(slack)} longer a step before it shows"
    return [*pairs("The critical path of a mean step", shares), Text(f"the host could take {said}")]

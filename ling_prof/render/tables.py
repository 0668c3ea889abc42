"""The tables of a Report, as text in cells: what the terminal and the page show."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ling_prof.report import Report
from ling_prof.roles import LABELS, short_name
from ling_prof.steps import WHOLE
from ling_prof.timeline import CLASSES, HOST_PARTS
from ling_prof.units import show_time

FIXES = {
    "busy": "fewer bytes, better kernels",
    "profiler": "record with less",
    "graph_dependency": "PDL, fusion",
    "dependency": "PDL, fusion",
    "stream_wait": "fewer cross-stream edges",
    "sync_stall": "sync removal",
    "host_bound": "graphs, run-ahead",
    "launch_call": "graphs",
    "launch_latency": "graphs, PDL",
    "rank_skew": "balance the late rank",
    "unknown": "-",
}
SITES = 2  # of a prediction
PART, TOTAL = "  in ", "wall"  # how the rows of a ledger begin that are part of another, and that sum up
Row = Mapping[str, Any]
Columns = dict[str, Callable[[Row], str]]


@dataclass(frozen=True)
class Table:
    """left: the columns that hold text, not numbers; notes: sentences below, or in place of a table without rows."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    left: tuple[str, ...]
    notes: tuple[str, ...] = ()


def device_lines(summary: Row) -> list[str]:
    """How the steps of a device were found, which of them count, and the ruler."""
    found = ", ".join(f"{n} {phase}" for phase, n in summary["steps"].items()) + f" steps, by {summary['source']}"
    if summary["source"] == WHOLE:
        found = "no step found, the whole recording counts as one"
    kind = " of several parts each" if summary["counted"] > summary["rounds"] else ""
    means = f"the means are over {summary['rounds']} {summary['focus']} rounds{kind}"
    left_out = "".join(f"; left out: {x}" for x in summary["left_out"])
    return [f"device {summary['device']}: {found}", means + left_out, summary["ruler"]]


def ledger(summary: Row) -> Table:
    """Mean, p50 and p99 per class; the means add up to the wall time."""
    calibrated = summary.get("calibrated")
    extra = ("unprofiled", "%") if calibrated else ()
    wall, goal = summary["wall_ns"], sum(c["mean"] for c in calibrated.values()) if calibrated else 0
    blank = ("",) * (len(extra) + 1)
    rows = []
    for name in CLASSES:
        row = summary["ledger"][name]
        if row["mean"] or row["p99"]:
            more = _with_share(calibrated[name]["mean"], goal) if calibrated else ()
            rows.append((name, *_cells(row, wall["mean"]), *more, FIXES[name]))
            rows += _host_parts(summary, blank) if name == "host_bound" else []
    rows.append((TOTAL, *_cells(wall, wall["mean"]), *((show_time(goal), "100.0") if calibrated else ()), ""))
    if summary["tpot_ns"] != wall:
        rows.append(("per token", *_cells(summary["tpot_ns"], wall["mean"]), *blank))
    over = summary["overlapped_ns"]["mean"]
    beside = f"besides: {show_time(over)} in which kernels ran beside an earlier one (not counted twice)"
    columns = ("class", "mean", "%", "p50", "p99", *extra, "what helps")
    return Table("Ledger of a step", columns, rows, ("class", "what helps"), (beside,) if over else ())


def _with_share(part: float, whole: float) -> tuple[str, str]:
    return show_time(part), f"{100 * part / whole:.1f}" if whole else "-"


def _cells(row: Row, whole: float) -> tuple[str, ...]:
    """Mean, its share of `whole` in percent, p50 and p99."""
    return *_with_share(row["mean"], whole), show_time(row["p50"]), show_time(row["p99"])


def _host_parts(summary: Row, blank: tuple[str, ...]) -> list[tuple[str, ...]]:
    parts, wall = summary["host_bound"], summary["wall_ns"]["mean"]
    return [(f"{PART}{part}", *_cells(parts[part], wall), *blank) for part in HOST_PARTS if parts[part]["mean"]]


def roles(summary: Row) -> Table:
    busy, by_role = summary["ledger"]["busy"]["mean"], summary["roles"]
    shown = sorted((name for name in by_role if by_role[name]["mean"]), key=lambda name: -by_role[name]["mean"])
    rows = [(LABELS[name], *_with_share(by_role[name]["mean"], busy)) for name in shown]
    kernels = f"{summary['kernels']:.0f} kernels a step"
    if summary["extra_kernels"]:
        kernels += f", {summary['extra_kernels']:.0f} more between steps"
    return Table("Busy time by role", ("role", "mean", "% of busy"), rows, ("role",), (kernels,))


def _table(found: Report, title: str, rows: Sequence[Row], top: int, columns: Columns, *left: str) -> Table:
    """Of rows of the report; with a device column when there are several."""
    if len(found["summary"]) > 1:
        columns = {"device": lambda r: str(r["device"]), **columns}
    title += f" (top {top} of {len(rows)})" if len(rows) > top else ""
    return Table(title, tuple(columns), [tuple(show(row) for show in columns.values()) for row in rows[:top]], left)


def _a_step(found: Report, key: str) -> Callable[[Row], float]:
    """Gives a row's total per token round of its device."""
    rounds = {s["device"]: max(1, s["rounds"]) for s in found["summary"]}
    return lambda row: row[key] / rounds[row["device"]]


def syncs(found: Report, top: int, wide: int = 1) -> Table:
    """Of calls in the chosen steps. Here and below names get `wide` times the room they have in a terminal."""
    calls, blocked, idle = (_a_step(found, f"focus_{key}") for key in ("calls", "blocked_ns", "idle_ns"))
    columns: Columns = {
        "call": lambda r: r["api"],
        "a step": lambda r: f"{calls(r):.2f}",
        "blocked": lambda r: show_time(blocked(r)),
        "idle caused": lambda r: show_time(idle(r)),
        "calls": lambda r: str(r["calls"]),
        "waited for": lambda r: short_name(r["waited_for"], 30 * wide) or "nothing running",
        "site": lambda r: r["site"] or r["range"] or "(no stack recorded)",
    }
    chosen = [row for row in found["syncs"] if row["focus_calls"]]
    elsewhere = len(found["syncs"]) - len(chosen)
    notes = [] if chosen else ["No call in these steps makes the host wait for the device."]
    notes += [f"{elsewhere} more outside these steps (--json has them)"] if elsewhere else []
    table = _table(found, "Costliest blocking calls, per step", chosen, top, columns, "call", "waited for", "site")
    return replace(table, notes=tuple(notes))


def seams(found: Report, top: int, wide: int = 1) -> Table:
    idle = _a_step(found, "idle_ns")
    columns: Columns = {
        "idle a step": lambda r: show_time(idle(r)),
        "%": lambda r: f"{100 * r['share']:.1f}",
        "the host was in": lambda r: r["site"] or "(nothing recorded)",
    }
    return _table(found, "Host code that keeps the device waiting", found["seams"], top, columns, "the host was in")


def launches(found: Report, top: int, wide: int = 1) -> Table:
    columns: Columns = {
        "step": lambda r: str(r["step"]),
        "launches": lambda r: str(r["launches"]),
        "graphs": lambda r: str(r["graph_launches"]),
        "in calls": lambda r: show_time(r["launch_ns"]),
        "least ahead": lambda r: show_time(r["ahead_min_ns"]),
        "median": lambda r: show_time(r["ahead_median_ns"]),
        "most": lambda r: show_time(r["ahead_max_ns"]),
        "queued": lambda r: f"{r['queued_median']:.0f}",
        "starved": lambda r: str(r["starved"]),
    }
    return _table(found, "Launches, and how far they run ahead of the device", found["launches"], top, columns)


def graphs(found: Report, top: int, wide: int = 1) -> Table:
    columns: Columns = {
        "graph": lambda r: str(r["graph"]),
        "launches": lambda r: str(r["launches"]),
        "nodes": lambda r: "opaque" if r["nodes"] < 0 else f"{r['nodes']} ({r['kernels']} kernels)",
        "span": lambda r: show_time(r["span_ns"]),
        "busy": lambda r: show_time(r["busy_ns"]),
        "gaps inside": lambda r: "not visible" if r["gaps_ns"] < 0 else show_time(r["gaps_ns"]),
        "launch call": lambda r: show_time(r["call_ns"]),
        "first": lambda r: short_name(r["first_kernel"], 40 * wide),
    }
    return _table(found, "CUDA graphs (medians)", found["graphs"], top, columns, "first")


def gaps(found: Report, top: int, wide: int = 1) -> Table:
    columns: Columns = {
        "step": lambda r: str(r["step"]),
        "gap": lambda r: show_time(r["length"]),
        "cause": lambda r: f"{r['cause']} {100 * r['classes'][r['cause']] / r['length']:.0f}%",
        "before": lambda r: short_name(r["before"], 32 * wide),
        "after": lambda r: short_name(r["after"], 32 * wide),
        "site": lambda r: " < ".join(r["site"].split(" < ")[:2]),
    }
    return _table(found, "Largest gaps", found["gaps"], top, columns, "cause", "before", "after", "site")


def kernels(found: Report, top: int, wide: int = 1) -> Table:
    busy, calls = _a_step(found, "exclusive_ns"), _a_step(found, "calls")
    columns: Columns = {
        "busy a step": lambda r: show_time(busy(r)),
        "%": lambda r: f"{100 * r['share']:.1f}",
        "a step": lambda r: f"{calls(r):.1f}",
        "median": lambda r: show_time(r["median_ns"]),
        "role": lambda r: r["role"],
        "kernel": lambda r: short_name(r["name"], 60 * wide),
    }
    return _table(found, "Costliest kernels", found["kernels"], top, columns, "role", "kernel")


def layers(found: Report, top: int, wide: int = 1) -> Table:
    busy = _a_step(found, "exclusive_ns")
    columns: Columns = {
        "busy a step": lambda r: show_time(busy(r)),
        "%": lambda r: f"{100 * r['share']:.1f}",
        "layers": lambda r: str(r["layers"]),
        "role": lambda r: r["role"],
        "layer": lambda r: r["layer"],
    }
    return _table(found, "Busy time by layer", found["layers"], top, columns, "role", "layer")


def copies(found: Report, top: int, wide: int = 1) -> Table:
    duration = _a_step(found, "duration_ns")
    columns: Columns = {
        "a step": lambda r: f"{r['per_step']:.1f}",
        "time a step": lambda r: show_time(duration(r)),
        "what": lambda r: r["what"],
    }
    return _table(found, "Copies and casts", found["copies"], top, columns, "what")


def helps(found: Report, top: int, wide: int = 1) -> Table:
    """What each optimization would save of a step of the busiest device."""
    helps = found["helps"]
    if not helps["rows"]:
        return replace(alone([], top), notes=())
    said = f"{helps['basis']} Unchanged, the replay is off by {helps['replay_error_pct']:+.2f} %."
    return replace(alone(helps["rows"], top, wide), notes=(said,))


def alone(rows: Sequence[Row], top: int, wide: int = 1) -> Table:
    """Predictions, each for itself: they do not add up."""
    more = f" (top {top} of {len(rows)})" if len(rows) > top else ""
    shown = []
    for row in rows[:top]:
        times = (show_time(row[key]) for key in ("saved_ns", "low_ns", "high_ns"))
        where = ", ".join(f"{site['site']} x{site['count']:g}" for site in row["sites"][: SITES * wide])
        shown.append((", ".join(row["edits"]), *times, where))
    columns = ("edit", "saves a step", "at least", "at most", "where")
    return Table(f"What would help most, each alone{more}", columns, shown, ("edit", "where"))


def steps(found: Report, top: int, wide: int = 1) -> Table:
    columns: Columns = {
        "step": lambda r: str(r["index"]),
        "phase": lambda r: r["phase"],
        "start": lambda r: show_time(r["start_ns"]),
        "wall": lambda r: show_time(r["wall_ns"]),
        "busy": lambda r: show_time(r["ledger"]["busy"]),
        "kernels": lambda r: f"{r['kernels']}" + (f" + {r['extra_kernels']}" if r["extra_kernels"] else ""),
        "name": lambda r: r["name"],
        "left out": lambda r: r["note"],
    }
    return _table(found, "Steps", found["steps"], top, columns, "phase", "name", "left out")

"""A Report as tables for a terminal."""

from collections.abc import Callable, Sequence
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ling_prof.report import Report
from ling_prof.roles import LABELS, short_name
from ling_prof.steps import WHOLE
from ling_prof.timeline import CLASSES, HOST_PARTS
from ling_prof.units import one_line, show_time

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
TOP = 5
SITES = 2  # of a prediction


def render(report: Report, top: int = TOP) -> RenderableType:
    """The whole report."""
    parts: list[RenderableType] = [header(report)]
    for summary in report["summary"]:
        parts += [device_heading(summary), *(table(summary) for table in (ledger, roles) if summary["rounds"])]
    for section in (syncs, seams, launches, graphs, gaps, kernels, layers, copies, helps):
        parts += section(report, top)
    return Group(*parts, *cannot_say(report))


def header(report: Report) -> RenderableType:
    trace = report["trace"]
    devices = ", ".join(sorted({d["name"] for d in trace["devices"]}))
    lines = [Text(one_line(trace["path"]), style="bold"), Text(one_line(f"{trace['format']} recording, {devices}"))]
    return Group(*lines, *(Text(f"note: {note}", style="yellow") for note in trace["notes"]))


def device_heading(summary: dict[str, Any]) -> RenderableType:
    found = ", ".join(f"{n} {phase}" for phase, n in summary["steps"].items()) + f" steps, by {summary['source']}"
    if summary["source"] == WHOLE:
        found = "no step found, the whole recording counts as one"
    kind = " of several parts each" if summary["counted"] > summary["rounds"] else ""
    lines = [
        f"\ndevice {summary['device']}: {found}",
        f"the means are over {summary['rounds']} {summary['focus']} rounds{kind}"
        + "".join(f"; left out: {x}" for x in summary["left_out"]),
        summary["ruler"],
    ]
    return Text("\n".join(lines))


def table_of(title: str, *columns: str, left: Sequence[str] = ()) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        table.add_column(name, justify="left" if name in left else "right", overflow="fold", no_wrap=name not in left)
    return table


def ledger(summary: dict[str, Any]) -> RenderableType:
    """Mean, p50 and p99 per class; the means add up to the wall time."""
    calibrated = summary.get("calibrated")
    extra = ["unprofiled", "%"] if calibrated else []
    table = table_of(
        "Ledger of a step", "class", "mean", "%", "p50", "p99", *extra, "what helps", left=("class", "what helps")
    )
    wall, goal = summary["wall_ns"], sum(c["mean"] for c in calibrated.values()) if calibrated else 0
    for name in CLASSES:
        row = summary["ledger"][name]
        if row["mean"] or row["p99"]:
            more = _with_share(calibrated[name]["mean"], goal) if calibrated else []
            table.add_row(name, *_cells(row, wall["mean"]), *more, FIXES[name])
            if name == "host_bound":
                _host_parts(table, summary, [""] * (len(extra) + 1))
    table.add_section()
    table.add_row("wall", *_cells(wall, wall["mean"]), *([show_time(goal), "100.0"] if calibrated else []), "")
    if summary["tpot_ns"] != wall:
        table.add_row("per token", *_cells(summary["tpot_ns"], wall["mean"]), *[""] * (len(extra) + 1))
    over = summary["overlapped_ns"]["mean"]
    beside = f"besides: {show_time(over)} in which kernels ran beside an earlier one (not counted twice)"
    return Group(table, *([Text(beside)] if over else []))


def _with_share(part: float, whole: float) -> list[str]:
    return [show_time(part), f"{100 * part / whole:.1f}" if whole else "-"]


def _cells(row: dict[str, int], whole: float) -> list[str]:
    """Mean, its share of `whole` in percent, p50 and p99."""
    return [*_with_share(row["mean"], whole), show_time(row["p50"]), show_time(row["p99"])]


def _host_parts(table: Table, summary: dict[str, Any], blank: list[str]) -> None:
    for part in HOST_PARTS:
        row = summary["host_bound"][part]
        if row["mean"]:
            table.add_row(f"  in {part}", *_cells(row, summary["wall_ns"]["mean"]), *blank, style="dim")


def roles(summary: dict[str, Any]) -> RenderableType:
    table = table_of("Busy time by role", "role", "mean", "% of busy", left=("role",))
    busy = summary["ledger"]["busy"]["mean"]
    for name, row in sorted(summary["roles"].items(), key=lambda item: -item[1]["mean"]):
        if row["mean"]:
            table.add_row(LABELS[name], *_with_share(row["mean"], busy))
    kernels = f"{summary['kernels']:.0f} kernels a step"
    if summary["extra_kernels"]:
        kernels += f", {summary['extra_kernels']:.0f} more between steps"
    return Group(table, Text(kernels))


Columns = dict[str, Callable[[dict], str]]


def _section(
    report: Report, title: str, rows: list[dict], top: int, columns: Columns, left: Sequence[str]
) -> list[RenderableType]:
    """A table of rows of the report; with a device column when there are several."""
    if not rows:
        return []
    if len(report["summary"]) > 1:
        columns = {"device": lambda r: str(r["device"]), **columns}
    table = table_of(title + (f" (top {top} of {len(rows)})" if len(rows) > top else ""), *columns, left=left)
    for row in rows[:top]:
        table.add_row(*(Text(one_line(show(row))) for show in columns.values()))
    return [table]


def _a_step(report: Report, key: str) -> Callable[[dict], float]:
    """Gives a row's total per token round of its device."""
    rounds = {s["device"]: max(1, s["rounds"]) for s in report["summary"]}
    return lambda row: row[key] / rounds[row["device"]]


def syncs(report: Report, top: int) -> list[RenderableType]:
    calls, blocked, idle = (_a_step(report, f"focus_{key}") for key in ("calls", "blocked_ns", "idle_ns"))
    columns: Columns = {
        "call": lambda r: r["api"],
        "a step": lambda r: f"{calls(r):.2f}",
        "blocked": lambda r: show_time(blocked(r)),
        "idle caused": lambda r: show_time(idle(r)),
        "calls": lambda r: str(r["calls"]),
        "waited for": lambda r: short_name(r["waited_for"], 30) or "nothing running",
        "site": lambda r: r["site"] or r["range"] or "(no stack recorded)",
    }
    chosen = [row for row in report["syncs"] if row["focus_calls"]]
    elsewhere = len(report["syncs"]) - len(chosen)
    note = [Text(f"{elsewhere} more outside these steps (--json has them)")] if elsewhere else []
    if not chosen:
        return [Text("\nNo call in these steps makes the host wait for the device."), *note]
    left = ("call", "waited for", "site")
    return _section(report, "Costliest blocking calls, per step", chosen, top, columns, left) + note


def seams(report: Report, top: int) -> list[RenderableType]:
    idle = _a_step(report, "idle_ns")
    columns: Columns = {
        "idle a step": lambda r: show_time(idle(r)),
        "%": lambda r: f"{100 * r['share']:.1f}",
        "the host was in": lambda r: r["site"] or "(nothing recorded)",
    }
    return _section(
        report, "Host code that keeps the device waiting", report["seams"], top, columns, ("the host was in",)
    )


def launches(report: Report, top: int) -> list[RenderableType]:
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
    return _section(report, "Launches, and how far they run ahead of the device", report["launches"], top, columns, ())


def graphs(report: Report, top: int) -> list[RenderableType]:
    columns: Columns = {
        "graph": lambda r: str(r["graph"]),
        "launches": lambda r: str(r["launches"]),
        "nodes": lambda r: "opaque" if r["nodes"] < 0 else f"{r['nodes']} ({r['kernels']} kernels)",
        "span": lambda r: show_time(r["span_ns"]),
        "busy": lambda r: show_time(r["busy_ns"]),
        "gaps inside": lambda r: "not visible" if r["gaps_ns"] < 0 else show_time(r["gaps_ns"]),
        "launch call": lambda r: show_time(r["call_ns"]),
        "first": lambda r: short_name(r["first_kernel"], 40),
    }
    return _section(report, "CUDA graphs (medians)", report["graphs"], top, columns, ("first",))


def gaps(report: Report, top: int) -> list[RenderableType]:
    columns: Columns = {
        "step": lambda r: str(r["step"]),
        "gap": lambda r: show_time(r["length"]),
        "cause": lambda r: f"{r['cause']} {100 * r['classes'][r['cause']] / r['length']:.0f}%",
        "before": lambda r: short_name(r["before"], 32),
        "after": lambda r: short_name(r["after"], 32),
        "site": lambda r: " < ".join(r["site"].split(" < ")[:2]),
    }
    return _section(report, "Largest gaps", report["gaps"], top, columns, ("cause", "before", "after", "site"))


def kernels(report: Report, top: int) -> list[RenderableType]:
    busy, calls = _a_step(report, "exclusive_ns"), _a_step(report, "calls")
    columns: Columns = {
        "busy a step": lambda r: show_time(busy(r)),
        "%": lambda r: f"{100 * r['share']:.1f}",
        "a step": lambda r: f"{calls(r):.1f}",
        "median": lambda r: show_time(r["median_ns"]),
        "role": lambda r: r["role"],
        "kernel": lambda r: short_name(r["name"], 60),
    }
    return _section(report, "Costliest kernels", report["kernels"], top, columns, ("role", "kernel"))


def layers(report: Report, top: int) -> list[RenderableType]:
    busy = _a_step(report, "exclusive_ns")
    columns: Columns = {
        "busy a step": lambda r: show_time(busy(r)),
        "%": lambda r: f"{100 * r['share']:.1f}",
        "layers": lambda r: str(r["layers"]),
        "role": lambda r: r["role"],
        "layer": lambda r: r["layer"],
    }
    return _section(report, "Busy time by layer", report["layers"], top, columns, ("role", "layer"))


def copies(report: Report, top: int) -> list[RenderableType]:
    duration = _a_step(report, "duration_ns")
    columns: Columns = {
        "a step": lambda r: f"{r['per_step']:.1f}",
        "time a step": lambda r: show_time(duration(r)),
        "what": lambda r: r["what"],
    }
    return _section(report, "Copies and casts", report["copies"], top, columns, ("what",))


def helps(report: Report, top: int) -> list[RenderableType]:
    """What each optimization would save of a step of the busiest device."""
    found = report["helps"]
    if not found["rows"]:
        return []
    said = f"{found['basis']} Unchanged, the replay is off by {found['replay_error_pct']:+.2f} %."
    return [*alone(found["rows"], top), Text(one_line(said))]


def alone(rows: Sequence[dict[str, Any]], top: int) -> list[RenderableType]:
    """Predictions, each for itself: they do not add up."""
    more = f" (top {top} of {len(rows)})" if len(rows) > top else ""
    columns = ("edit", "saves a step", "at least", "at most", "where")
    table = table_of(f"What would help most, each alone{more}", *columns, left=("edit", "where"))
    for row in rows[:top]:
        times = (show_time(row[key]) for key in ("saved_ns", "low_ns", "high_ns"))
        where = ", ".join(f"{site['site']} x{site['count']:g}" for site in row["sites"][:SITES])
        table.add_row(", ".join(row["edits"]), *times, Text(one_line(where)))
    return [table] if rows else []


def cannot_say(report: Report) -> list[RenderableType]:
    lines: list[RenderableType] = [Text("\nWhat this trace cannot say", style="bold")] if report["cannot_say"] else []
    for row in report["cannot_say"]:
        lines += [Text(row["question"]), Padding(Text(f"{row['reason']}; {row['remedy']}."), (0, 0, 0, 4))]
    return lines


def steps(report: Report, top: int) -> list[RenderableType]:
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
    found = [device_heading(s) for s in report["summary"]]
    return found + _section(report, "Steps", report["steps"], top, columns, ("phase", "name", "left out"))


def doctor(found: dict[str, Any]) -> list[RenderableType]:
    """What `doctor.examine` found."""
    holds = table_of("Holds", "table", "rows", "detail", left=("table", "detail"))
    for row in found["holds"]:
        holds.add_row(row["table"], f"{row['rows']:,}", row["detail"])
    parts: list[RenderableType] = [Text(one_line(f"{found['path']}: {found['format']}"), style="bold"), holds]
    if found["steps"]:
        phases = ", ".join(f"{n} {p}" for p, n in found["steps"]["phases"].items())
        parts.append(Text(f"Steps: {phases}, by {found['steps']['source']}"))
    parts += [Text(f"Note: {note}") for note in found["notes"]]
    return parts + pairs(
        "Lacks, and how to record it", {row["what"]: f"{row['why']}; {row['remedy']}" for row in found["lacks"]}
    )


def pairs(title: str, rows: dict[str, str]) -> list[RenderableType]:
    table = table_of(title, "what", "", left=("what", ""))
    for name, text in rows.items():
        table.add_row(Text(name), Text(text))
    return [table] if rows else []

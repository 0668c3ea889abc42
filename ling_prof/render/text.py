"""A Report as tables for a terminal."""

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ling_prof.render import tables
from ling_prof.report import Report
from ling_prof.units import one_line

TOP = 5
SECTIONS = ("syncs", "seams", "launches", "graphs", "gaps", "kernels", "layers", "copies", "helps")


def render(report: Report, top: int = TOP) -> RenderableType:
    """The whole report."""
    parts: list[RenderableType] = [header(report)]
    for summary in report["summary"]:
        parts.append(device_heading(summary))
        parts += [*shown(tables.ledger(summary)), *shown(tables.roles(summary))] if summary["rounds"] else []
    for name in SECTIONS:
        parts += section(name, report, top)
    return Group(*parts, *cannot_say(report))


def header(report: Report) -> RenderableType:
    trace = report["trace"]
    devices = ", ".join(sorted({d["name"] for d in trace["devices"]}))
    lines = [Text(one_line(trace["path"]), style="bold"), Text(one_line(f"{trace['format']} recording, {devices}"))]
    return Group(*lines, *(Text(f"note: {note}", style="yellow") for note in trace["notes"]))


def device_heading(summary: dict[str, Any]) -> RenderableType:
    return Text("\n".join(["", *tables.device_lines(summary)]))


def table_of(title: str, *columns: str, left: Sequence[str] = ()) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        table.add_column(name, justify="left" if name in left else "right", overflow="fold", no_wrap=name not in left)
    return table


def shown(of: tables.Table) -> list[RenderableType]:
    """The table, when it has rows, and what is said below it."""
    table = table_of(of.title, *of.columns, left=of.left)
    for row in of.rows:
        if row[0] == tables.TOTAL:
            table.add_section()
        cells = (Text(one_line(cell)) for cell in row)
        table.add_row(*cells, style="dim" if row[0].startswith(tables.PART) else None)
    notes = [Text(one_line(note)) for note in of.notes]
    return [table, *notes] if of.rows else [Text("\n" * (not i)).append_text(note) for i, note in enumerate(notes)]


def section(name: str, report: Report, top: int) -> list[RenderableType]:
    """The table of this name; above that of the steps, how they were found."""
    found = [device_heading(summary) for summary in report["summary"]] if name == "steps" else []
    return found + shown(getattr(tables, name)(report, top))


def cannot_say(report: Report) -> list[RenderableType]:
    lines: list[RenderableType] = [Text("\nWhat this trace cannot say", style="bold")] if report["cannot_say"] else []
    for row in report["cannot_say"]:
        lines += [Text(row["question"]), Padding(Text(f"{row['reason']}; {row['remedy']}."), (0, 0, 0, 4))]
    return lines


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

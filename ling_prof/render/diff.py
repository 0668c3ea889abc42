"""A diff as tables for a terminal."""

from itertools import groupby

from rich.console import Group, RenderableType
from rich.text import Text

from ling_prof.diff_report import Change, ClassChange, Diff, Edit, Kernel, Op, Side, Work
from ling_prof.render.bench import notes
from ling_prof.render.tables import FIXES
from ling_prof.render.text import table_of
from ling_prof.roles import LABELS, short_name
from ling_prof.timeline import CLASSES
from ling_prof.units import one_line, show_time

NAMES = 4  # of a run that is shown


def render(found: Diff, top: int) -> RenderableType:
    """The whole diff; `top` rows of each table of kernels."""
    tables = [classes(found), roles(found), kinds(found), *edits(found, top), *names(found, top), *kernels(found, top)]
    return Group(*header(found), *tables)


def header(found: Diff) -> list[Text]:
    """Which steps are compared, how unlike their recordings are, and by how much the steps differ."""
    wall = found["wall"]
    change = f"change from A to B: {_signed(wall['change_ns'])} ({_percent(wall)})"
    change += f"; of the means over all rounds: {_signed(wall['mean']['change_ns'])} ({_percent(wall['mean'])})"
    sides = [Text(one_line(_side("A", found["a"])), style="bold"), Text(one_line(_side("B", found["b"])), style="bold")]
    return [*sides, *notes("warning", found["warnings"]), Text(change), *_per_token(found), *_rulers(found)]


def _side(label: str, side: Side) -> str:
    index, step = side["step"]["index"], side["step"]
    which = f"step {index[0]}" if len(index) == 1 else f"steps {index[0]} to {index[-1]}"
    gpu = side["gpu"] or f"device {side['device']}"
    shown = f"{which}, {show_time(step['wall_ns'])}, {step['ops']:,} ops"
    return f"{label}: {side['path']} ({side['lock']['format']}, {gpu}): {shown}; the median of {side['rounds']} rounds"


def _per_token(found: Diff) -> list[Text]:
    """The mean time per token, where a round commits several in one of them."""
    sides = (found["a"], found["b"])
    if all(side["tpot_ns"] == side["wall_ns"] for side in sides):
        return []
    a, b = (side["tpot_ns"]["mean"] for side in sides)
    change: Change = {"a_ns": a, "b_ns": b, "change_ns": b - a}
    return [Text(f"per token, mean: A {show_time(a)}, B {show_time(b)}, {_signed(b - a)} ({_percent(change)})")]


def _rulers(found: Diff) -> list[Text]:
    a, b = found["a"]["ruler"], found["b"]["ruler"]
    return [Text(line) for line in ([a] if a == b else [f"A: {a}", f"B: {b}"])]


def _signed(ns: int) -> str:
    return f"{'+' if ns > 0 else ''}{show_time(ns)}"


def _percent(change: Change) -> str:
    return f"{100 * change['change_ns'] / change['a_ns']:+.1f} %" if change["a_ns"] else "-"


def _cells(change: Change) -> list[str]:
    return [show_time(change["a_ns"]), show_time(change["b_ns"]), _signed(change["change_ns"])]


def classes(found: Diff) -> RenderableType:
    """Every class of both steps; the changes add up to that of the wall."""
    extra = ["A unprofiled", "B unprofiled", "change"] if "calibrated" in found["wall"] else []
    columns = ("A", "B", "change", "mean change", *extra)
    table = table_of("\nLedger of a step", "class", *columns, "what helps", left=("class", "what helps"))
    for row in found["classes"]:
        if row["a_ns"] or row["b_ns"] or row["mean"]["a_ns"] or row["mean"]["b_ns"]:
            table.add_row(*_class(row), FIXES[row["name"]])
    table.add_section()
    table.add_row(*_class(found["wall"]), "")
    return table


def _class(row: ClassChange) -> list[str]:
    calibrated = _cells(row["calibrated"]) if "calibrated" in row else []
    return [row["name"], *_cells(row), _signed(row["mean"]["change_ns"]), *calibrated]


def roles(found: Diff) -> RenderableType:
    table = table_of("Busy time and the idle time before it, by role", *WORK, "role", left=("role",))
    for row in found["roles"]:
        table.add_row(*_work(row), LABELS[row["role"]])
    return table


WORK = ("ops A", "ops B", "A", "B", "change", "of it busy", "idle")


def _work(row: Work) -> list[str]:
    parts = [_signed(row["busy_change_ns"]), _signed(row["idle_change_ns"])]
    return [str(row["a_count"]), str(row["b_count"]), *_cells(row), *parts]


def kinds(found: Diff) -> RenderableType:
    """What became of the ops of A."""
    table = table_of("What became of the ops", "", "ops", "A", "B", "change", left=("",))
    for row in found["kinds"]:
        if row["count"]:
            table.add_row(row["name"], str(row["count"]), *_cells(row))
    return table


def edits(found: Diff, top: int) -> list[RenderableType]:
    rows = found["edits"]
    columns = ("times", "A", "B", "change", "in A", "in B")
    table = table_of(_title("What stands for what", len(rows), top), *columns, left=("in A", "in B"))
    for row in rows[:top]:
        table.add_row(str(row["count"]), *_cells(row), *_runs(row))
    return [table] if rows else []


def _title(said: str, rows: int, top: int) -> str:
    return f"{said} (top {top} of {rows:,})" if rows > top else said


def _runs(row: Edit) -> list[Text]:
    return [Text(one_line(_run(names))) for names in (row["removed"], row["added"])]


def _run(names: list[str]) -> str:
    """The names of a run, repeated ones counted, the first few of them."""
    counted = [(name, len(list(same))) for name, same in groupby(names)]
    shown = [short_name(name, 40) + (f" x{count}" if count > 1 else "") for name, count in counted[:NAMES]]
    more = sum(count for _, count in counted[NAMES:])
    return " + ".join([*shown, *([f"{more:,} more"] if more else [])]) or "-"


def names(found: Diff, top: int) -> list[RenderableType]:
    rows = [row for row in found["names"] if row["change_ns"]]
    title = _title("Kernels by name, largest change first", len(rows), top)
    table = table_of(title, *WORK, "role", "kernel", left=("role", "kernel"))
    for row in rows[:top]:
        table.add_row(*_work(row), row["role"], Text(one_line(short_name(row["name"], 50))))
    return [table] if rows else []


def kernels(found: Diff, top: int) -> list[RenderableType]:
    rows = sorted((row for row in found["kernels"] if row["change_ns"]), key=lambda row: -abs(row["change_ns"]))
    columns = ("at in A", "in B", "change", "most of it", "what", "kernel")
    title = _title("Single kernels, each with the gap before it, largest change first", len(rows), top)
    table = table_of(title, *columns, left=("most of it", "what", "kernel"))
    for row in rows[:top]:
        at = [show_time(op["at_ns"]) if op else "-" for op in (row["a"], row["b"])]
        table.add_row(*at, _signed(row["change_ns"]), _cause(row), row["kind"], Text(one_line(_named(row))))
    return [table] if rows else []


def _cause(row: Kernel) -> str:
    """The class with the largest change."""
    ledgers = [op["ledger"] if op else {} for op in (row["a"], row["b"])]
    changes = {name: ledgers[1].get(name, 0) - ledgers[0].get(name, 0) for name in CLASSES}
    name = max(CLASSES, key=lambda name: abs(changes[name]))
    return f"{name} {_signed(changes[name])}"


def _named(row: Kernel) -> str:
    sides: list[Op] = [op for op in (row["a"], row["b"]) if op]
    shown = " -> ".join(dict.fromkeys(short_name(op["name"], 40) for op in sides))
    marks = {"after": " (the next step's first)", "before": " (already running)", "inside": ""}
    return (shown if row["kind"] != "same" else short_name(sides[0]["name"], 60)) + marks[sides[0]["place"]]

"""The difference of two recordings as plain data: its shape and its file."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NotRequired, TypedDict, cast

from ling_prof import plain_file
from ling_prof.errors import UserError

SCHEMA = "ling-prof.diff/1"
REMEDY = "write it again with ling-prof diff --json"
KINDS = ("same", "renamed", "replaced", "removed", "added")


class Change(TypedDict):
    """ns; change is b - a."""

    a_ns: int
    b_ns: int
    change_ns: int


class ClassChange(Change):
    """One class, or the wall. mean: of all rounds instead; calibrated: as it would be without a profiler."""

    name: str
    mean: Change
    calibrated: NotRequired[Change]


class Work(Change):
    """The ops of one role or name: how many start in the step, and their busy time and the idle time before them."""

    name: str
    role: str
    a_count: int
    b_count: int
    busy_change_ns: int
    idle_change_ns: int


class Kind(Change):
    """What became of ops: one of KINDS. count: those inside the step; of a pair the ops of both sides count once."""

    name: str
    count: int


class Edit(Change):
    """A run of ops that stands in place of another one, `count` times in the step; either may be empty.

    count 0: only ops outside the step, whose gap or end reaches into it.
    """

    removed: list[str]
    added: list[str]
    count: int


class Op(TypedDict):
    """at_ns: its start, from that of the step. ledger: {class: ns}, busy and the gap before it.

    place: 'before' for an op that was running as the step began, 'after' for the next step's first op, which ends the
    last gap; else 'inside'.
    """

    name: str
    role: str
    place: str
    at_ns: int
    ledger: dict[str, int]


class Kernel(TypedDict):
    """kind: of KINDS; renamed ops share the family of their names, replaced ones only the role."""

    kind: str
    a: Op | None
    b: Op | None
    change_ns: int


class Round(Change):
    """The n-th round of either side; a_step and b_step: the index of its first step."""

    a_step: int
    b_step: int


class Step(TypedDict):
    """The round that stands for the others: the indices and phases of its steps."""

    index: list[int]
    phases: list[str]
    wall_ns: int
    ops: int


class Side(TypedDict):
    """One recording; wall_ns and tpot_ns are {mean, p50, p99} of its rounds, as in a report's summary."""

    path: str
    device: int
    gpu: str | None
    lock: dict[str, str]
    source: str
    rounds: int
    left_out: list[str]
    wall_ns: dict[str, int]
    tpot_ns: dict[str, int]
    ruler: str
    step: Step


class Diff(TypedDict):
    """classes, roles, names, kinds, kernels: each adds up to the change of the wall. edits: those not `same`.

    rounds: as many as the shorter recording has. kernels: in order; roles, names and edits: largest change first.
    """

    schema: str
    a: Side
    b: Side
    warnings: list[str]
    wall: ClassChange
    classes: list[ClassChange]
    roles: list[Work]
    names: list[Work]
    kinds: list[Kind]
    edits: list[Edit]
    rounds: list[Round]
    kernels: list[Kernel]


def load(path: Path) -> Diff:
    """The diff in a file. Raises UserError for what cannot be read, has another schema or shape, or does not add up."""
    found = cast(Diff, plain_file.read(path, SCHEMA, Diff, REMEDY))
    if said := fault(found):
        raise UserError(f"{path}: {said}; {REMEDY}.")
    return found


def save(found: Diff, path: Path) -> None:
    """Writes the whole file or none of it. Raises UserError where that fails."""
    plain_file.write(found, path)


def fault(found: Diff) -> str:
    """What does not add up to the change of the wall; empty when all does."""
    wall = found["wall"]
    whole: dict[str, Iterable[Mapping]] = {key: found[key] for key in ("classes", "roles", "names", "kinds", "kernels")}
    for what, rows in whole.items():
        if sum(row["change_ns"] for row in rows) != wall["change_ns"]:
            return f"its {what} do not add up to the change of the step, {wall['change_ns']} ns"
    return ""

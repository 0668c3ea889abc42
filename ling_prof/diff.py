"""Where the change of step time between two recordings went: class by class, and kernel by kernel.

Each nanosecond of a step belongs to a class and to an op: the one that ran, or the one that ended the gap. The ops of
two steps are aligned by name; the changes of all classes, and those of all ops, add up to the change of the wall.
"""

from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any

import numpy as np
import pandas as pd

from ling_prof import lock
from ling_prof.account import Account, account
from ling_prof.align import align
from ling_prof.callable_module import make_callable
from ling_prof.diff_report import (
    KINDS,
    SCHEMA,
    Change,
    ClassChange,
    Diff,
    Edit,
    Kernel,
    Kind,
    Op,
    Round,
    Side,
    Work,
    fault,
)
from ling_prof.diff_report import load as load
from ling_prof.diff_report import save as save
from ling_prof.errors import UserError
from ling_prof.steps import NO_STEPS, WHOLE
from ling_prof.timeline import BUSY, CLASSES
from ling_prof.trace import Trace
from ling_prof.units import show_time
from ling_prof.view import Options, View, view_of

RESAMPLES = 2000
Difference = tuple[str, Any, Any]  # what, in A, in B


def diff(a: Trace, b: Trace, options: tuple[Options, Options] = (Options(), Options()), force: bool = False) -> Diff:
    """How a step of `b` differs from one of `a`; options: how to look at either.

    Raises UserError where a recording has no such step and, unless `force`, where no step was found, or the GPUs or the
    phases differ; with `force` these are among the warnings, as other unlike conditions always are.
    """
    return diff_of(view_of(a, options[0]), view_of(b, options[1]), force)


def diff_of(a: View, b: View, force: bool = False) -> Diff:
    """As `diff`, of views that are there already."""
    one, other = account(a), account(b)
    warnings = _warnings(one, other, force)
    kernels = list(_kernels(one, other))
    wall, *classes = _classes(one, other)
    found: Diff = {
        "schema": SCHEMA,
        "a": _side(one),
        "b": _side(other),
        "warnings": warnings,
        "wall": wall,
        "classes": classes,
        "roles": _work(one, other, lambda side: (side.roles, side.roles)),
        "names": _work(one, other, lambda side: (side.bare_names, side.names)),
        "kinds": _kinds(kernels),
        "edits": _edits(kernels),
        "rounds": _rounds(one, other),
        "kernels": kernels,
    }
    if said := fault(found):
        raise AssertionError(f"{said}; please report these traces")
    return found


def _warnings(a: Account, b: Account, force: bool) -> list[str]:
    sides, names = (a, b), ("A", "B")
    said = [line for side in sides for line in _without_steps(side, force)]
    a_phases, b_phases = (" + ".join(side.phases).replace("step", "decode") for side in sides)  # "step": kind unknown
    meaning: list[Difference] = [("phase", a_phases, b_phases)]
    others: list[Difference] = [(key, a.lock.get(key), b.lock.get(key)) for key in {**a.lock, **b.lock}]
    (meaning if a.gpu and b.gpu else others).append(("GPU", a.gpu, b.gpu))
    said += lock.judge(_unlike(meaning), force, names if force else (a.path, b.path))
    said += lock.judge(_unlike(others), True, names)
    opaque = [name for name, side in zip(names, sides, strict=True) if side.view.ops.is_opaque[side.op].any()]
    said += [f"{name} was recorded without the kernels inside its CUDA graphs: they count as one op" for name in opaque]
    return said + _chance(a, b)


def _unlike(rows: list[Difference]) -> list[Difference]:
    return [row for row in rows if row[1] != row[2]]


def _without_steps(side: Account, force: bool) -> list[str]:
    if side.view.steps.source != WHOLE:
        return []
    if not force:
        remedy = f"{NO_STEPS.remedy}, or compare the whole recording with --force"
        raise UserError(f"{side.path}: found no step ({NO_STEPS.why}); {remedy}.")
    return [f"{side.path}: no step was found, the whole recording counts as one"]


def _chance(a: Account, b: Account) -> list[str]:
    """What the spread of the rounds says of the change."""
    if min(len(a.view.walls), len(b.view.walls)) < 2:
        return ["a single round does not show how much rounds vary by themselves"]
    low, high = _interval(a.view.walls.to_numpy(), b.view.walls.to_numpy())
    if low > 0 or high < 0:
        return []
    shown = " to ".join(f"{'+' if ns > 0 else ''}{show_time(ns)}" for ns in (low, high))
    return [f"by their spread the median of the rounds changes by {shown} (95 %): the change may be chance"]


def _interval(a: np.ndarray, b: np.ndarray) -> tuple[int, int]:
    """Where the difference of the medians lies, b - a, ns: 95 % percentile bootstrap (Efron & Tibshirani, 1993)."""
    dice = np.random.default_rng(0)
    medians = [[np.median(dice.choice(side, len(side))) for _ in range(RESAMPLES)] for side in (a, b)]
    low, high = np.percentile(np.subtract(medians[1], medians[0]), (2.5, 97.5))
    return round(low), round(high)


def _side(side: Account) -> Side:
    said, ops = side.summary, side.place.count("inside")
    index, wall = [int(i) for i in side.rows["index"]], int(side.view.walls[side.view.median_round])
    return {
        "path": side.path,
        "device": side.view.ops.device,
        "gpu": side.gpu,
        "lock": side.lock,
        "source": said["source"],
        "rounds": said["rounds"],
        "left_out": said["left_out"],
        "wall_ns": said["wall_ns"],
        "tpot_ns": said["tpot_ns"],
        "ruler": said["ruler"],
        "step": {"index": index, "phases": side.phases, "wall_ns": wall, "ops": ops},
    }


def _change(a: Any, b: Any) -> Change:
    return {"a_ns": int(a), "b_ns": int(b), "change_ns": int(b) - int(a)}


def _classes(a: Account, b: Account) -> Iterator[ClassChange]:
    """The wall, then each class."""
    calibrated = all(side.view.unprofiled_step is not None for side in (a, b))
    for name in ("wall", *CLASSES):
        exact, mean, scaled = (_change(*(of(side, name) for side in (a, b))) for of in (_exact, _mean, _calibrated))
        row: ClassChange = {"name": name, **exact, "mean": mean}
        yield {**row, "calibrated": scaled} if calibrated else row


def _exact(side: Account, name: str) -> int:
    return side.rows[name].sum()


def _mean(side: Account, name: str) -> int:
    return side.summary["wall_ns"]["mean"] if name == "wall" else side.summary["ledger"][name]["mean"]


def _calibrated(side: Account, name: str) -> int:
    columns = [f"calibrated_{each}" for each in (CLASSES if name == "wall" else (name,))]
    return side.rows[columns].to_numpy().sum()


def _work(a: Account, b: Account, by: Callable[[Account], tuple[list[str], list[str]]]) -> list[Work]:
    """The ops of both sides, summed over each key; `by` gives the keys of the ops of a side, and how to show these."""
    sums = [_sums(side, by(side)[0]) for side in (a, b)]
    every = sums[0].index.union(sums[1].index, sort=False)
    labels = {key: label for side in (b, a) for key, *label in zip(*by(side), side.roles, strict=True)}
    both = zip(every, *(part.reindex(every, fill_value=0).to_numpy().tolist() for part in sums), strict=True)
    rows: list[Work] = []
    for key, (count, busy, idle), (other_count, other_busy, other_idle) in both:
        name, role = labels[key]
        rows.append(
            {
                "name": name,
                "role": role,
                "a_count": count,
                "b_count": other_count,
                **_change(busy + idle, other_busy + other_idle),
                "busy_change_ns": other_busy - busy,
                "idle_change_ns": other_idle - idle,
            }
        )
    return sorted(rows, key=_size)


def _sums(side: Account, keys: list[str]) -> pd.DataFrame:
    """Per key: how many ops start in the round, their busy time and the idle time before them, ns."""
    busy = side.ledger[:, BUSY]
    inside = np.array(side.place) == "inside"
    columns = {"count": inside.astype(np.int64), "busy": busy, "idle": side.ledger.sum(1) - busy}
    return pd.DataFrame(columns).groupby(keys, sort=False).sum()


def _size(row: Any) -> int:
    return -abs(row["change_ns"])


def _kernels(a: Account, b: Account) -> Iterator[Kernel]:
    ops = [_ops(side) for side in (a, b)]
    for i, j, tier in align(_keys(a), _keys(b)):
        old, new = ops[0][i] if i >= 0 else None, ops[1][j] if j >= 0 else None
        kind = KINDS[tier] if tier >= 0 else "removed" if old else "added"
        yield {"kind": kind, "a": old, "b": new, "change_ns": _time(new) - _time(old)}


def _keys(side: Account) -> list[list[str]]:
    """What ops are paired by, strictest first: within their own place only, the next step's first op with its like."""
    roles = [name if role == "other" else role for name, role in zip(side.bare_names, side.roles, strict=True)]
    shapes = {"inside": "{}", "before": "before {}", "after": "after {}"}
    placed = [shapes[place] for place in side.place]
    return [
        [shape.format(key) for shape, key in zip(placed, keys, strict=True)]
        for keys in (side.bare_names, side.families, roles)
    ]


def _ops(side: Account) -> list[Op]:
    rows = zip(side.names, side.roles, side.place, side.start.tolist(), side.ledger.tolist(), strict=True)
    return [
        {"name": name, "role": role, "place": place, "at_ns": at, "ledger": _parts(ledger)}
        for name, role, place, at, ledger in rows
    ]


def _parts(ledger: list[int]) -> dict[str, int]:
    return {name: ns for name, ns in zip(CLASSES, ledger, strict=True) if ns}


def _time(op: Op | None) -> int:
    return sum(op["ledger"].values()) if op else 0


def _kinds(kernels: list[Kernel]) -> list[Kind]:
    rows: list[Kind] = []
    for kind in KINDS:
        mine = [kernel for kernel in kernels if kernel["kind"] == kind]
        rows.append({"name": kind, "count": sum(map(_counts, mine)), **_total(mine)})
    return rows


def _counts(kernel: Kernel) -> bool:
    """Whether it starts in the step, and is not the next one's or one before it that still ran."""
    op = kernel["a"] or kernel["b"]
    return op is not None and op["place"] == "inside"


def _total(kernels: list[Kernel]) -> Change:
    return _change(*(sum(_time(kernel[side]) for kernel in kernels) for side in ("a", "b")))


def _edits(kernels: list[Kernel]) -> list[Edit]:
    """The runs of ops that are not the same on both sides, those outside the step apart; equal ones together."""
    alike: dict[tuple, list[list[Kernel]]] = {}
    for (changed, _), run in groupby(kernels, lambda kernel: (kernel["kind"] != "same", _counts(kernel))):
        if changed:
            part = list(run)
            sides = [tuple(op["name"] for kernel in part if (op := kernel[side])) for side in ("a", "b")]
            alike.setdefault(tuple(sides), []).append(part)
    rows: list[Edit] = []
    for (removed, added), parts in alike.items():
        total = _total([kernel for part in parts for kernel in part])
        rows.append({"removed": list(removed), "added": list(added), "count": _inside(parts), **total})
    return sorted(rows, key=_size)


def _inside(runs: list[list[Kernel]]) -> int:
    return sum(_counts(run[0]) for run in runs)


def _rounds(a: Account, b: Account) -> list[Round]:
    first = [side.view.chosen.index.to_numpy()[np.unique(side.view.rounds, return_index=True)[1]] for side in (a, b)]
    rows = zip(*first, a.view.walls, b.view.walls, strict=False)
    return [{"a_step": int(i), "b_step": int(j), **_change(x, y)} for i, j, x, y in rows]


make_callable(__name__, diff)

"""The result of an ablation as plain data: its shape, its file, and what must agree inside it."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, TypedDict, cast

from msgspec import Meta

from ling_prof import lock, plain_file
from ling_prof.errors import UserError

SCHEMA = "ling-prof.ablation/1"
REMEDY = "measure again with ling-prof ablate"
COUNTS = ("kernels", "launches")  # quantities of a step that are no times
TOLERANCE = 1e-6  # relative

Positive = Annotated[float, Meta(gt=1e-12, lt=1e12)]
NotNegative = Annotated[float, Meta(ge=0, lt=1e18)]
Figure = Annotated[float, Meta(gt=-1e12, lt=1e12)]
Share = Annotated[float, Meta(ge=0, le=1)]
Count = Annotated[int, Meta(ge=0)]
Some = Annotated[int, Meta(ge=1)]


class Tpot(TypedDict):
    """Median time per token over the windows and its 95 % interval; None where the gate failed."""

    tpot_ms: Positive | None
    low: Positive | None
    high: Positive | None


class Row(Tpot):
    """A combination. step_ms: time of a step, which makes accept_length tokens; gate: the verdict in a phrase."""

    passes: list[str]
    step_ms: Positive | None
    accept_length: Positive | None
    gate: str | None


Attribution = TypedDict(
    "Attribution",
    {
        "pass": str,
        "gain_us": Figure | None,
        "gain_pct": Figure | None,
        "low": Figure | None,
        "high": Figure | None,
        "method": Literal["shapley", "ladder", "leave-one-out", "sampled"],
        "predicted_us": Figure | None,
        "predicted_low": Figure | None,
        "predicted_high": Figure | None,
        "exact": bool,
        "gate": str,
        "took_effect": str,
        "error_us": NotNegative | None,
    },
)
Attribution.__doc__ = """What passes switched together ('a+b') save of a token's time, us; percent of the baseline.

low, high: 95 % interval of gain_us; None with the gain where a gate failed. predicted_*: from a trace, None until
known. took_effect: the proof. error_us: standard error of a sampled gain.
"""


class Interaction(TypedDict):
    """What two save together beyond apart, us; below 0: they save the same time."""

    a: str
    b: str
    us: Figure | None
    low: Figure | None
    high: Figure | None


class Lowered(TypedDict):
    """A quantity of a step in the recordings before and after a rung: `optim.base.SHOWN`, us or a number."""

    what: str
    before: NotNegative
    after: NotNegative


class Rung(Tpot):
    """added: what joined the rungs before, '' at the baseline. trace: its recording, trace_sha256 of its bytes;
    profiled_ratio: a step of it over one of those just before, without the profiler.

    lowers: what the passes that joined say they lower; empty where it or the rung before is not recorded.
    """

    added: str
    trace: str | None
    trace_sha256: NotRequired[str]
    profiled_ratio: Positive | None
    lowers: list[Lowered]


class Gate(TypedDict):
    """A correctness check of a combination: None where it does not apply. top1_agreement: a fraction; kl_*: nats.

    Relative, for rounding passes: twin_error is how far a small fp32 twin's logits move, half_error how far half a
    layer does that is fed the same.
    """

    passes: list[str]
    verdict: str
    ok: bool
    tokens: Count | None
    first_difference: Count | None
    top1_agreement: Share | None
    kl_mean: NotNegative | None
    kl_max: NotNegative | None
    positions: Count | None
    twin_error: NotRequired[NotNegative | None]
    half_error: NotRequired[NotNegative | None]


Blocked = TypedDict("Blocked", {"pass": str, "reason": str})


class Kernel(TypedDict):
    """A kernel timed with cold weights: us a call, bytes it moves, 1 GB = 1e9 bytes. passes: those that bring it."""

    kernel: str
    passes: list[str]
    cold_us: Positive
    low: Positive
    high: Positive
    bytes: NotNegative
    gb_s: NotNegative


class Ablation(TypedDict):
    """lock: `ling_prof.lock.Lock` as a dict; clocks as in a benchmark; date: ISO 8601; steps: of each window.

    code: a hash of the programs that were measured. rows: every combination, the first without passes; baseline and
    all_on repeat the one without and the one with most.
    noise_floor_pct: how far the baseline measured twice lies apart (A/A), percent of it; noise_high_pct: how far it may
    by chance, 97.5th percentile. all_on_noise_pct: as the first, of all_on; None where it has no time.
    """

    schema: str
    command: str
    date: str
    code: NotRequired[str]
    lock: dict[str, Any]
    target: Literal["engine", "sglang"]
    design: str
    clocks: dict[str, float | None]
    noise_floor_pct: NotNegative
    noise_high_pct: NotNegative
    all_on_noise_pct: NotRequired[NotNegative | None]
    windows: Some
    steps: Some
    baseline: Tpot
    all_on: Tpot
    rows: Annotated[list[Row], Meta(min_length=1)]
    attribution: list[Attribution]
    interactions: list[Interaction]
    ladder: list[Rung]
    gates: list[Gate]
    blocked: list[Blocked]
    kernels: list[Kernel]
    notes: list[str]


INTERVALS = (
    ("rows", "tpot_ms", "low", "high"),
    ("attribution", "gain_us", "low", "high"),
    ("attribution", "predicted_us", "predicted_low", "predicted_high"),
    ("interactions", "us", "low", "high"),
    ("ladder", "tpot_ms", "low", "high"),
    ("kernels", "cold_us", "low", "high"),
)


def load(path: Path) -> Ablation:
    """The ablation in a file. Raises UserError for what cannot be read, has another shape or contradicts itself."""
    found = cast(Ablation, plain_file.read(path, SCHEMA, Ablation, REMEDY))
    lock.from_dict(found["lock"], path)
    if fault := next(_faults(found), None):
        raise UserError(f"{path}: {fault}; {REMEDY}.")
    return found


def save(ablation: Ablation, path: Path) -> None:
    """Writes the whole file or none of it. Raises UserError where that fails."""
    plain_file.write(ablation, path)


def _faults(of: Ablation) -> Iterator[str]:
    """What is compared must be what was measured."""
    yield from _stray_ends(of)
    if [row["passes"] for row in of["rows"]].count([]) != 1:
        yield "not exactly one of its rows has no passes"
    if of["baseline"]["tpot_ms"] is None:
        yield "its baseline has no time"
    by_size = sorted(of["rows"], key=lambda row: len(row["passes"]))
    for name, side, row in (("baseline", of["baseline"], by_size[0]), ("all_on", of["all_on"], by_size[-1])):
        if any(not _alike(side[key], row[key]) for key in ("tpot_ms", "low", "high")):
            yield f"its {name} is not the row of {' + '.join(row['passes']) or 'no passes'}"
    yield from _lost(of)


def _alike(a: float | None, b: float | None) -> bool:
    return a == b if a is None or b is None else math.isclose(a, b, rel_tol=TOLERANCE)


def _stray_ends(of: Ablation) -> Iterator[str]:
    """Figures outside their own interval, or with half of one."""
    for section, key, low, high in INTERVALS:
        for number, row in enumerate(cast(list[Mapping[str, Any]], of[section])):  # type: ignore[literal-required]
            ends = [row[low], row[key], row[high]]
            if ends != [None] * 3 and (None in ends or ends != sorted(ends)):
                yield f"{section}[{number}]: {key} {row[key]} is not within {low} {row[low]} and {high} {row[high]}"


def _lost(of: Ablation) -> Iterator[str]:
    """Gains that do not add up, where their methods say they must; to a millionth of the difference."""
    base, full = of["baseline"]["tpot_ms"], of["all_on"]["tpot_ms"]
    gains = [row["gain_us"] for row in of["attribution"]]
    known = [gain for gain in gains if gain is not None]
    partial = any(row["method"] == "leave-one-out" for row in of["attribution"])
    if base is None or full is None or len(known) < len(gains) or not gains or partial:
        return
    total, saved = math.fsum(known), 1e3 * (base - full)
    if not math.isclose(total, saved, rel_tol=TOLERANCE, abs_tol=1e3 * base * 1e-9):
        yield f"its gains add up to {total:g} us, baseline minus all_on is {saved:g} us"

"""The result of a decode benchmark as plain data: its shape, its figures, its file, and the comparison of two."""

import math
from pathlib import Path
from typing import Annotated, Any, TypedDict, cast

import numpy as np
from msgspec import Meta

from ling_prof import lock, plain_file
from ling_prof.errors import UserError

SCHEMA = "ling-prof.bench/1"
REMEDY = "measure again with ling-prof bench --output FILE"
COMPARISON = "ling-prof.bench-compare/1"
ENOUGH = 5  # runs a side, before a difference is called one

Positive = Annotated[float, Meta(gt=1e-12, lt=1e12)]
Bytes = Annotated[float, Meta(ge=0, lt=1e18)]
AllBytes = Annotated[float, Meta(gt=0, lt=1e18)]


class Run(TypedDict):
    """One request: time to the first token, (end to end - ttft) / (tokens - 1), the time of each decode step."""

    ttft_ms: Positive
    tpot_ms: Positive
    step_ms: Annotated[list[Positive], Meta(min_length=1)]
    tokens: Annotated[int, Meta(ge=2)]


class Range(TypedDict):
    """Mean, least and largest over the runs."""

    mean: Positive
    low: Positive
    high: Positive


class Tpot(Range):
    """As `Range`; median and p99 are over all steps of all runs."""

    median: Positive
    p99: Positive


class Summary(TypedDict):
    ttft_ms: Range
    tpot_ms: Tpot
    tokens_per_s: Positive
    runs: Annotated[int, Meta(ge=1)]


class Part(TypedDict):
    """Bytes one token must read or write for one part of the model, and the formula they come from."""

    part: str
    formula: str
    bytes: Bytes


class Floor(TypedDict):
    """The least time of a token: its bytes over the memory bandwidth; None where no bandwidth is known.

    share_of_floor: floor_ms / mean TPOT, a fraction; achieved_gb_s: bytes_per_token / mean TPOT; 1 GB = 1e9 bytes.
    """

    bandwidth_gb_s: Positive | None
    bandwidth_source: str
    bytes_per_token: AllBytes
    parts: list[Part]
    floor_ms: Positive | None
    share_of_floor: Positive | None
    achieved_gb_s: Positive


class Bench(TypedDict):
    """lock: `ling_prof.lock.Lock` as a dict; clocks: {'sm_mhz', 'mem_mhz'} when measured; date: ISO 8601."""

    schema: str
    command: str
    date: str
    lock: dict[str, Any]
    clocks: dict[str, float | None]
    runs: Annotated[list[Run], Meta(min_length=1)]
    summary: Summary
    floor: Floor
    notes: list[str]


def summarize(runs: list[Run]) -> Summary:
    """Means and ranges over the runs; tokens_per_s is 1000 / mean TPOT. p99 interpolates, as in the reports."""
    if not runs:
        raise UserError("no run to summarize; take at least one.")
    steps = np.concatenate([run["step_ms"] for run in runs])
    tpot = _range([run["tpot_ms"] for run in runs])
    return {
        "ttft_ms": _range([run["ttft_ms"] for run in runs]),
        "tpot_ms": {**tpot, "median": float(np.median(steps)), "p99": float(np.quantile(steps, 0.99))},
        "tokens_per_s": 1e3 / tpot["mean"],
        "runs": len(runs),
    }


def _range(values: list[float]) -> Range:
    return {"mean": math.fsum(values) / len(values), "low": min(values), "high": max(values)}


def load(path: Path) -> Bench:
    """The benchmark in a file. Raises UserError for what cannot be read, is no JSON, or has another schema or shape."""
    bench = cast(Bench, plain_file.read(path, SCHEMA, Bench, REMEDY))
    lock.from_dict(bench["lock"], path)
    _check_floor(bench["floor"], path)
    _check_summary(bench, path)
    return bench


def _check_floor(floor: Floor, path: Path) -> None:
    total = math.fsum(part["bytes"] for part in floor["parts"])
    if not math.isclose(total, floor["bytes_per_token"], rel_tol=1e-6):
        said = f"its floor's parts add up to {total:.0f} bytes, bytes_per_token is {floor['bytes_per_token']:.0f}"
        raise UserError(f"{path}: {said}; {REMEDY}.")


def _check_summary(data: Bench, path: Path) -> None:
    """What is compared must be what was measured."""
    if not _close(data["summary"], summarize(data["runs"])):
        raise UserError(f"{path}: its summary is not that of its runs; {REMEDY}.")


def _close(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return all(_close(a[key], b[key]) for key in b)
    return math.isclose(a, b, rel_tol=1e-6)


def save(bench: Bench, path: Path) -> None:
    """Writes the whole file or none of it. Raises UserError where that fails."""
    plain_file.write(bench, path)


def compare(a: Bench, b: Bench, force: bool = False, names: tuple[str, str] = ("A", "B")) -> dict[str, Any]:
    """How the mean TPOT of `b` stands to that of `a`, as `ling-prof.bench-compare/1`: change is b - a, ratio b / a.

    Raises UserError when the locks differ; with `force` their differences are warnings. A difference is shown only
    where both have `ENOUGH` runs and the ranges of these do not overlap.
    """
    locks = lock.from_dict(a["lock"], names[0]), lock.from_dict(b["lock"], names[1])
    warnings = lock.require_alike(*locks, force, names)
    old, new = a["summary"]["tpot_ms"], b["summary"]["tpot_ms"]
    return {
        "schema": COMPARISON,
        "a": _side(a, names[0]),
        "b": _side(b, names[1]),
        "ratio": new["mean"] / old["mean"],
        "change_us": 1e3 * (new["mean"] - old["mean"]),
        "change_pct": 100 * (new["mean"] / old["mean"] - 1),
        **_judge(a["summary"], b["summary"]),
        "warnings": warnings,
    }


def _side(bench: Bench, name: str) -> dict[str, Any]:
    """What a comparison says of one of its two benchmarks."""
    summary = bench["summary"]
    kept = {key: bench["lock"][key] for key in lock.FREE}
    return {"name": name, **kept, "runs": summary["runs"], "tpot_ms": summary["tpot_ms"]}


def _judge(a: Summary, b: Summary) -> dict[str, Any]:
    """Ranges of few runs part by chance: of two runs a side in a third of the cases, of five in one of a hundred."""
    x, y = a["tpot_ms"], b["tpot_ms"]
    overlap = x["low"] <= y["high"] and y["low"] <= x["high"]
    few = min(a["runs"], b["runs"]) < ENOUGH
    if few:
        verdict = f"too few runs to judge by: measure both with --runs {ENOUGH} or more"
    elif overlap:
        verdict = "no difference shown beyond the spread: the ranges of the runs overlap"
    else:
        change = "faster" if y["mean"] < x["mean"] else "slower"
        verdict = f"B is {change}: the ranges of the runs do not overlap; processes differ too, so repeat both in turn"
    return {"ranges_overlap": overlap, "shown": not overlap and not few, "verdict": verdict}

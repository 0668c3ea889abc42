"""The result of a decode benchmark as plain data: its shape, its figures, its file, and the comparison of two."""

import math
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict, cast

import numpy as np
from msgspec import Meta

from ling_prof import lock, plain_file
from ling_prof.errors import UserError

SCHEMA = "ling-prof.bench/1"
REMEDY = "measure again with ling-prof bench --output FILE"

Positive = Annotated[float, Meta(gt=1e-12, lt=1e12)]
Bytes = Annotated[float, Meta(ge=0, lt=1e18)]
AllBytes = Annotated[float, Meta(gt=0, lt=1e18)]
MOST = 10**9  # tokens of a request


class Run(TypedDict):
    """One request: time to the first token, (end to end - ttft) / (tokens - 1), the time of each decode step.

    Of a server: the tokens that came with each step, and the mean of what a verify step committed.
    """

    ttft_ms: Positive
    tpot_ms: Positive
    step_ms: Annotated[list[Positive], Meta(min_length=1)]
    tokens: Annotated[int, Meta(ge=2, le=MOST)]
    step_tokens: NotRequired[list[Annotated[int, Meta(ge=1, le=MOST)]]]
    accept_length: NotRequired[Positive]


class Range(TypedDict):
    """Mean, least and largest over the runs."""

    mean: Positive
    low: Positive
    high: Positive


class Tpot(Range):
    """As `Range`; median and p99 are over all steps of all runs."""

    median: Positive
    p99: Positive


class Itl(TypedDict):
    """Time between tokens, over all tokens of all runs but the first of each: those of one step share its time."""

    mean: Positive
    median: Positive
    p99: Positive


class Summary(TypedDict):
    """output_tokens_per_s: over whole requests, prompts included; it and what follows where the runs have it."""

    ttft_ms: Range
    tpot_ms: Tpot
    tokens_per_s: Positive
    runs: Annotated[int, Meta(ge=1)]
    itl_ms: NotRequired[Itl]
    output_tokens_per_s: NotRequired[Positive]
    accept_length: NotRequired[Range]


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
    """lock: `ling_prof.lock.Lock` as a dict; clocks: {'sm_mhz', 'mem_mhz'} when measured; date: ISO 8601.

    floor: of the bundled engine, whose bytes are known.
    """

    schema: str
    command: str
    date: str
    lock: dict[str, Any]
    clocks: dict[str, float | None]
    runs: Annotated[list[Run], Meta(min_length=1)]
    summary: Summary
    floor: NotRequired[Floor]
    notes: list[str]


def summarize(runs: list[Run]) -> Summary:
    """Means and ranges over the runs; tokens_per_s is 1000 / mean TPOT. p99 interpolates, as in the reports."""
    if not runs:
        raise UserError("no run to summarize; take at least one.")
    steps = np.concatenate([run["step_ms"] for run in runs])
    tpot = range_of([run["tpot_ms"] for run in runs])
    summary: Summary = {
        "ttft_ms": range_of([run["ttft_ms"] for run in runs]),
        "tpot_ms": {**tpot, "median": float(np.median(steps)), "p99": float(np.quantile(steps, 0.99))},
        "tokens_per_s": 1e3 / tpot["mean"],
        "runs": len(runs),
    }
    if all("step_tokens" in run for run in runs):
        summary["itl_ms"] = _itl(steps, np.concatenate([run["step_tokens"] for run in runs]))
        took = math.fsum(run["ttft_ms"] for run in runs) + math.fsum(steps)
        summary["output_tokens_per_s"] = 1e3 * sum(run["tokens"] for run in runs) / took
    if all("accept_length" in run for run in runs):
        summary["accept_length"] = range_of([run["accept_length"] for run in runs])
    return summary


def _itl(steps: np.ndarray, tokens: np.ndarray) -> Itl:
    """As if each of the tokens of a step stood there by itself: a step may hold any number of them."""
    order = np.argsort(steps / tokens)
    times, ends = (steps / tokens)[order], np.cumsum(tokens[order])

    def quantile(share: float) -> float:
        at = share * (int(ends[-1]) - 1)
        below, above = times[np.searchsorted(ends, [math.floor(at), math.ceil(at)], side="right")]
        return float(below + (above - below) * (at % 1))

    return {"mean": math.fsum(steps) / int(ends[-1]), "median": quantile(0.5), "p99": quantile(0.99)}


def range_of(values: list[float]) -> Range:
    return {"mean": math.fsum(values) / len(values), "low": min(values), "high": max(values)}


def load(path: Path) -> Bench:
    """The benchmark in a file. Raises UserError for what cannot be read, is no JSON, or has another schema or shape."""
    with plain_file.fitting(path, REMEDY):
        bench = cast(Bench, plain_file.read(path, SCHEMA, Bench, REMEDY))
        lock.from_dict(bench["lock"], path)
        if "floor" in bench:
            _check_floor(bench["floor"], path)
        for number, run in enumerate(bench["runs"], 1):
            if fault := _fault(run):
                raise UserError(f"{path}: run {number} has {fault}; {REMEDY}.")
        _check_summary(bench["summary"], summarize(bench["runs"]), path)
        return bench


def _check_floor(floor: Floor, path: Path) -> None:
    total = math.fsum(part["bytes"] for part in floor["parts"])
    if not math.isclose(total, floor["bytes_per_token"], rel_tol=1e-6):
        said = f"its floor's parts add up to {total:.0f} bytes, bytes_per_token is {floor['bytes_per_token']:.0f}"
        raise UserError(f"{path}: {said}; {REMEDY}.")


def _fault(run: Run) -> str:
    """What in a run contradicts itself; empty: nothing. Without step_tokens a step makes a token."""
    steps, decoded = run["step_ms"], sum(run.get("step_tokens", [1] * len(run["step_ms"])))
    if len(run.get("step_tokens", steps)) != len(steps):
        return "not as many step_tokens as step_ms"
    if not decoded < run["tokens"]:
        return f"{run['tokens']} tokens, of which {decoded} came after the first one"
    if not math.isclose(run["tpot_ms"], math.fsum(steps) / decoded, rel_tol=1e-6, abs_tol=1e-6):
        return "a tpot_ms that is not that of its steps"
    return ""


def _check_summary(said: Summary, measured: Summary, path: Path) -> None:
    """What is compared must be what was measured, and no more; keys of a later version are let be."""
    known = {key: value for key, value in said.items() if key in Summary.__annotations__}
    if known.keys() != measured.keys() or not _close(known, measured):
        raise UserError(f"{path}: its summary is not that of its runs; {REMEDY}.")


def _close(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return all(key in a and _close(a[key], b[key]) for key in b)
    return math.isclose(a, b, rel_tol=1e-6)


def save(bench: Bench, path: Path) -> None:
    """Writes the whole file or none of it. Raises UserError where that fails, or `load` would refuse the file."""
    plain_file.write(bench, path, load)

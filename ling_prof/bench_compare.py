"""Which of two benchmarks is faster: by mean TPOT times mean accept length, and only where both were measured alike."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ling_prof import bench_files, bench_report, lock
from ling_prof.bench_files import Entry
from ling_prof.bench_report import Bench, Range, range_of
from ling_prof.errors import UserError
from ling_prof.lock import Lock

COMPARISON = "ling-prof.bench-compare/1"
ENOUGH = 5  # runs a side, before a difference is called one
ACCEPT_NOISE = 0.05  # tokens by which the accept lengths of two runs may differ
SHORT, LONG = 1e-12, 1e12  # ms, of what is a time
REMEDY = "measure again with ling-prof bench sglang, or with a bench_serving that writes mean_tpot_ms"
NORMAL = 1.96  # standard errors of a mean, 95 %
RUNS, REQUESTS = "runs", "requests of one run"


@dataclass(frozen=True)
class Measured:
    """What is compared of a benchmark. tpot_ms, and step_ms, which is TPOT x accept length: mean, low and high.

    runs: how many measurements stand behind the range; spread_of: what they are, `RUNS` or `REQUESTS`. accept_length,
    peak_tokens_per_s: None where not recorded. doubts: what a reader must know.
    """

    lock: Lock
    tpot_ms: Range
    step_ms: Range
    runs: int
    spread_of: str = RUNS
    accept_length: float | None = None
    peak_tokens_per_s: float | None = None
    doubts: tuple[str, ...] = ()


def measured(path: Path, line: int | None = None) -> Measured:
    """What a file holds: of `ling-prof bench`, or of SGLang's benchmarks; of these the runs made like that of `line`.

    Raises UserError, naming the file, for what is neither, for runs made in several ways without a `line`, and where no
    mean time per token was recorded.
    """
    found = bench_files.objects(path)
    _, first = found[0]
    if not (isinstance(first, dict) and str(first.get("schema")).startswith("ling-prof.")):
        return _of_lines(path, bench_files.entries_of(path, found), line)
    if line is not None:
        raise UserError(f"{path} holds one benchmark: it has no line {line} to choose.")
    return of_bench(bench_report.load(path))


def of_bench(bench: Bench) -> Measured:
    """A benchmark of our own; the ranges are those of its runs."""
    tpot, accept = bench["summary"]["tpot_ms"], bench["summary"].get("accept_length")
    steps = range_of([run["tpot_ms"] * run.get("accept_length", 1.0) for run in bench["runs"]])
    length = accept["mean"] if accept else None
    return Measured(
        lock=lock.from_dict(bench["lock"], "this benchmark"),
        tpot_ms=tpot,
        step_ms={**steps, "mean": tpot["mean"] * (length or 1.0)},
        runs=bench["summary"]["runs"],
        accept_length=length,
    )


def _of_lines(path: Path, found: list[Entry], line: int | None) -> Measured:
    """The ranges are those of the lines or, of one line, the 95 % interval of the mean of its requests."""
    table = bench_files.tabled(found)
    locks = [bench_files.lock_of(entry, row) for entry, (_, row) in zip(found, table.iterrows(), strict=True)]
    at = _chosen(path, [entry.line for entry in found], locks, line)
    rows = table[[one == locks[at] and entry.kind == found[at].kind for one, entry in zip(locks, found, strict=True)]]
    lengths = rows["accept_length"].to_numpy()
    times = rows["mean_tpot_ms"].to_numpy()
    length = None if np.isnan(lengths).any() else float(lengths.mean())
    factors = np.ones(len(rows)) if length is None else lengths
    if not all(SHORT < time < LONG for time in (*times, *(times * factors))):
        said = f"line {found[at].line} and its like hold no mean time per token to compare by"
        raise UserError(f"{path}: {said}; {REMEDY}.")
    peaks = rows["peak_tokens_per_s"]
    return Measured(
        lock=locks[at],
        **_ranges(rows, times, factors),
        accept_length=length,
        peak_tokens_per_s=None if peaks.isna().any() else float(peaks.max()),
        doubts=_doubts(path, rows),
    )


def _chosen(path: Path, lines: list[int], locks: list[Lock], line: int | None) -> int:
    if line is not None and line not in lines:
        raise UserError(f"{path} has no result in line {line}; it has {', '.join(map(str, lines))}.")
    if line is None and any(one != locks[0] for one in locks):
        said = "holds runs that were not measured alike"
        raise UserError(f"{path} {said}; choose one, and those like it, by its line with --line-a or --line-b.")
    return 0 if line is None else lines.index(line)


def _ranges(rows: pd.DataFrame, times: np.ndarray, lengths: np.ndarray) -> dict[str, Any]:
    tpot, step = range_of(times.tolist()), range_of((times * lengths).tolist())
    step["mean"] = tpot["mean"] * float(lengths.mean())
    if len(rows) > 1:
        return {"tpot_ms": tpot, "step_ms": step, "runs": len(rows)}
    deviation, requests = (float(rows[key].iloc[0]) for key in ("std_tpot_ms", "requests"))
    if not (math.isfinite(deviation) and requests > 1):
        return {"tpot_ms": tpot, "step_ms": step, "runs": 1}
    share = NORMAL * deviation / math.sqrt(requests) / tpot["mean"]
    ranges = {"tpot_ms": _widened(tpot, share), "step_ms": _widened(step, share)}
    return {**ranges, "runs": int(requests), "spread_of": REQUESTS}


def _widened(of: Range, share: float) -> Range:
    return {"mean": of["mean"], "low": of["mean"] * (1 - share), "high": of["mean"] * (1 + share)}


def _doubts(path: Path, rows: pd.DataFrame) -> tuple[str, ...]:
    """What the accept length of a serving benchmark rests on."""
    own, written = rows["accept_length"], rows["accept_length_recorded"]
    if rows["kind"].iloc[0] != "serving" or own.isna().any():
        return ()
    if (own == written).any():
        return (f"the accept length in {path} is the mean since its server started, not of these runs alone",)
    if ((own - written).abs() > ACCEPT_NOISE).any():
        said = f"the accept length of {path} is by difference: {own.mean():.3f}, not the {written.mean():.3f} written"
        return (f"{said}; if the cache was flushed between its lines, what is written holds",)
    return ()


def compare(a: Measured, b: Measured, force: bool = False, names: tuple[str, str] = ("A", "B")) -> dict[str, Any]:
    """How `b` stands to `a`, as `ling-prof.bench-compare/1`: change is b - a, ratio b / a, of mean TPOT and of a step,
    which is mean TPOT x mean accept length and decides.

    Raises UserError when the locks differ; with `force` their differences are warnings. A difference is shown only
    where both have `ENOUGH` runs and the ranges of their steps do not overlap. Peaks are passed on, nothing more.
    """
    warnings = lock.require_alike(a.lock, b.lock, force, names)
    return {
        "schema": COMPARISON,
        "a": _side(a, names[0]),
        "b": _side(b, names[1]),
        **_change(a.tpot_ms, b.tpot_ms),
        "step": _change(a.step_ms, b.step_ms),
        **_judge(a, b),
        "warnings": [*warnings, *a.doubts, *b.doubts, *_unsure(a, b)],
    }


def _change(a: Range, b: Range) -> dict[str, float]:
    ratio = b["mean"] / a["mean"]
    return {"ratio": ratio, "change_us": 1e3 * (b["mean"] - a["mean"]), "change_pct": 100 * (ratio - 1)}


def _side(of: Measured, name: str) -> dict[str, Any]:
    """What a comparison says of one of its two benchmarks."""
    kept = {key: of.lock.to_dict()[key] for key in lock.FREE}
    figures = {"accept_length": of.accept_length, "step_ms": of.step_ms, "peak_tokens_per_s": of.peak_tokens_per_s}
    return {"name": name, **kept, "runs": of.runs, "tpot_ms": of.tpot_ms, **figures}


def _judge(a: Measured, b: Measured) -> dict[str, Any]:
    """Ranges of few runs part by chance: of two runs a side in a third of the cases, of five in one of a hundred."""
    x, y = a.step_ms, b.step_ms
    overlap = x["low"] <= y["high"] and y["low"] <= x["high"]
    few, of = min(a.runs, b.runs) < ENOUGH, " and the ".join(dict.fromkeys((a.spread_of, b.spread_of)))
    if few:
        verdict = f"too few runs to judge by: measure both with --runs {ENOUGH} or more"
    elif overlap:
        verdict = f"no difference shown beyond the spread: the ranges of the {of} overlap"
    else:
        change = "faster" if y["mean"] < x["mean"] else "slower"
        said = f"the ranges of the {of} do not overlap"
        verdict = f"B is {change}: {said}; processes differ too, so repeat both in turn"
    return {"ranges_overlap": overlap, "shown": not overlap and not few, "verdict": verdict}


def _unsure(a: Measured, b: Measured) -> Iterator[str]:
    if unknown := lock.unknown(a.lock, b.lock):
        yield f"neither says its {', '.join(unknown)}: whether they agree there is not known"
    if (a.accept_length is None) != (b.accept_length is None):
        yield f"only {'B' if a.accept_length is None else 'A'} says its accept length; that of the other counts as 1"
    elif a.accept_length and b.accept_length and abs(a.accept_length - b.accept_length) > ACCEPT_NOISE:
        lengths = f"{a.accept_length:.3f} in A, {b.accept_length:.3f} in B"
        yield f"accept length differs: {lengths}; what makes TPOT move with it is no speed of a step"

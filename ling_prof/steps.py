"""Cuts a trace into prefill, decode, draft, verify and extend steps.

A step starts with its first GPU op and ends where the next step starts. The sources, best first: SGLang and vLLM
annotations, ranges by name, ProfilerStep, the repeating CUDA-graph launch, and the period of the kernel names.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pandas as pd

from ling_prof.errors import Missing, UserError
from ling_prof.load import calls
from ling_prof.ops import Ops, thread_keys
from ling_prof.period import find_period, repeats

PREFILL, DECODE = "prefill", "decode"
FOCUS = {PREFILL: (PREFILL,), DECODE: (DECODE, "draft", "verify", "extend", "step")}
SGLANG = re.compile(r"^step\[(\w+)[^\]]*\]$|^(draft_extend|draft)$")
VLLM = re.compile(r"^execute_(?:\d+_)?context_(\d+)\(.*\)_generation_(\d+)")
NAMED = re.compile(
    r"^(?:\w+[._ :/-])?(prefill|decode|draft|verify|extend|generate)(?:[_ -]?(?:step|token|iter\w*))?[_ #:\[-]?\d*\]?$",
    re.I,
)
PROFILER_STEP = re.compile(r"^ProfilerStep\s*#\d+")
EMBEDDING = re.compile(r"(?<!rotary_)embedding|indexSelect", re.I)
READ_BACK = re.compile(r"DtoH|DeviceToHost|Device -> (Host|Pinned|Pageable)")
SAMPLING = re.compile(r"argmax|sampl|multinomial", re.I)
WARM_UP, PAUSE = 1.5, 10
NEARLY = 0.9  # of a period makes a last step
COLUMNS = ("phase", "name", "device", "start", "end", "round", "note", "kernels", "extra_kernels")


@dataclass(frozen=True)
class Steps:
    """`table`: one row a step, in time order, with COLUMNS (times in ns).

    `round` numbers the token rounds: a decode step, or draft + verify + extend together; -1 for prefill. `note` is
    empty for a step that counts in means, else why it does not. `kernels` were launched inside the step's own
    range; `extra_kernels` run before the next step starts.
    """

    table: pd.DataFrame
    source: str
    empty: int = 0  # marked steps that launched no GPU work

    def focus(self, which: str) -> pd.DataFrame:
        """The steps of a focus ('prefill' or 'decode') that count in means; all of them when none is complete."""
        chosen = self.table[self.table["phase"].isin(FOCUS[which])]
        whole = chosen[chosen["note"] == ""]
        return whole if len(whole) else chosen


@dataclass(frozen=True)
class Mark:
    """Where a step was seen: its op range (start -1: it launched none) and what it is called."""

    phase: str
    name: str
    start: int
    last_end: int
    kernels: int = -1


def find_steps(ops: Ops, pattern: str | None = None, skip: int = 0) -> Steps:
    """The steps of a device, by `pattern` (a regular expression over range names) when given, else by the best source.

    `skip` leaves out that many more decode steps at the start. Raises UserError when the pattern is malformed or
    matches nothing. Where no source shows a step the source is WHOLE.
    """
    if pattern is not None:
        marks = _from_ranges(ops, _by_pattern(pattern))
        if not any(mark.start >= 0 for mark in marks):
            raise UserError(_no_match(ops, pattern))
        return _steps(ops, marks, f"ranges matching {pattern!r}", skip)
    for source, find in SOURCES.items():
        marks = find(ops)
        if any(mark.start >= 0 for mark in marks):
            return _steps(ops, marks, source, skip)
    whole = Mark("step", "the whole recording", int(ops.start.min()), int(ops.end.max()))
    return _steps(ops, [whole], WHOLE, 0)


WHOLE = "none found: the whole recording counts as one step"
NO_STEPS = Missing(
    "where a decode step begins",
    "no step annotation, no repeating CUDA graph, and no period in the kernel names",
    "mark steps with torch.profiler.record_function('decode_step_N') or NVTX, or name a range with --steps REGEX",
)


Naming = Callable[[str], str | None]


def _sglang(name: str) -> str | None:
    if not (found := SGLANG.match(name)):
        return None
    if found[2]:
        return "extend" if found[2] == "draft_extend" else "draft"
    kinds = {
        "DECODE": DECODE,
        "TARGET_VERIFY": "verify",
        "DRAFT_EXTEND": "extend",
        "DRAFT_EXTEND_V2": "extend",
        "IDLE": None,
    }
    return kinds.get(found[1], PREFILL)


def _vllm(name: str) -> str | None:
    found = VLLM.match(name)
    return found and (PREFILL if int(found[1]) else DECODE)


def _named(name: str) -> str | None:
    found = NAMED.match(name)
    return found and {"generate": DECODE}.get(found[1].lower(), found[1].lower())


def _profiler_step(name: str) -> str | None:
    return "step" if PROFILER_STEP.match(name) else None


def _by_pattern(pattern: str) -> Naming:
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise UserError(f"--steps {pattern!r} is not a regular expression ({error}).") from None

    def phase(name: str) -> str | None:
        if not compiled.search(name):
            return None
        said = re.search(r"prefill|draft|verify|extend", name, re.I)
        return _sglang(name) or _vllm(name) or (said[0].lower() if said else DECODE)

    return phase


def _no_match(ops: Ops, pattern: str) -> str:
    ranges = _ranges(ops)
    names = list(dict.fromkeys(ranges["name"].astype(str)))[:5] if ranges is not None else []
    seen = f"it has {', '.join(map(repr, names))}" if names else "it has no named range at all"
    return f"{ops.trace.path}: no range that launched GPU work matches --steps {pattern!r}; {seen}."


def _ranges(ops: Ops) -> pd.DataFrame | None:
    if not ops.trace.has("host"):
        return None
    host = ops.trace.host
    return host[host["kind"].isin(["annotation", "nvtx"])]


def _from_ranges(ops: Ops, naming: Naming) -> list[Mark]:
    ranges = _ranges(ops)
    if ranges is None or not len(ranges):
        return []
    names = ranges["name"].array
    phases = np.array([naming(str(n)) or "" for n in names.categories], object)[names.codes]
    chosen = ranges.assign(phase=phases)[phases != ""]
    return _marks(ops, _outermost(chosen)) if len(chosen) else []


def _outermost(ranges: pd.DataFrame) -> pd.DataFrame:
    """Without ranges nested in another; an outer one that holds several of its own phase only wraps the loop."""
    ranges = ranges.reset_index(drop=True)
    keep = np.ones(len(ranges), bool)
    for _, group in ranges.groupby(thread_keys(ranges)):
        wraps = _wraps(group)
        keep[group.index[wraps]] = False
        inner = group[~wraps]
        reach = inner["end"].cummax().shift(fill_value=-1)
        keep[inner.index[inner["end"] <= reach]] = False
    return ranges[keep]


def _wraps(group: pd.DataFrame) -> np.ndarray:
    """Which ranges of one thread, sorted by start, hold more than one other of their own phase."""
    held = pd.Series(0, group.index)
    for _, same in group.groupby("phase"):
        start = same["start"].to_numpy()
        held[same.index] = np.searchsorted(start, same["end"]) - np.searchsorted(start, start, "right")
    return held.to_numpy() > 1


def _marks(ops: Ops, ranges: pd.DataFrame) -> list[Mark]:
    """Gives each op to the range its launch lies in: on the same thread, or in the process when no thread fits."""
    ranges = ranges.sort_values("start")
    for key_of_range, key_of_op in (
        (thread_keys(ranges), ops.thread),
        (ranges["pid"].to_numpy() << 32, ops.thread >> 32 << 32),
    ):
        owner = _owners(ops, ranges, key_of_range, key_of_op)
        if (owner >= 0).any():
            break
    else:
        return []
    found = []
    for i, (name, phase) in enumerate(zip(ranges["name"].astype(str), ranges["phase"], strict=True)):
        mine = np.flatnonzero(owner == i)
        if not len(mine):
            found.append(Mark(phase, name, -1, -1))
            continue
        found.append(
            Mark(phase, name, int(ops.start[mine].min()), int(ops.end[mine].max()), int(ops.is_kernel[mine].sum()))
        )
    return found


def _owners(ops: Ops, ranges: pd.DataFrame, key_of_range: np.ndarray, key_of_op: np.ndarray) -> np.ndarray:
    owner = np.full(len(ops), -1)
    for key in np.unique(key_of_range):
        which = np.flatnonzero(key_of_range == key)
        start, end = ranges["start"].to_numpy()[which], ranges["end"].to_numpy()[which]
        mine = np.flatnonzero((key_of_op == key) & (ops.launch >= 0))
        at = np.searchsorted(start, ops.launch_start[mine], "right") - 1
        inside = (at >= 0) & (ops.launch_start[mine] < end[np.maximum(at, 0)])
        owner[mine[inside]] = which[at[inside]]
    return owner


def _from_graphs(ops: Ops) -> list[Mark]:
    """Steps from the repeating launch of the same CUDA graph or graphs."""
    launches, first, size = np.unique(ops.graph_launch[ops.graph_launch >= 0], return_index=True, return_counts=True)
    if len(launches) < 3:
        return []
    heads = np.flatnonzero(ops.graph_launch >= 0)[first]
    order = np.argsort(ops.start[heads])
    heads, size = heads[order], size[order]
    tokens = pd.factorize(pd.MultiIndex.from_arrays([ops.names.codes[heads], size]))[0]
    run = find_period(tokens)
    if run is None:
        return []
    begin, period, count = run
    begin += _widest(np.diff(ops.start[heads], prepend=0), begin, period, count)
    starts = heads[begin : begin + count * period : period]
    return _regular(ops, starts[starts < len(ops)], int(ops.end[ops.graph_launch >= 0].max()))


def _widest(gap: np.ndarray, begin: int, period: int, count: int) -> int:
    """The rotation of a multi-graph step that puts its widest pause at the boundary."""
    if period == 1:
        return 0
    sums = gap[begin : begin + count * period].reshape(count, period)[1:].sum(0)
    return int(sums.argmax())


def _from_period(ops: Ops) -> list[Mark]:
    """Steps from the period of the op names on the busiest stream."""
    streams, sizes = np.unique(ops.stream, return_counts=True)
    main = np.flatnonzero(ops.stream == streams[sizes.argmax()])
    names = ops.names.codes[main]
    run = find_period(names)
    if run is None:
        return []
    begin, period, count = run
    if not _is_token_step(ops, main[begin : begin + period]):
        return []
    begin += _rotation(ops, main, begin, period, count)
    whole = np.arange(begin, min(begin + count * period, len(main) - NEARLY * period + 1), period).astype(int)
    starts, last = main[whole], main[min(whole[-1] + period, len(main)) - 1]
    head = _first_like(names, begin, names[begin : begin + period])
    prefill = [] if head is None else [main[head]]
    return _regular(ops, np.r_[prefill, starts].astype(int), int(ops.end[: last + 1].max()), prefill=bool(prefill))


def _is_token_step(ops: Ops, period: np.ndarray) -> bool:
    """A decode step looks up an embedding, samples or reads back; a repeating layer does none of these."""
    names = {ops.name(i) for i in period}
    return any(pattern.search(n) for n in names for pattern in (EMBEDDING, READ_BACK, SAMPLING))


def _rotation(ops: Ops, main: np.ndarray, begin: int, period: int, count: int) -> int:
    """How far after `begin` a step starts: at its one embedding look-up, behind its one read-back, or where the run
    ends."""
    names = np.array([str(n) for n in ops.names.categories], object)[ops.names.codes[main[begin : begin + period]]]
    look = [i for i, n in enumerate(names) if EMBEDDING.search(n)]
    if len(look) == 1:
        return look[0]
    back = [i for i, n in enumerate(names) if READ_BACK.search(n)]
    if len(back) == 1:
        return (back[0] + 1) % period
    return (_run_end(ops.names.codes[main], begin, period) - begin) % period


def _run_end(tokens: np.ndarray, begin: int, period: int) -> int:
    differs = np.flatnonzero(~repeats(tokens[begin:], period))
    return begin + period + int(differs[0]) if len(differs) else len(tokens)


def _first_like(names: np.ndarray, begin: int, step: np.ndarray) -> int | None:
    """Where the ops before the first decode step start to read like a step; its very first op may differ."""
    if begin < len(step) // 2:
        return None
    want = step[1 : min(5, len(step))]
    for i in range(begin - len(want)):
        if (names[i + 1 : i + 1 + len(want)] == want).all():
            return i
    return 0


def _regular(ops: Ops, starts: np.ndarray, end: int, prefill: bool = False) -> list[Mark]:
    bounds = [*ops.start[starts].tolist(), end]
    phases = [PREFILL if prefill else DECODE] + [DECODE] * (len(starts) - 1)
    return [Mark(p, f"{p} {i}", a, b) for i, (p, (a, b)) in enumerate(zip(phases, pairwise(bounds), strict=True))]


SOURCES: dict[str, Callable[[Ops], list[Mark]]] = {
    "SGLang step annotations": lambda ops: _from_ranges(ops, _sglang),
    "vLLM step annotations": lambda ops: _from_ranges(ops, _vllm),
    "ranges named prefill, decode, draft, verify or extend": lambda ops: _from_ranges(ops, _named),
    "ProfilerStep": lambda ops: _from_ranges(ops, _profiler_step),
    "the repeating CUDA-graph launch": _from_graphs,
    "the period of the kernel names": _from_period,
}


def _steps(ops: Ops, marks: list[Mark], source: str, skip: int) -> Steps:
    empty = sum(m.start < 0 for m in marks)
    marks = sorted((m for m in marks if m.start >= 0), key=lambda m: m.start)
    start = np.array([m.start for m in marks], np.int64)
    last_end = np.array([m.last_end for m in marks], np.int64)
    end = np.r_[start[1:], max(int(last_end[-1]), int(start[-1]))]
    table = pd.DataFrame(
        {
            "phase": [m.phase for m in marks],
            "name": [m.name for m in marks],
            "device": ops.device,
            "start": start,
            "end": end,
        }
    )
    table["round"] = _rounds(table["phase"].to_numpy())
    # Draft work before the first verify belongs to the prefill.
    table.loc[table["phase"].isin(FOCUS[DECODE]) & (table["round"] < 0), "phase"] = PREFILL
    table["note"] = _notes(table, last_end, skip, lost_replays(ops))
    paused = table["note"] == "before a pause"
    table.loc[paused, "end"] = np.minimum(last_end, end)[paused]
    inside = np.searchsorted(ops.start[ops.is_kernel], table["end"]) - np.searchsorted(ops.start[ops.is_kernel], start)
    own = np.array([m.kernels for m in marks])
    table["kernels"] = np.where(own >= 0, own, inside)
    table["extra_kernels"] = np.maximum(inside - table["kernels"], 0)
    return Steps(table, source, empty)


def _rounds(phase: np.ndarray) -> np.ndarray:
    """One number a token round: draft, verify and extend share one; without a verify each step has its own."""
    begins = decode = np.isin(phase, FOCUS[DECODE])
    if "verify" in phase:
        begins = np.isin(phase, ("draft", "verify")) & (np.concatenate([[""], phase[:-1]]) != "draft")
    number = np.cumsum(begins) - 1
    return np.where(decode & (number >= 0), number, -1)


def _notes(table: pd.DataFrame, last_end: np.ndarray, skip: int, lost: np.ndarray) -> np.ndarray:
    wall = (table["end"] - table["start"]).to_numpy()
    notes = np.full(len(table), "", object)
    decode = np.flatnonzero(table["phase"].isin(FOCUS[DECODE]))
    usual = np.median(wall[decode[:-1]]) if len(decode) > 3 else np.inf
    quiet = (table["end"].to_numpy() - last_end) > PAUSE * usual
    notes[quiet] = "before a pause"
    notes[len(table) - 1] = "last: nothing after it shows where it ends"
    rounds = table["round"].to_numpy()
    if notes[-1] and rounds[-1] >= 0:
        notes[rounds == rounds[-1]] = notes[-1]
    at = np.searchsorted(table["start"].to_numpy(), lost, "right") - 1
    notes[at[at >= 0]] = "under-recorded: a CUDA-graph launch in it left no GPU activity"
    skipped = set(range(skip)) | set(_warm_up(wall, rounds))
    for i in decode:
        if rounds[i] in skipped:
            notes[i] = "skipped" if rounds[i] < skip else "warm-up"
    return notes


def lost_replays(ops: Ops) -> np.ndarray:
    """When graphs were launched of which the recording holds no op."""
    if not ops.trace.has("api"):
        return np.empty(0, np.int64)
    api = ops.trace.api
    launched = np.flatnonzero(calls.matching(api["name"].array, calls.GRAPH_LAUNCH))
    known = np.isin(launched, ops.trace.gpu["api_row"].to_numpy())
    return api["start"].to_numpy()[launched[~known]]


def _warm_up(wall: np.ndarray, rounds: np.ndarray) -> list[int]:
    """The leading rounds that took over 1.5 times the median round."""
    if rounds.max(initial=-1) < 3:
        return []
    length = np.bincount(rounds[rounds >= 0], wall[rounds >= 0])
    slow = length > WARM_UP * np.median(length[:-1])
    return list(range(int(np.argmin(slow)) if not slow.all() else 0))

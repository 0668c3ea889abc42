"""Where steps show themselves: ranges of SGLang, vLLM and others, repeating CUDA graphs, the period of kernel names."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pandas as pd

from ling_prof import calls
from ling_prof.errors import UserError
from ling_prof.ops import Ops
from ling_prof.period import find_period, repeats
from ling_prof.trace import thread_keys

PREFILL, DECODE = "prefill", "decode"
SGLANG = re.compile(r"^step\[(\w+)[^\]]*\]$|^(draft_extend|draft)$")
SGLANG_MODES = {
    "DECODE": DECODE,
    "TARGET_VERIFY": "verify",
    **dict.fromkeys(("DRAFT_EXTEND", "DRAFT_EXTEND_V2"), "extend"),
    **dict.fromkeys(("EXTEND", "PREFILL", "MIXED", "SPLIT_PREFILL"), PREFILL),
}
VLLM = re.compile(r"^execute_(?:\d+_)?context_(\d+)\(.*\)_generation_(\d+)")
NAMED = re.compile(
    r"^(?:\w+[._ :/-])?(prefill|decode|draft|verify|extend|generate)"
    r"(?:[_ -]?(?:step|token|iter\w*))?[_ #:\[-]?\d*\]?$",
    re.I,
)
PROFILER_STEP = re.compile(r"^ProfilerStep\s*#\d+")
EMBEDDING = re.compile(r"(?<!rotary_)embedding|indexSelect", re.I)
READ_BACK = re.compile(r"DtoH|DeviceToHost|Device -> (Host|Pinned|Pageable)")
SAMPLING = re.compile(r"argmax|sampl|multinomial", re.I)
NEARLY = 0.9  # of a period makes a last step


@dataclass(frozen=True)
class Mark:
    """Where a step was seen.

    start, last_end: of its ops on the device, ns; `start` None when it launched none. begun: when the host began it.
    kernels: launched by its own range; None where nothing but the sequence of ops marks it.
    """

    phase: str
    name: str
    start: int | None
    last_end: int
    begun: int
    kernels: int | None = None


def find_marks(ops: Ops, pattern: str | None = None) -> tuple[str, list[Mark]]:
    """The source that shows steps, and the marks it gives; ("", []) when none does.

    `pattern` is a regular expression over range names. Raises UserError when it is malformed or matches nothing.
    """
    if pattern is not None:
        marks = _from_ranges(ops, _by_pattern(pattern))
        if not any(mark.start is not None for mark in marks):
            raise UserError(_no_match(ops, pattern))
        return f"ranges matching {pattern!r}", marks
    for source, find in SOURCES.items():
        marks = find(ops)
        if any(mark.start is not None for mark in marks):
            return source, marks
    return "", []


Naming = Callable[[str], str | None]


def _sglang(name: str) -> str | None:
    found = SGLANG.match(name)
    if found and found[2]:
        return "extend" if found[2] == "draft_extend" else "draft"
    return SGLANG_MODES.get(found[1]) if found else None


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


def _from_ranges(ops: Ops, naming: Naming, needs: str = "") -> list[Mark]:
    """Marks from ranges that `naming` gives a phase, when the name of one of them starts with `needs`."""
    ranges = _ranges(ops)
    if ranges is None or not len(ranges):
        return []
    names = ranges["name"].array
    phases = np.array([naming(str(n)) or "" for n in names.categories], object)[names.codes]
    chosen = ranges.assign(phase=phases)[phases != ""]
    if not chosen["name"].astype(str).str.startswith(needs).any():
        return []
    return _marks(ops, _outermost(chosen))


def _outermost(ranges: pd.DataFrame) -> pd.DataFrame:
    """Without ranges nested in another; an outer one that holds several steps only wraps the loop."""
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
    """Which ranges of one thread, sorted by start, hold others of two phases, or several of their own."""
    own, phases = pd.Series(0, group.index), pd.Series(0, group.index)
    for phase, same in group.groupby("phase"):
        start = same["start"].to_numpy()
        held = np.searchsorted(start, group["end"]) - np.searchsorted(start, group["start"], "right")
        phases += held > 0
        own[same.index] = held[group["phase"] == phase]
    return ((own > 1) | (phases > 1)).to_numpy()


def _marks(ops: Ops, ranges: pd.DataFrame) -> list[Mark]:
    """Gives each op to the range its launch lies in: of its thread or, for a thread without any, of its process."""
    ranges = ranges.sort_values("start")
    keys = thread_keys(ranges)
    owner = _owners(ops, ranges, keys, ops.thread)
    workers = np.where(np.isin(ops.thread, keys), -1, ops.thread >> 32 << 32)
    owner = np.where(owner >= 0, owner, _owners(ops, ranges, ranges["pid"].to_numpy() << 32, workers))
    order = np.argsort(owner, kind="stable")
    mine = np.split(order, np.searchsorted(owner[order], np.arange(len(ranges) + 1)))[1:-1]
    columns = zip(ranges["phase"], ranges["name"].astype(str), ranges["start"], mine, strict=True)
    return [_mark(ops, *column) for column in columns]


def _mark(ops: Ops, phase: str, name: str, begun: int, mine: np.ndarray) -> Mark:
    if not len(mine):
        return Mark(phase, name, None, -1, begun)
    start, end, kernels = ops.start[mine].min(), ops.end[mine].max(), ops.is_kernel[mine].sum()
    return Mark(phase, name, int(start), int(end), begun, int(kernels))


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
    inside = np.flatnonzero(ops.graph_launch >= 0)
    launches = pd.DataFrame({"call": ops.graph_launch[inside], "op": inside, "end": ops.end[inside]}).groupby("call")
    graphs = launches.agg(head=("op", "first"), nodes=("op", "size"), end=("end", "max")).sort_values("head")
    if len(graphs) < 3:
        return []
    heads = graphs["head"].to_numpy()
    tokens = pd.factorize(pd.MultiIndex.from_arrays([ops.names.codes[heads], graphs["nodes"]]))[0]
    run = find_period(tokens)
    if run is None:
        return []
    begin, period, count = run
    pause = ops.start[heads] - graphs["end"].shift(fill_value=0).to_numpy()
    begin += _widest(pause, begin, period, count)
    starts = heads[begin : begin + count * period : period]
    return _regular(ops, starts, int(graphs["end"].max())) if _one_token_each(ops, starts) else []


def _one_token_each(ops: Ops, starts: np.ndarray) -> bool:
    """Whether what marks a token (look-up, sampling, read-back) is in most steps, if it is anywhere: a graph that runs
    once a layer is no step."""
    marks = [calls.matching(ops.names, pattern) for pattern in (EMBEDDING, READ_BACK, SAMPLING)]
    at = np.searchsorted(starts, np.flatnonzero(np.logical_or.reduce(marks)), "right")
    return not len(at) or len(np.unique(at[at > 0])) >= 0.5 * len(starts)


def _widest(pause: np.ndarray, begin: int, period: int, count: int) -> int:
    """The rotation of a multi-graph step that puts its widest pause at the boundary."""
    if period == 1:
        return 0
    sums = pause[begin : begin + count * period].reshape(count, period)[1:].sum(0)
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
    begun = np.where(ops.launch[starts] >= 0, ops.launch_start[starts], ops.start[starts]).tolist()
    spans = zip(phases, pairwise(bounds), begun, strict=True)
    return [Mark(phase, f"{phase} {i}", a, b, host) for i, (phase, (a, b), host) in enumerate(spans)]


SOURCES: dict[str, Callable[[Ops], list[Mark]]] = {
    "SGLang step annotations": lambda ops: _from_ranges(ops, _sglang, needs="step["),
    "vLLM step annotations": lambda ops: _from_ranges(ops, _vllm),
    "ranges named prefill, decode, draft, verify or extend": lambda ops: _from_ranges(ops, _named),
    "ProfilerStep": lambda ops: _from_ranges(ops, _profiler_step),
    "the repeating CUDA-graph launch": _from_graphs,
    "the period of the kernel names": _from_period,
}

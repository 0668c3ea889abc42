"""A trace as Chrome trace events, which ui.perfetto.dev and chrome://tracing open.

Viewers show one slice at a time on a track, or nested ones: kernels of a stream that overlap get lanes of their own.
Besides the recording stand the steps, and the ledger: for every device what its idle time went to, gap by gap.
"""

import gzip
import json
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ling_prof.intervals import distinct, lanes
from ling_prof.ops import Ops
from ling_prof.plain_file import write_bytes
from ling_prof.roles import ROLES
from ling_prof.timeline import BUSY, CLASSES
from ling_prof.trace import Trace
from ling_prof.view import Options, View, views

STEPS, LEDGER, STREAMS = 0, 1, 2  # tracks of a device, streams from there on
LANES = 64  # tracks a stream may take
HOST, CALLS = 0, 1  # tracks of a thread
GPU = 1_000_000  # process number of device 0: above those of the host
Event = dict[str, Any]


def export(trace: Trace, path: Path, options: Options = Options()) -> int:
    """Writes `path`, compressed where its name ends in .gz -> the number of events. Raises UserError where that fails,
    and Missing without GPU activity."""
    written = [json.dumps(event, ensure_ascii=False) for event in events(trace, options)]
    text = '{"displayTimeUnit": "ns", "traceEvents": [\n' + ",\n".join(written) + "\n]}\n"
    data = text.encode(errors="replace")
    write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data, path)
    return len(written)


def events(trace: Trace, options: Options = Options()) -> Iterator[Event]:
    """All events: names of tracks, slices, and flows from each launch to its op."""
    for seen in views(trace, options):
        yield from chain(_device(seen), _flows(seen))
    yield from _host(trace)


def _device(seen: View) -> Iterator[Event]:
    device = GPU + seen.ops.device
    yield from _named("process_name", device, 0, f"GPU {seen.ops.device}: {seen.trace.device_name(seen.ops.device)}")
    yield from _named("thread_name", device, STEPS, "steps")
    yield from _named("thread_name", device, LEDGER, "ledger: idle time by class")
    for step in seen.steps.table.to_dict("records"):
        args = {"phase": step["phase"], "kernels": int(step["kernels"]), "note": step["note"]}
        yield _slice(device, STEPS, step["name"] or step["phase"], step["start"], step["end"], args)
    pieces = seen.timeline.pieces
    for i in np.flatnonzero(pieces.cls != BUSY).tolist():
        args = {"before": seen.ops.name(int(pieces.op[i]))}
        yield _slice(device, LEDGER, CLASSES[pieces.cls[i]], pieces.start[i], pieces.end[i], args)
    yield from _streams(seen.ops, device)


def _streams(ops: Ops, device: int) -> Iterator[Event]:
    track = tracks(ops)
    for one in distinct(track):
        stream, lane = divmod(int(one) - STREAMS, LANES)
        number = int(distinct(ops.stream)[stream])
        yield from _named("thread_name", device, int(one), f"stream {number}" + (f", lane {lane + 1}" if lane else ""))
    streams = ops.stream
    for i in range(len(ops)):
        args = {"role": ROLES[ops.role[i]], "stream": int(streams[i])}
        yield _slice(device, int(track[i]), ops.name(i), ops.start[i], ops.end[i], args)


def tracks(ops: Ops) -> np.ndarray:
    """The track of every op: its stream's first lane that is free when it starts."""
    track = np.zeros(len(ops), np.int64)
    for number, stream in enumerate(distinct(ops.stream)):
        on = np.flatnonzero(ops.stream == stream)
        track[on] = STREAMS + number * LANES + np.minimum(lanes(ops.start[on], ops.end[on]), LANES - 1)
    return track


def _flows(seen: View) -> Iterator[Event]:
    """From the call to the op that it launched; of a graph to its first node."""
    ops, device = seen.ops, GPU + seen.ops.device
    if not seen.trace.has("api"):
        return
    api, track = seen.trace.api, tracks(ops)
    pid, tid = api["pid"].to_numpy(), api["tid"].to_numpy()
    for i in np.flatnonzero((ops.launch >= 0) & ~ops.later_node).tolist():
        call = int(ops.launch[i])
        both = {"name": "launch", "cat": "launch", "id": f"{seen.ops.device}.{i}"}
        yield {**both, "ph": "s", "pid": int(pid[call]), "tid": _calls(tid[call]), "ts": _us(ops.launch_start[i])}
        yield {**both, "ph": "f", "bp": "e", "pid": device, "tid": int(track[i]), "ts": _us(ops.start[i])}


def _host(trace: Trace) -> Iterator[Event]:
    """Functions, operators and ranges of each thread on one track, its CUDA calls on another."""
    tables = [("api", CALLS, "CUDA calls")] + [("host", HOST, "")] * trace.has("host")
    for table, track, what in tables if trace.has("api") else tables[1:]:
        frame = trace.table(table)
        for pid, tid in _threads(frame):
            name = f"thread {tid}" + (f": {what}" if what else "")
            yield from _named("thread_name", pid, 2 * tid + track, name)
        rows = zip(*(frame[key].tolist() for key in ("pid", "tid", "name", "start", "end")), strict=True)
        for pid, tid, name, start, end in rows:
            yield _slice(pid, 2 * tid + track, name, start, end, {})


def _threads(frame: pd.DataFrame) -> Iterable[tuple[int, int]]:
    return sorted({(int(pid), int(tid)) for pid, tid in zip(frame["pid"], frame["tid"], strict=True)})


def _calls(tid: Any) -> int:
    return 2 * int(tid) + CALLS


def _named(what: str, pid: int, tid: int, name: str) -> Iterator[Event]:
    yield {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}
    if what == "thread_name":
        yield {"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid, "args": {"sort_index": tid}}


def _slice(pid: int, tid: int, name: str, start: Any, end: Any, args: dict[str, Any]) -> Event:
    return {"ph": "X", "name": name, "pid": pid, "tid": tid, "ts": _us(start), "dur": _us(end - start), "args": args}


def _us(ns: Any) -> float:
    """Microseconds, as the format asks: exact to the ns for 100 days."""
    return int(ns) / 1000

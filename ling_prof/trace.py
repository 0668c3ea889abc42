"""Trace: the one noun. Immutable tables of int64 nanoseconds counted from the trace's own start."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pandas as pd

from ling_prof.errors import Missing


class Column(NamedTuple):
    dtype: str
    unit: str
    meaning: str


_TIME = {
    "start": Column("int64", "ns", "start, from the trace's own start"),
    "end": Column("int64", "ns", "end; never before start"),
}
_THREAD = {
    "pid": Column("int64", "", "process; -1 where unknown"),
    "tid": Column("int64", "", "thread; -1 where unknown"),
}

SCHEMA: dict[str, dict[str, Column]] = {
    "gpu": {
        **_TIME,
        "device": Column("int64", "", "GPU ordinal as the recorded program saw it"),
        "stream": Column("int64", "", "stream id"),
        "kind": Column("category", "", "kernel, memcpy, memset, or graph (a whole opaque CUDA graph)"),
        "name": Column("category", "", "kernel or copy name"),
        "corr": Column("int64", "", "correlation id; -1 where absent; shared by all nodes of one graph launch"),
        "pid": Column("int64", "", "process that launched it; -1 where unknown"),
        "api_row": Column("int64", "row", "row of `api` that launched it; -1 where none was recorded"),
        "graph_id": Column("int64", "", "CUDA graph; -1 outside graphs or where not recorded"),
        "graph_node": Column("int64", "", "CUDA graph node; -1 outside graphs or where not recorded"),
        "bytes": Column("int64", "B", "bytes copied or set; -1 for kernels"),
        "copy_kind": Column("category", "", "HtoD, DtoH, DtoD, PtoP, HtoH, or empty"),
        "src_mem": Column("category", "", "pageable, pinned, device, managed, or empty"),
        "dst_mem": Column("category", "", "pageable, pinned, device, managed, or empty"),
        "grid": Column("category", "blocks", "'x,y,z', or empty"),
        "block": Column("category", "threads", "'x,y,z', or empty"),
        "regs": Column("int64", "registers/thread", "-1 where unknown"),
        "smem": Column("int64", "B/block", "static plus dynamic; -1 where unknown"),
    },
    "api": {
        **_TIME,
        **_THREAD,
        "name": Column("category", "", "CUDA or HIP call, version and _ptsz suffixes stripped"),
        "corr": Column("int64", "", "correlation id; -1 where absent"),
        "sync_kind": Column(
            "category", "", "device, stream, event, copy or free for a call that can block; else empty"
        ),
        "ret": Column("int64", "", "return value; -1 where unknown"),
    },
    "host": {
        **_TIME,
        **_THREAD,
        "kind": Column("category", "", "op, python, annotation or nvtx"),
        "name": Column("category", "", "operator, 'file(line): function' or range name"),
        "parent": Column("int64", "row", "row of the enclosing interval on this thread; -1 at the top"),
        "depth": Column("int64", "", "how many intervals enclose it"),
    },
    "overhead": {**_TIME, **_THREAD, "name": Column("category", "", "what the profiler was doing")},
    "sync": {
        **_TIME,
        "kind": Column("category", "", "event, stream_wait (device side), stream or device"),
        "stream": Column("int64", "", "stream; -1 where it does not apply"),
        "event": Column("int64", "", "event id; -1 where it does not apply"),
        "corr": Column("int64", "", "correlation id of the call; -1 where absent"),
    },
    "capture": {
        "node": Column("int64", "", "graph node id"),
        "original": Column("int64", "", "node it was cloned from; -1 for the captured one"),
        "time": Column("int64", "ns", "when the node was made, on the host"),
        "pid": Column("int64", "", "process"),
        "tid": Column("int64", "", "thread"),
    },
}


CLOCK_SKEW = 1_000_000  # ns by which host and device clocks of one recording may differ


@dataclass(frozen=True)
class Trace:
    """A recording. Each table is a DataFrame with the columns of `SCHEMA`, sorted by start.

    Reading a table the file does not hold raises `Missing` with the reason and the recording flag that adds it.
    `lacks` names single columns that are absent in the same way; `notes` are sentences about what reading met.
    `layers`: for each row of gpu the layer that another recording tells ('': none), see layer_map.
    """

    path: str
    format: str
    tables: Mapping[str, "pd.DataFrame | Missing"]
    epoch_ns: int = 0
    devices: Mapping[int, str] = field(default_factory=dict)
    lock: Mapping[str, object] = field(default_factory=dict)
    lacks: Mapping[str, Missing] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    layers: pd.Categorical | None = None

    def table(self, name: str) -> pd.DataFrame:
        """The table called `name`; raises `Missing` where the file has none."""
        found = self.tables[name]
        if isinstance(found, Missing):
            raise Missing(found.what, found.why, found.remedy, self.path)
        return found

    def has(self, name: str) -> bool:
        """Whether a table (`"sync"`) or a column (`"gpu.graph_node"`) is there."""
        return name not in self.lacks and not isinstance(self.tables[name.split(".")[0]], Missing)

    def require(self, column: str) -> None:
        """Raises `Missing` when the file does not hold `column` (such as "gpu.graph_node")."""
        if found := self.lacks.get(column):
            raise Missing(found.what, found.why, found.remedy, self.path)
        self.table(column.split(".")[0])

    gpu = property(lambda self: self.table("gpu"))
    api = property(lambda self: self.table("api"))
    host = property(lambda self: self.table("host"))
    overhead = property(lambda self: self.table("overhead"))
    sync = property(lambda self: self.table("sync"))
    capture = property(lambda self: self.table("capture"))

    def device_name(self, device: int) -> str:
        return self.devices.get(device, f"device {device}")


def table(name: str, /, **columns: object) -> pd.DataFrame:
    """A DataFrame with exactly the columns of SCHEMA[name]; absent integers become -1, absent categories ''.

    Category columns take `pd.Categorical` or any sequence of strings. Raises ValueError for an unknown column.
    """
    schema = SCHEMA[name]
    unknown = columns.keys() - schema.keys()
    if unknown:
        raise ValueError(f"table {name} has no column {', '.join(sorted(unknown))}")
    rows = max((len(c) for c in columns.values()), default=0)  # type: ignore[arg-type]
    return pd.DataFrame({key: _column(columns.get(key), column, rows) for key, column in schema.items()}, copy=False)


def _column(values: object, column: Column, rows: int) -> object:
    if column.dtype != "category":
        return np.full(rows, -1, np.int64) if values is None else np.asarray(values, np.int64)
    if values is None:
        return pd.Categorical.from_codes(np.zeros(rows, np.int8), categories=[""])
    return values if isinstance(values, pd.Categorical) else pd.Categorical(values)


def sort_rows(frame: pd.DataFrame) -> tuple[pd.DataFrame, np.ndarray]:
    """`frame` ordered by (start, end), stable, and the order: row i of the result was row order[i]."""
    start, end = frame["start"].to_numpy(), frame["end"].to_numpy()
    order = np.lexsort((end, start))
    if (order == np.arange(len(order))).all():
        return frame, order
    return frame.take(order).reset_index(drop=True), order


def find_launches(gpu_key: np.ndarray, api_key: np.ndarray) -> np.ndarray:
    """For each GPU op the first api row with the same (process, correlation) key; -1 where none or key < 0."""
    order = np.argsort(api_key, kind="stable")
    if not len(order):
        return np.full(len(gpu_key), -1, np.int64)
    at = np.minimum(np.searchsorted(api_key[order], gpu_key), len(order) - 1)
    return np.where((api_key[order][at] == gpu_key) & (gpu_key >= 0), order[at], -1)


def thread_key(pid: np.ndarray, tid: np.ndarray) -> np.ndarray:
    """One int64 that tells threads of all processes apart."""
    return (pid << 32) + tid


def thread_keys(frame: pd.DataFrame) -> np.ndarray:
    """`thread_key` of each row of api, host or capture."""
    return thread_key(frame["pid"].to_numpy(), frame["tid"].to_numpy())


def nest(host: pd.DataFrame) -> pd.DataFrame:
    """`host` with parent and depth filled in: the parent is the latest-started interval of the thread that holds all
    of the row. Ranges may cross others, as an annotation does that opens inside one call and closes inside another."""
    start, end = host["start"].to_numpy(), host["end"].to_numpy()
    parent, depth = np.full(len(host), -1, np.int64), np.zeros(len(host), np.int64)
    threads = pd.factorize(thread_keys(host))[0]
    for thread in range(threads.max(initial=-1) + 1):
        rows = np.flatnonzero(threads == thread)
        rows = rows[np.lexsort((-end[rows], start[rows]))]
        above, depth[rows] = _nest_thread(start[rows].tolist(), end[rows].tolist())
        parent[rows] = np.where(above >= 0, rows[above], -1)
    return host.assign(parent=parent, depth=depth)


def _nest_thread(start: list[int], end: list[int]) -> tuple[np.ndarray, np.ndarray]:
    parent, depth = [-1] * len(start), [0] * len(start)
    stack, closes = [-1], [2**63]  # a root that never ends
    for i, (begun, done) in enumerate(zip(start, end, strict=True)):
        while closes[-1] <= begun:
            stack.pop()
            closes.pop()
        at = -1
        while closes[at] < done:
            at -= 1
        above = parent[i] = stack[at]
        if above >= 0:
            depth[i] = depth[above] + 1
        stack.append(i)
        closes.append(done)
    return np.array(parent, np.int64), np.array(depth, np.int64)


def without_corrupt(gpu: pd.DataFrame, api: pd.DataFrame | None) -> tuple[pd.DataFrame, int]:
    """`gpu` without ops that start long before their own launch (the first records of a session can carry another
    clock), and how many those are."""
    if api is None:
        return gpu, 0
    row = gpu["api_row"].to_numpy()
    called = np.where(row >= 0, api["start"].to_numpy()[row] if len(api) else 0, np.iinfo(np.int64).min)
    early = gpu["start"].to_numpy() < np.where(row >= 0, called - CLOCK_SKEW, called)
    return (gpu[~early].reset_index(drop=True), int(early.sum())) if early.any() else (gpu, 0)


def early_note(count: int) -> str:
    return f"{count:,} GPU records start before their own launch and are left out"

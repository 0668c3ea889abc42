"""The exclusive account of one device's time: every nanosecond gets exactly one class and one cause.

Busy time goes to the first op that covers it, compute before communication before copies. Each idle gap is given to
what kept the op that ends it from starting; DESIGN's classes, in their order. The pieces are disjoint, sorted and
together cover the device from its first op to its last.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from ling_prof import intervals as iv
from ling_prof.ops import COMMUNICATION, COMPUTE, COPY, Ops
from ling_prof.trace import thread_keys

CLASSES = (
    "busy",
    "profiler",
    "graph_dependency",
    "dependency",
    "stream_wait",
    "sync_stall",
    "host_bound",
    "launch_call",
    "launch_latency",
    "rank_skew",
    "unknown",
)
(
    BUSY,
    PROFILER,
    GRAPH_DEPENDENCY,
    DEPENDENCY,
    STREAM_WAIT,
    SYNC_STALL,
    HOST_BOUND,
    LAUNCH_CALL,
    LAUNCH_LATENCY,
    RANK_SKEW,
    UNKNOWN,
) = range(11)
HOST_CLASSES = ("profiler", "sync_stall", "host_bound", "launch_call", "launch_latency", "unknown")
HOST_PARTS = ("python", "dispatch", "api", "unknown")


@dataclass(frozen=True)
class Pieces:
    """Disjoint sorted intervals with, for each, its class, the op it belongs to (the busy op, or the one that ends the
    gap) and the api row of the blocking call charged with it (-1 but for sync_stall)."""

    start: np.ndarray
    end: np.ndarray
    cls: np.ndarray
    op: np.ndarray
    blocker: np.ndarray

    def take(self, index: np.ndarray) -> "Pieces":
        return Pieces(self.start[index], self.end[index], self.cls[index], self.op[index], self.blocker[index])

    def __len__(self) -> int:
        return len(self.start)

    @property
    def length(self) -> np.ndarray:
        return self.end - self.start

    def cut(self, at: np.ndarray) -> "Pieces":
        """The same pieces, split at the times `at`."""
        start, end, owner = iv.cut(self.start, self.end, at)
        return Pieces(start, end, self.cls[owner], self.op[owner], self.blocker[owner])

    def __add__(self, other: "Pieces") -> "Pieces":
        both = [np.concatenate(pair) for pair in zip(self.__dict__.values(), other.__dict__.values(), strict=True)]
        return Pieces(*both).take(np.argsort(both[0], kind="stable"))


@dataclass(frozen=True)
class Gaps:
    """The idle gaps of a device, one entry each: [start, end), and the op whose start ends it."""

    start: np.ndarray
    end: np.ndarray
    op: np.ndarray


class Timeline:
    """Account of the ops of one device."""

    def __init__(self, ops: Ops):
        self.ops = ops
        self.trace = ops.trace

    @cached_property
    def busy(self) -> iv.Union:
        return iv.union(self.ops.start, self.ops.end)

    @cached_property
    def gaps(self) -> Gaps:
        start, end = self.busy[1][:-1], self.busy[0][1:]
        return Gaps(start, end, np.searchsorted(self.ops.start, end))

    @cached_property
    def pieces(self) -> Pieces:
        """The whole account, busy and idle."""
        edges = [edge for _, _, start, end in self._blocking_by_thread() for edge in (start, end)]
        idle = self._idle_pieces.cut(np.concatenate([*edges, iv.EMPTY[0]]))
        return self._busy_pieces + self._profiled(self._late_calls(idle))

    @cached_property
    def _busy_pieces(self) -> Pieces:
        parts, taken = [], iv.EMPTY
        for resource in (COMPUTE, COMMUNICATION, COPY):
            index = np.flatnonzero(self.ops.resource == resource)
            start, end, owner = iv.exclusive(self.ops.start[index], self.ops.end[index])
            left, right, cut_owner = iv.cut(start, end, np.concatenate(taken))
            free = ~iv.contains(taken, left)
            parts.append((left[free], right[free], index[owner[cut_owner[free]]]))
            taken = iv.union(np.r_[taken[0], start], np.r_[taken[1], end])
        start, end, op = (np.concatenate(column) for column in zip(*parts, strict=True))
        order = np.argsort(start, kind="stable")
        return _pieces(start[order], end[order], BUSY, op[order])

    @cached_property
    def _idle_pieces(self) -> Pieces:
        gaps, ops, op = self.gaps, self.ops, self.gaps.op
        launched, called, blocker = ops.launch[op] >= 0, self._called, self._blockers
        queued = launched & (ops.launch_end[op] <= gaps.start)
        whole = np.select(
            [
                ops.later_node[op],
                ~launched | (called > gaps.end),
                queued & self._same_stream & ~self._elsewhere_busy,
                queued,
            ],
            [GRAPH_DEPENDENCY, UNKNOWN, DEPENDENCY, STREAM_WAIT],
            -1,
        )
        simple, late = np.flatnonzero(whole >= 0), np.flatnonzero(whole < 0)
        idle = _pieces(gaps.start[simple], gaps.end[simple], whole[simple], op[simple])
        a, b, waiting = gaps.start[late], gaps.end[late], blocker[late]
        ls = np.clip(called[late], a, b)
        le = np.clip(ops.launch_end[op[late]], ls, b)
        nothing = np.full(len(late), -1)
        for start, end, cls, cause in (
            (a, ls, np.where(waiting >= 0, SYNC_STALL, HOST_BOUND), waiting),
            (ls, le, np.full(len(late), LAUNCH_CALL), nothing),
            (le, b, np.full(len(late), LAUNCH_LATENCY), nothing),
        ):
            some = end > start
            idle += _pieces(start[some], end[some], cls[some], op[late][some], cause[some])
        return idle

    @property
    def _elsewhere_busy(self) -> np.ndarray:
        """Whether other streams, when they were left out, worked in each gap."""
        return iv.overlap(self.gaps.start, self.gaps.end, self.ops.elsewhere) > 0

    @property
    def _called(self) -> np.ndarray:
        return self.ops.launch_start[self.gaps.op]

    @cached_property
    def _same_stream(self) -> np.ndarray:
        """Whether the op that ended as each gap began ran on the stream of the op that ends it."""
        previous = np.full(len(self.ops), -1, np.int64)
        for stream in iv.distinct(self.ops.stream):
            on = np.flatnonzero(self.ops.stream == stream)
            previous[on[1:]] = np.maximum.accumulate(self.ops.end[on])[:-1]
        return previous[self.gaps.op] == self.gaps.start

    @cached_property
    def blocking(self) -> np.ndarray:
        """Rows of trace.api that made, or could make, the host wait for the device."""
        if not self.trace.has("api"):
            return np.empty(0, np.int64)
        kinds = self.trace.api["sync_kind"].array
        blocks = np.asarray(kinds != "") & self.ops.own_calls
        pageable = (self.ops.text("src_mem") == "pageable") | (self.ops.text("dst_mem") == "pageable")
        copies = self.ops.launch[pageable & ~self.ops.later_node & (self.ops.launch >= 0)]
        blocks[copies] = True
        return np.flatnonzero(blocks)

    def _blocking_by_thread(self) -> Iterator[tuple[int, np.ndarray, np.ndarray, np.ndarray]]:
        """(thread, rows, start, end) of the blocking calls of each thread, in order of start; of nested calls the
        outermost."""
        if not len(self.blocking):
            return
        api = self.trace.api
        keys, start, end = thread_keys(api), api["start"].to_numpy(), api["end"].to_numpy()
        for key in iv.distinct(keys[self.blocking]):
            rows = self.blocking[keys[self.blocking] == key]
            reach = np.r_[-1, np.maximum.accumulate(end[rows])[:-1]]
            rows = rows[end[rows] > reach]
            yield int(key), rows, start[rows], end[rows]

    @cached_property
    def _blockers(self) -> np.ndarray:
        """For each gap the blocking call its thread was in when the queue ran dry, and left before the launch."""
        found = np.full(len(self.gaps.op), -1)
        thread = self.ops.thread[self.gaps.op]
        for key, rows, start, end in self._blocking_by_thread():
            mine = np.flatnonzero(thread == key)
            at = np.searchsorted(start, self.gaps.start[mine], "right") - 1
            fits = (at >= 0) & (end[at] > self.gaps.start[mine]) & (end[at] <= self._called[mine])
            found[mine[fits]] = rows[at[fits]]
        return found

    def _late_calls(self, idle: Pieces) -> Pieces:
        """Blocking calls made while the device was already idle: such a call is charged with its own time, no more."""
        cls, blocker = idle.cls.copy(), idle.blocker.copy()
        for key, rows, start, end in self._blocking_by_thread():
            late = (idle.cls == HOST_BOUND) & (self.ops.thread[idle.op] == key)
            at = np.searchsorted(start, idle.start, "right") - 1
            inside = late & (at >= 0) & (idle.start < end[at])
            cls[inside], blocker[inside] = SYNC_STALL, rows[at[inside]]
        return Pieces(idle.start, idle.end, cls, idle.op, blocker)

    def _profiled(self, idle: Pieces) -> Pieces:
        """The idle pieces, with what the profiler's own work covers given to it."""
        overhead = self.trace.overhead
        spans = iv.union(overhead["start"].to_numpy(), overhead["end"].to_numpy())
        cut = idle.cut(np.concatenate(spans))
        inside = iv.contains(spans, cut.start)
        return Pieces(
            cut.start, cut.end, np.where(inside, PROFILER, cut.cls), cut.op, np.where(inside, -1, cut.blocker)
        )

    @cached_property
    def host_parts(self) -> np.ndarray:
        """(len(pieces), 4) ns of each host_bound piece by HOST_PARTS, by what its launching thread was doing."""
        out = np.zeros((len(self.pieces), len(HOST_PARTS)), np.int64)
        late = np.flatnonzero(self.pieces.cls == HOST_BOUND)
        thread = self.ops.thread[self.pieces.op[late]]
        for key in iv.distinct(thread):
            mine = late[thread == key]
            out[mine] = self._split_host(int(key), self.pieces.start[mine], self.pieces.end[mine])
        return out

    def _split_host(self, key: int, start: np.ndarray, end: np.ndarray) -> np.ndarray:
        """The innermost layer wins: an API call inside an operator inside a Python function is api."""
        layers, taken, parts = self._host_layers(key), iv.EMPTY, {}
        before = np.zeros(len(start), np.int64)
        for part in ("api", "dispatch", "python"):
            taken = iv.union(np.r_[taken[0], layers[part][0]], np.r_[taken[1], layers[part][1]])
            covered = iv.overlap(start, end, taken)
            parts[part], before = covered - before, covered
        parts["unknown"] = end - start - before
        return np.stack([parts[part] for part in HOST_PARTS], axis=1)

    def _host_layers(self, key: int) -> dict[str, iv.Union]:
        def spans(frame: pd.DataFrame) -> iv.Union:
            mine = frame[thread_keys(frame) == key]
            return iv.union(mine["start"].to_numpy(), mine["end"].to_numpy())

        layers = {"api": spans(self.trace.api), "dispatch": iv.EMPTY, "python": iv.EMPTY}
        if self.trace.has("host"):
            host = self.trace.host
            layers |= {"dispatch": spans(host[host["kind"] == "op"]), "python": spans(host[host["kind"] == "python"])}
        return layers


def _pieces(
    start: np.ndarray, end: np.ndarray, cls: object, op: np.ndarray, blocker: np.ndarray | None = None
) -> Pieces:
    blocker = np.full(len(start), -1) if blocker is None else blocker
    return Pieces(start, end, np.broadcast_to(np.asarray(cls), len(start)), op, blocker)

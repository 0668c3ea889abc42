"""The decode steps of a recording as a dependency graph: what each op and each call waited for, and how long after.

Host: the calls that launch work or wait for the device, each thread's in order, the time between them as it was.
Device: an op waits for its launch, for the op before it on its stream, and for another stream where the recording shows
that it did. A blocking call waits for the last op that it saw end. Replayed unchanged, the graph gives the recording
back.
"""

import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

NONE = -1
RETURN, CALL, OP = range(3)  # events
MOST = ("duration", "gap", "gone", "earlier", "later")  # what most edits change


class Text(NamedTuple):
    """Strings that repeat: values[codes]."""

    codes: np.ndarray
    values: np.ndarray

    def fits(self, pattern: str) -> np.ndarray:
        """Where the regular expression finds itself, as a mask."""
        return np.array([re.search(pattern, value) is not None for value in self.values] or [False])[self.codes]


def text_of(strings: np.ndarray) -> Text:
    values, codes = np.unique(strings.astype(str), return_inverse=True)
    return Text(codes, values.astype(object))


@dataclass(frozen=True)
class Graph:
    """One entry per op, or per call, in order of start; times in ns; indices, -1 for none.

    path, gpu: of the recording, None where it does not name one; cannot_say: what it hides, in sentences.
    Ops. name, role, layer ('' where unknown); start: as recorded; node: is a later node of a graph launch; before, gap:
    the op before it on its stream, and from that one's end to its start; where that is below 0 they overlap, and
    duration counts from that end: until then it did `head` and waited; other, other_gap: the same of an op on another
    stream; launch: its call; in_call, after: from the start of that call to its own, the part while the call runs and
    the rest; gone: an edit dropped it; early: it asks for its weights before it waits. earlier, later: the ops before
    and after it on its stream that are not gone; one entry more, which says nothing, belongs to -1.
    Calls. began: as recorded; previous: the call before on its thread; lead: the host's time since that returned; cost:
    its own time (at most its tail, of one that waited); fixed: more of it, at any pace of the host; awaits, tail: the
    op that it waits for, and from that one's end to its return; blocks: it can make the host wait; by_event: for an
    event, which the host chose; graph: it launches a CUDA graph; site: who made a call that blocks.
    events (n, 2): kind and index, in an order that respects all of this. begins, ends: the op at which each round
    begins, and the one whose start ends it; -1: the end of all ops ends it. streams: all ops, stream by stream.
    """

    path: str
    gpu: str | None
    cannot_say: tuple[str, ...]
    name: Text
    role: Text
    layer: Text
    start: np.ndarray
    duration: np.ndarray
    node: np.ndarray
    before: np.ndarray
    gap: np.ndarray
    other: np.ndarray
    other_gap: np.ndarray
    launch: np.ndarray
    in_call: np.ndarray
    after: np.ndarray
    head: np.ndarray
    gone: np.ndarray
    early: np.ndarray
    earlier: np.ndarray
    later: np.ndarray
    began: np.ndarray
    previous: np.ndarray
    lead: np.ndarray
    cost: np.ndarray
    fixed: np.ndarray
    awaits: np.ndarray
    tail: np.ndarray
    blocks: np.ndarray
    by_event: np.ndarray
    graph: np.ndarray
    site: Text
    events: np.ndarray
    begins: np.ndarray
    ends: np.ndarray
    streams: np.ndarray
    _found: dict[tuple[str, str, str], np.ndarray] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        for value in vars(self).values():
            if isinstance(value, np.ndarray):
                value.flags.writeable = False

    @cached_property
    def recorded(self) -> np.ndarray:
        """The wall of each round in the recording, ns."""
        return self.walls(self.start, self.start + self.duration + np.maximum(-self.gap, 0))

    def walls(self, start: np.ndarray, end: np.ndarray) -> np.ndarray:
        """The wall of each round where ops start and end like this, ns."""
        return np.where(self.ends >= 0, start[self.ends], end.max()) - start[self.begins]

    @cached_property
    def round(self) -> np.ndarray:
        """The number of the round each op starts in; -1 outside of all."""
        at = np.searchsorted(self.begins, np.arange(len(self.start)), "right") - 1
        last = np.where(self.ends >= 0, self.ends, len(self.start))
        return np.where((at >= 0) & (np.arange(len(self.start)) < last[at]), at, -1)

    @cached_property
    def part(self) -> np.ndarray:
        """A number for the round and the layer of each op."""
        return self.round * len(self.layer.values) + self.layer.codes

    def where(self, name: str = "", layer: str = "", role: str = "") -> np.ndarray:
        """Ops that start in a round and whose name, layer and role fit (regular expressions; '': any), gone or not,
        stream by stream: no edit changes it, so that it is kept."""
        asked = (name, layer, role)
        if asked not in self._found:
            texts = zip((self.name, self.layer, self.role), asked, strict=True)
            fits = [text.fits(pattern) for text, pattern in texts if pattern]
            mask = np.logical_and.reduce([self.round >= 0, *fits])
            self._found[asked] = self.streams[mask[self.streams]]
        return self._found[asked]

    def draft(self) -> "Draft":
        """A copy for edits."""
        other = object.__new__(Draft)
        vars(other).update(vars(self), round=self.round, part=self.part)
        other.own(*MOST)
        return other


class Draft(Graph):
    """What edits change: the arrays that it owns."""

    def own(self, *names: str) -> None:
        vars(self).update({name: getattr(self, name).copy() for name in names})

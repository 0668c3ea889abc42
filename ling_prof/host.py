"""What the host was doing: the function, operator or range a thread was in at a time, with file and line."""

import re
from collections.abc import Callable
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from ling_prof import intervals as iv
from ling_prof.intervals import distinct
from ling_prof.trace import Trace, thread_keys

LIBRARY = re.compile(
    r"^(torch|triton|multiprocessing|threading|contextlib|functools|concurrent|asyncio|typing|enum|abc|re|copy|weakref|runpy)[/.]|^<"
)
FRAME = re.compile(r"^(?P<file>.+)\((?P<line>\d+)\): (?P<function>.+)$")
DEPTH = 3


class Host:
    """Look-ups in the host table; every method answers -1 or '' where the trace has none."""

    def __init__(self, trace: Trace):
        self.table: Any = trace.host if trace.has("host") else None
        self._innermost: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    @cached_property
    def _keys(self) -> np.ndarray:
        return thread_keys(self.table)

    @cached_property
    def parent(self) -> np.ndarray:
        return self.table["parent"].to_numpy()

    @cached_property
    def depth(self) -> np.ndarray:
        return self.table["depth"].to_numpy()

    @cached_property
    def names(self) -> np.ndarray:
        return np.asarray(self.table["name"].array, object)

    @cached_property
    def kinds(self) -> np.ndarray:
        return np.asarray(self.table["kind"].array, object)

    def where(self, column: str, test: Callable[[str], bool]) -> np.ndarray:
        """Rows whose `column` passes a test of its text; the test runs once per distinct text."""
        values = self.table[column].array
        return np.array([test(str(v)) for v in values.categories] or [False])[values.codes]

    @cached_property
    def is_own(self) -> np.ndarray:
        """Rows that are Python functions of the user's program or framework: not torch's, not Python's own."""
        own = self.where("name", lambda n: bool(FRAME.match(n)) and not LIBRARY.match(n))
        return own & self.where("kind", lambda k: k == "python")

    def nearest(self, wanted: np.ndarray) -> np.ndarray:
        """For each row itself or its nearest enclosing row that is `wanted`; -1 where none is."""
        parent, depth = self.parent, self.depth
        nearest = np.where(wanted, np.arange(len(wanted)), -1)
        order = np.argsort(depth, kind="stable")
        bounds = np.searchsorted(depth[order], np.arange(1, depth.max(initial=0) + 2))
        for begin, end in pairwise(bounds):
            rows = order[begin:end]
            inherit = rows[(nearest[rows] < 0) & (parent[rows] >= 0)]
            nearest[inherit] = nearest[parent[inherit]]
        return nearest

    @cached_property
    def own_function(self) -> np.ndarray:
        return self.nearest(self.is_own)

    def innermost(self, thread: int) -> tuple[np.ndarray, np.ndarray]:
        """(times, rows): from times[i] on, thread `thread` is in host row rows[i] (-1: in none)."""
        if thread not in self._innermost:
            self._innermost[thread] = self._find_innermost(thread)
        return self._innermost[thread]

    def _find_innermost(self, thread: int) -> tuple[np.ndarray, np.ndarray]:
        """The latest-started row still open at each time: rows may cross, so what has ended can lie under it."""
        start, end = self.table["start"].to_numpy(), self.table["end"].to_numpy()
        mine = np.flatnonzero((self._keys == thread) & (end > start))
        mine = mine[np.lexsort((-end[mine], start[mine]))]
        times = distinct(np.r_[start[mine], end[mine]])
        begins = np.searchsorted(start[mine], times, "right").tolist()
        closes, opened = end[mine].tolist(), 0
        rows: list[int] = []
        stack: list[int] = []
        for time, upto in zip(times.tolist(), begins, strict=True):
            while stack and closes[stack[-1]] <= time:
                stack.pop()
            stack.extend(range(opened, upto))
            opened = upto
            rows.append(stack[-1] if stack else -1)
        found = np.array(rows, np.int64)
        return times, np.where(found >= 0, mine[found], -1) if len(mine) else found

    def at(self, thread: np.ndarray, time: np.ndarray) -> np.ndarray:
        """For each (thread key, time) the innermost host row; -1 where the thread is in none."""
        out = np.full(len(time), -1)
        if self.table is None:
            return out
        for key in distinct(thread):
            times, rows = self.innermost(int(key))
            mine = np.flatnonzero(thread == key)
            at = np.searchsorted(times, time[mine], "right") - 1
            out[mine] = np.where(at >= 0, rows[np.maximum(at, 0)], -1) if len(times) else -1
        return out

    def name(self, row: int) -> str:
        return str(self.names[row]) if row >= 0 else ""

    def chain(self, row: int) -> list[int]:
        """`row` and the rows that enclose it, innermost first."""
        out = []
        while row >= 0:
            out.append(row)
            row = int(self.parent[row])
        return out

    def site(self, row: int) -> str:
        """'aten::item < f (file.py:12) < g (file.py:3)': the operator, then the nearest functions of the user's own, or
        else the innermost range, the number it ends in replaced by N."""
        chain = self.chain(row)
        kinds = [self.kinds[r] for r in chain]
        operators = [self.name(r) for r, k in zip(chain, kinds, strict=True) if k == "op"]
        public = [n for n in operators if not n.split("::")[-1].startswith("_")]
        own = [place(self.name(r)) for r in chain if self.is_own[r]][:DEPTH]
        named = [self.name(r) for r, k in zip(chain, kinds, strict=True) if k in ("annotation", "nvtx")][:1]
        named = [re.sub(r"\d+$", "N", name) for name in named]
        return " < ".join([*(public or operators)[:1], *(own or named)])

    def stack(self, row: int) -> list[str]:
        """Every enclosing name, innermost first."""
        return [self.name(r) for r in self.chain(row)]

    def range_name(self, row: int) -> str:
        """The innermost annotation or NVTX range around a row."""
        kinds = ("annotation", "nvtx")
        return next((self.name(r) for r in self.chain(row) if self.kinds[r] in kinds), "")

    def function_at(
        self, thread: np.ndarray, start: np.ndarray, end: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Splits disjoint sorted intervals where their thread's innermost row changes: (row, ns, interval) a part."""
        parts = []
        for key in distinct(thread):
            mine = np.flatnonzero(thread == key)
            times = self.innermost(int(key))[0] if self.table is not None else iv.EMPTY[0]
            left, right, owner = iv.cut(start[mine], end[mine], times)
            parts.append((self.at(np.full(len(left), key), left), right - left, mine[owner]))
        if not parts:
            return iv.EMPTY[0], iv.EMPTY[0], iv.EMPTY[0]
        row, length, interval = (np.concatenate(column) for column in zip(*parts, strict=True))
        return row, length, interval


def place(name: str) -> str:
    """'dir/file.py(12): f' -> 'f (dir/file.py:12)'; other names unchanged."""
    found = FRAME.match(name)
    return f"{found['function']} ({found['file']}:{found['line']})" if found else name

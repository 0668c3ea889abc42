"""Nsight's SQLite exports by column name: tables that may be absent, columns that may not exist in this schema."""

import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import cached_property
from itertools import chain
from pathlib import Path

import numpy as np
import pandas as pd

from ling_prof.errors import TraceError

ROWS = 2_000  # a fetch; more only holds more memory
REQUIRED = {"start", "end", "device"}


@contextmanager
def database(path: Path, file: Path) -> Iterator["Database"]:
    uri = file.absolute().as_uri() + "?mode=ro&immutable=1"
    try:
        with closing(sqlite3.connect(uri, uri=True)) as connection:
            connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
            yield Database(path, connection)
    except sqlite3.DatabaseError as error:
        raise TraceError(path, f"the SQLite file is damaged ({error})", "export it again from its .nsys-rep") from None


class Database:
    """Queries by column name over tables that may be absent and columns that may not exist in this schema."""

    def __init__(self, path: Path, connection: sqlite3.Connection):
        self.path, self.connection, self.untimed = path, connection, 0
        names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")]
        self.columns = {name: {row[1] for row in connection.execute(f'PRAGMA table_info("{name}")')} for name in names}
        self._strings: dict[int, str] | None = None

    def has(self, name: str) -> bool:
        return name in self.columns and self.connection.execute(f"SELECT 1 FROM {name} LIMIT 1").fetchone() is not None

    def integers(self, name: str, wanted: dict[str, str], where: str = "") -> dict[str, np.ndarray]:
        """Columns (result name -> SQL over columns) as int64 arrays; NULL, and what this schema lacks, become -1;
        rows without a valid time are left out.

        Raises TraceError when it lacks a column without which nothing can be said.
        """
        select = [f"COALESCE({self._known(name, key, sql)}, -1)" for key, sql in wanted.items()]
        rows = self.connection.execute(f"SELECT COUNT(*) FROM {name} {where}").fetchone()[0]
        out = {key: np.empty(rows, np.int64) for key in wanted}
        cursor, at = self.connection.execute(f"SELECT {', '.join(select)} FROM {name} {where}"), 0
        while some := cursor.fetchmany(ROWS):
            try:
                block = np.fromiter(chain.from_iterable(some), np.int64, len(some) * len(wanted)).reshape(len(some), -1)
            except (ValueError, TypeError, OverflowError):
                found = f"table {name} holds text or huge numbers where Nsight Systems writes integers"
                raise TraceError(self.path, found, "export it again with nsys export --type sqlite") from None
            for i, column in enumerate(out.values()):
                column[at : at + len(some)] = block[:, i]
            at += len(some)
        return self._timed(out) if {"start", "end"} <= out.keys() else out

    def _timed(self, columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Without rows that end before they start, have no time, or end centuries later; counts those."""
        start, end = columns["start"], columns["end"]
        valid = (end >= start) & (start != -1) & (end < 2**62)
        self.untimed += int((~valid).sum())
        return columns if valid.all() else {key: column[valid] for key, column in columns.items()}

    def _known(self, name: str, key: str, sql: str) -> str:
        """`sql` with the columns this schema lacks as NULL."""
        lacks = sorted(set(re.findall(r"[a-z]\w*", sql)) - self.columns[name])
        if lacks and key in REQUIRED:
            found = f"table {name} has no column {', '.join(lacks)} (schema {self.schema or 'unknown'})"
            remedy = "export it again with nsys export --type sqlite, and report this schema if it is a new one"
            raise TraceError(self.path, found, remedy)
        return re.sub(r"[a-z]\w*", lambda word: "NULL" if word[0] in lacks else word[0], sql)

    @cached_property
    def gpu_of(self) -> dict[tuple[int, int], int]:
        """(process, CUDA ordinal as it saw it) -> GPU of the machine; empty where the file does not say."""
        if not {"gpuId", "cudaId", "pid"} <= self.columns.get("TARGET_INFO_CUDA_DEVICE", set()):
            return {}
        rows = self.rows("SELECT pid, cudaId, gpuId FROM TARGET_INFO_CUDA_DEVICE WHERE gpuId IS NOT NULL")
        return {(int(pid or 0), int(cuda)): int(gpu) for pid, cuda, gpu in rows}

    @cached_property
    def ordinals_clash(self) -> bool:
        """Whether processes of CUDA_VISIBLE_DEVICES call different GPUs by the same number."""
        pairs = {(cuda, gpu) for (_, cuda), gpu in self.gpu_of.items()}
        return len(pairs) > len({cuda for cuda, _ in pairs})

    def device(self, pid: np.ndarray, ordinal: np.ndarray) -> np.ndarray:
        """The program's own device number, or the machine's where processes disagree on what theirs mean."""
        if not self.ordinals_clash:
            return ordinal
        pairs, codes = np.unique(np.stack([pid, ordinal]), axis=1, return_inverse=True)
        return np.array([self.gpu_of.get((int(p), int(o)), int(o)) for p, o in pairs.T])[codes.ravel()]

    @property
    def schema(self) -> str:
        return self.meta("EXPORT_SCHEMA_VERSION")

    def meta(self, key: str) -> str:
        """A value of the export's own table; '' where the file does not say."""
        for name in ("META_DATA_EXPORT", "EXPORT_META_DATA"):
            if {"name", "value"} <= self.columns.get(name, set()):
                rows = self.rows(f"SELECT value FROM {name} WHERE name = '{key}'")
                return str(rows[0][0]) if rows else ""
        return ""

    def rows(self, query: str) -> list[tuple]:
        return self.connection.execute(query).fetchall()

    def strings(self, ids: np.ndarray, rename=lambda value: value) -> pd.Categorical:
        """String ids as a Categorical; an id StringIds lacks becomes '[unknown]'."""
        if self._strings is None:
            rows = self.rows("SELECT id, value FROM StringIds") if "StringIds" in self.columns else []
            self._strings = {number: str(text) for number, text in rows}
        unique, codes = np.unique(ids, return_inverse=True)
        return labelled([rename(self._strings.get(int(i), "[unknown]")) for i in unique], codes)


def labelled(labels: Sequence[str], codes: np.ndarray) -> pd.Categorical:
    """codes -> labels as a Categorical; equal labels are merged."""
    if not len(labels):
        return pd.Categorical([], categories=[""])
    merged, categories = pd.factorize(np.array(labels, object))
    return pd.Categorical.from_codes(merged[codes], categories=pd.Index(categories, dtype=str))

"""What an ablation has finished, kept in an SQLite file, so that a run that was cut short goes on where it ended.

One table, one row a finished thing; a row is written whole or not at all, also when the process is killed.
"""

import hashlib
import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import msgspec

from ling_prof.errors import UserError
from ling_prof.plain_file import check_writable

TABLE = "CREATE TABLE finished (kind TEXT, name TEXT, value TEXT NOT NULL, PRIMARY KEY (kind, name))"
Time = Annotated[float, msgspec.Meta(gt=0, lt=1e15)]
SHAPES: dict[str, Any] = {"key": dict, "window": dict[str, Time], "void": str, "kernels": list, "begun": dict}
LONGEST = 60  # characters of a value that a sentence shows
ELSEWHERE = "give another folder with --output"
FAULTS = {
    sqlite3.SQLITE_BUSY: f"another run is using it; wait until it has ended, or {ELSEWHERE}",
    sqlite3.SQLITE_NOTADB: f"it is no ablation store; {ELSEWHERE}",
    sqlite3.SQLITE_READONLY: f"it is read-only; make it writable, or {ELSEWHERE}",
    sqlite3.SQLITE_FULL: "the disk is full; make room and run again to go on",
}


class Store:
    """One ablation's finished windows, verdicts and the like; a context manager, locked for other runs until its end.

    key: all that must be equal to go on with what is there, as JSON data (lock, code, design, players, windows, steps).
    shapes: by kind what its values are, as msgspec takes it, beside those that every store has.
    Raises UserError, and changes nothing, for a file that holds something else, belongs to another key or run, or
    cannot be written; also where a later write fails.
    """

    def __init__(self, path: Path, key: Mapping[str, Any], shapes: Mapping[str, Any] | None = None):
        check_writable(path)
        self.path, self.shapes = path, {**SHAPES, **(shapes or {})}
        with self._spoken():
            self._db = sqlite3.connect(path, timeout=0, isolation_level=None)
            try:
                self._open(json.loads(_packed(key)))
            except BaseException:
                self._db.close()
                raise

    def _open(self, key: dict[str, Any]) -> None:
        """Locks the file until it is closed; a new one gets its table and key in one transaction."""
        self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
        self._db.execute("BEGIN EXCLUSIVE")
        tables = [name for (name,) in self._db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        if not tables:
            self._db.execute(TABLE)
            self.put("key", "", key)
        elif tables != ["finished"] or (there := self.get("key", "")) is None:
            raise UserError(f"{self.path}: {FAULTS[sqlite3.SQLITE_NOTADB]}.")
        elif differing := ", ".join(_differing(there, key)):
            raise UserError(
                f"{self.path} holds another ablation, which differs in {differing}; {ELSEWHERE}, or delete it."
            )
        for kind, name in self._db.execute("SELECT kind, name FROM finished").fetchall():
            self.get(kind, name)  # has the shape of its kind
        self._db.execute("COMMIT")

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the lock; what was finished stays."""
        self._db.close()

    def finish(self, number: int, times: Mapping[str, float]) -> None:
        """Keeps a whole window: name of a combination -> ns per token; in place of one that lacked some."""
        self.replace("window", str(number), dict(times))

    def window(self, number: int) -> dict[str, float] | None:
        """What `finish` kept; None for a window that is not finished."""
        return self.get("window", str(number))

    def windows(self) -> list[int]:
        """The numbers of the finished windows, ascending."""
        with self._spoken():
            found = self._db.execute("SELECT name FROM finished WHERE kind = 'window'").fetchall()
        if odd := [name for (name,) in found if not name.isdecimal()]:
            raise self.damaged("window", odd[0])
        return sorted(int(name) for (name,) in found)

    def put(self, kind: str, name: str, value: Any) -> None:
        """Keeps JSON data that is finished once; the kinds 'key' and 'window' are the store's own.

        Raises ValueError for a name that is there already, and for NaN.
        """
        try:
            self._write("INSERT", kind, name, value)
        except sqlite3.IntegrityError:
            raise ValueError(f"{kind} {name} is finished already") from None

    def replace(self, kind: str, name: str, value: Any) -> None:
        """As `put`, over what is there. Raises ValueError for NaN."""
        self._write("INSERT OR REPLACE", kind, name, value)

    def _write(self, how: str, kind: str, name: str, value: Any) -> None:
        with self._spoken():
            self._db.execute(f"{how} INTO finished VALUES (?, ?, ?)", (kind, name, _packed(value)))

    def get(self, kind: str, name: str) -> Any:
        """What `put` kept; None where nothing is."""
        with self._spoken():
            query = "SELECT value FROM finished WHERE kind = ? AND name = ?"
            row = self._db.execute(query, (kind, name)).fetchone()
        if row is None:
            return None
        try:
            return msgspec.json.decode(row[0], type=self.shapes.get(kind, Any))
        except (msgspec.MsgspecError, UnicodeEncodeError):
            raise self.damaged(kind, name) from None

    def damaged(self, kind: str, name: str) -> UserError:
        """The error for a row that cannot be what was kept."""
        return UserError(f"{self.path} is damaged: its {kind} {name or 'row'} is not what was kept; {ELSEWHERE}.")

    @contextmanager
    def _spoken(self) -> Iterator[None]:
        """What SQLite complains of, as a sentence."""
        try:
            yield
        except sqlite3.IntegrityError:
            raise
        except sqlite3.DatabaseError as error:
            fault = FAULTS.get(getattr(error, "sqlite_errorcode", 0) & 0xFF)
            raise UserError(f"{self.path}: {fault or f'SQLite cannot use it ({error}); {ELSEWHERE}'}.") from None


def code() -> str:
    """A hash of the programs and tables of this package: what runs."""
    root, found = Path(__file__).parent, hashlib.sha256()
    paths = [path for path in root.rglob("*") if path.suffix in (".py", ".json")]
    for name in sorted(path.relative_to(root).as_posix() for path in paths):
        found.update(name.encode() + b"\0" + (root / name).read_bytes())
    return found.hexdigest()[:16]


def _packed(value: Any) -> str:
    return json.dumps(value, allow_nan=False)


def _differing(there: Any, now: Any, name: str = "") -> Iterator[str]:
    """The leaves of two keys that differ, with both values where they are short."""
    if isinstance(there, dict) and isinstance(now, dict):
        for part in {**there, **now}:
            yield from _differing(there.get(part), now.get(part), f"{name}.{part}" if name else part)
    elif there != now:
        values = f"{_packed(there)} there, {_packed(now)} now"
        yield f"{name} ({values})" if len(values) <= LONGEST else name

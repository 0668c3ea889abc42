"""Nsight Systems .sqlite (every exported schema) and .nsys-rep -> Trace. Opens the file read-only; sorts for itself."""

import glob
import re
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from ling_prof.errors import Missing, TraceError
from ling_prof.load.calls import record_kinds, sync_kinds
from ling_prof.load.kineto import bare_name
from ling_prof.load.stream import pieces
from ling_prof.trace import Trace, early_note, find_launches, nest, sort_rows, table, without_corrupt

KERNEL, MEMCPY, MEMSET = (f"CUPTI_ACTIVITY_KIND_{k}" for k in ("KERNEL", "MEMCPY", "MEMSET"))
GRAPH, RUNTIME, SYNC = (f"CUPTI_ACTIVITY_KIND_{k}" for k in ("GRAPH_TRACE", "RUNTIME", "SYNCHRONIZATION"))
COPY_KIND = {
    1: "HtoD",
    2: "DtoH",
    3: "HtoA",
    4: "AtoH",
    8: "DtoD",
    9: "HtoH",
    10: "PtoP",
    11: "HtoD",
    12: "DtoH",
    13: "DtoD",
}
MEMORY = {0: "pageable", 1: "pinned", 2: "device", 3: "array", 4: "managed"}
SYNC_KIND = {1: "event", 2: "stream_wait", 3: "stream", 4: "device"}
RANGES = (59, 60, 70, 71)  # push/pop and start/end, present and older numbering
THREAD = 0xFFFFFF
ROWS = 50_000
Progress = Callable[[float], None]
RECORD = "record with nsys profile --trace=cuda,nvtx --sample=none --cpuctxsw=none --cuda-graph-trace=node"
PLACES = (
    "/usr/local/cuda*/bin/nsys",
    "/opt/nvidia/nsight-systems/*/bin/nsys",
    "/opt/nvidia/nsight-systems/*/target-linux-x64/nsys",
    "/opt/nvidia/nsight-compute/*/host/target-linux-x64/nsys",
)


def find_nsys() -> str | None:
    """The nsys on PATH, or else the newest one in a CUDA install."""
    found = shutil.which("nsys")
    return found or next((p for place in PLACES for p in sorted(glob.glob(place), reverse=True)), None)


def read_report(path: Path, progress: Progress = lambda _: None) -> Trace:
    """Reads .nsys-rep through `nsys export`. Raises TraceError naming the export command when no nsys is found."""
    command = f"nsys export --type sqlite -o {path.stem}.sqlite {path.name}"
    nsys = find_nsys()
    if not nsys:
        raise TraceError(
            path,
            "an Nsight Systems report, and no nsys on PATH or in a CUDA install",
            f"run `{command}` where Nsight Systems is installed and give the .sqlite",
        )
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "report.sqlite"
        done = subprocess.run(
            [nsys, "export", "--type", "sqlite", "--force-overwrite", "true", "-o", str(target), str(path)],
            capture_output=True,
            text=True,
        )
        if done.returncode or not target.exists():
            why = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
            raise TraceError(
                path, f"{nsys} could not export it ({why})", f"run `{command}` with the Nsight Systems that recorded it"
            )
        return _read(path, target, progress)


def read(path: Path, progress: Progress = lambda _: None) -> Trace:
    """Reads an exported .sqlite, also gzipped. Raises TraceError when it is damaged or holds no trace."""
    with open(path, "rb") as file:
        plain_file = file.read(2) != b"\x1f\x8b"
    if plain_file:
        return _read(path, path, progress)
    with tempfile.NamedTemporaryFile(suffix=".sqlite") as plain:
        for piece in pieces(path):
            plain.write(piece)
        plain.flush()
        return _read(path, Path(plain.name), progress)


@contextmanager
def _database(path: Path, file: Path) -> Iterator["_Db"]:
    uri = file.absolute().as_uri() + "?mode=ro&immutable=1"
    try:
        with closing(sqlite3.connect(uri, uri=True)) as connection:
            connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
            yield _Db(path, connection)
    except sqlite3.DatabaseError as error:
        raise TraceError(path, f"the SQLite file is damaged ({error})", "export it again from its .nsys-rep") from None


class _Db:
    """Queries by column name over tables that may be absent and columns that may not exist in this schema."""

    def __init__(self, path: Path, connection: sqlite3.Connection):
        self.path, self.connection = path, connection
        names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")]
        self.columns = {name: {row[1] for row in connection.execute(f'PRAGMA table_info("{name}")')} for name in names}
        self._strings: dict[int, str] | None = None

    def has(self, name: str) -> bool:
        return name in self.columns and self.connection.execute(f"SELECT 1 FROM {name} LIMIT 1").fetchone() is not None

    def integers(self, name: str, wanted: dict[str, str], where: str = "") -> dict[str, np.ndarray]:
        """Columns (result name -> SQL over columns) as int64 arrays; NULL, and what this schema lacks, become -1.

        Raises TraceError when it lacks a column without which nothing can be said.
        """
        select = [f"COALESCE({self._known(name, key, sql)}, -1)" for key, sql in wanted.items()]
        rows = self.connection.execute(f"SELECT COUNT(*) FROM {name} {where}").fetchone()[0]
        out = {key: np.empty(rows, np.int64) for key in wanted}
        cursor, at = self.connection.execute(f"SELECT {', '.join(select)} FROM {name} {where}"), 0
        while some := cursor.fetchmany(ROWS):
            block = np.fromiter(chain.from_iterable(some), np.int64, len(some) * len(wanted)).reshape(len(some), -1)
            for i, column in enumerate(out.values()):
                column[at : at + len(some)] = block[:, i]
            at += len(some)
        return out

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
            self._strings = dict(self.rows("SELECT id, value FROM StringIds")) if "StringIds" in self.columns else {}
        unique, codes = np.unique(ids, return_inverse=True)
        return labelled([rename(self._strings.get(int(i), "[unknown]")) for i in unique], codes)


def labelled(labels: Sequence[str], codes: np.ndarray) -> pd.Categorical:
    """codes -> labels as a Categorical; equal labels are merged."""
    if not len(labels):
        return pd.Categorical([], categories=[""])
    merged, categories = pd.factorize(np.array(labels, object))
    return pd.Categorical.from_codes(merged[codes], categories=pd.Index(categories, dtype=str))


def _coded(table_of: dict[int, str], values: np.ndarray) -> pd.Categorical:
    unique, codes = np.unique(values, return_inverse=True)
    return labelled([table_of.get(int(v), "") for v in unique], codes)


def _read(path: Path, file: Path, progress: Progress) -> Trace:
    with _database(path, file) as db:
        if not db.columns:
            raise TraceError(path, "an empty SQLite file", "export it again: nsys export --type sqlite FILE.nsys-rep")
        if "StringIds" not in db.columns and KERNEL not in db.columns:
            found = ", ".join(sorted(db.columns)[:3])
            raise TraceError(
                path,
                f"an SQLite file that Nsight Systems did not write (tables {found})",
                "give the output of nsys export --type sqlite",
            )
        return _build(path, db, progress)


def _build(path: Path, db: _Db, progress: Progress) -> Trace:
    mode = _graph_mode(db)
    frames: dict[str, pd.DataFrame | None] = {}
    for i, (name, (source, make)) in enumerate(TABLES.items()):
        frames[name] = make(db, frames) if source is None or db.has(source) else None
        progress((i + 1) / len(TABLES))
    early = 0
    if frames["gpu"] is not None:
        frames["gpu"], early = without_corrupt(frames["gpu"], frames["api"])
    missing = _missing(db, mode)
    timed = [f for key, f in frames.items() if f is not None and key not in ("capture", "overhead") and len(f)]
    origin = min((int(f["start"].iloc[0]) for f in timed), default=0)
    for key, frame in frames.items():
        if frame is not None:
            frame[["time"] if key == "capture" else ["start", "end"]] -= origin
    return Trace(
        path=str(path),
        format="nsys",
        tables={
            key: missing[key] if frame is None or (key in missing and not len(frame)) else frame
            for key, frame in frames.items()
        },
        epoch_ns=_epoch(db) + origin,
        devices=_devices(db),
        lock=_lock(db, mode),
        lacks=_lacks(frames, mode),
        notes=(early_note(early),) if early else (),
    )


class _Source(NamedTuple):
    name: str
    kind: str
    columns: dict[str, str]  # what to call it -> SQL over columns of the table


def _packed(which: str) -> str:
    """One integer for a grid or block: 31, 16 and 16 bits hold CUDA's largest."""
    return f"{which}X << 32 | {which}Y << 16 | {which}Z"


IN_GRAPH = {"node": "graphNodeId", "graph": "graphId"}
SOURCES = (
    _Source(
        KERNEL,
        "kernel",
        {
            "name": "COALESCE(demangledName, shortName)",
            **IN_GRAPH,
            "grid": _packed("grid"),
            "block": _packed("block"),
            "regs": "registersPerThread",
            "smem": "staticSharedMemory + dynamicSharedMemory",
        },
    ),
    _Source(MEMCPY, "memcpy", {"bytes": "bytes", "copy": "copyKind", "src": "srcKind", "dst": "dstKind", **IN_GRAPH}),
    _Source(MEMSET, "memset", {"bytes": "bytes", "dst": "memKind", **IN_GRAPH}),
    _Source(GRAPH, "graph", {"graph": "graphId", "exec": "graphExecId"}),
)
SPAN = {"start": "start", "end": "end"}
COMMON = {**SPAN, "device": "deviceId", "stream": "streamId", "corr": "correlationId", "gpid": "globalPid"}
THREADED = {**SPAN, "gtid": "globalTid"}
REQUIRED = {"start", "end", "device"}


def _gpu(db: _Db, frames: dict[str, pd.DataFrame | None]) -> pd.DataFrame:
    api = frames["api"]
    parts = [_activity(db, source) for source in SOURCES if db.has(source.name)]
    if not parts:
        return table("gpu")
    frame, _ = sort_rows(_concat(parts))
    if api is None:
        return frame
    return frame.assign(api_row=find_launches(_key(frame["pid"], frame["corr"], -1), _key(api["pid"], api["corr"], -2)))


def _key(pid: pd.Series | np.ndarray, corr: pd.Series | np.ndarray, absent: int) -> np.ndarray:
    # 24 bits of pid over 39 bits of correlation id.
    pid, corr = np.asarray(pid), np.asarray(corr)
    return np.where(corr > 0, (pid << 39) | (corr & (2**39 - 1)), absent)


def _concat(parts: list[pd.DataFrame]) -> pd.DataFrame:
    if len(parts) == 1:
        return parts[0]
    columns = {}
    for key in parts[0].columns:
        values = [p[key] for p in parts]
        categorical = isinstance(values[0].dtype, pd.CategoricalDtype)
        columns[key] = pd.api.types.union_categoricals(values) if categorical else np.concatenate(values)
    return table("gpu", **columns)


def _activity(db: _Db, source: _Source) -> pd.DataFrame:
    raw = db.integers(source.name, COMMON | source.columns)
    rows = len(raw["start"])
    pid = (raw.pop("gpid") >> 24) & THREAD
    node, graph = (raw.pop(key, np.full(rows, -1)) for key in IN_GRAPH)
    return table(
        "gpu",
        **_spans(raw),
        device=db.device(pid, raw.pop("device")),
        stream=raw.pop("stream"),
        corr=raw.pop("corr"),
        pid=pid,
        kind=pd.Categorical.from_codes(np.zeros(rows, np.int8), categories=[source.kind]),
        graph_node=np.where(node > 0, node, -1),
        graph_id=np.where(graph > 0, graph, -1),
        **_DETAILS[source.kind](db, raw),
    )


def _kernel(db: _Db, raw: dict[str, np.ndarray]) -> dict[str, object]:
    shapes = {key: _shape(raw.pop(key)) for key in ("grid", "block")}
    return {"name": db.strings(raw.pop("name")), "regs": raw.pop("regs"), "smem": raw.pop("smem"), **shapes}


def _shape(packed: np.ndarray) -> pd.Categorical:
    unique, codes = np.unique(packed, return_inverse=True)
    return labelled(
        ["" if u < 0 else f"{int(u) >> 32},{int(u) >> 16 & 0xFFFF},{int(u) & 0xFFFF}" for u in unique], codes
    )


def _memcpy(db: _Db, raw: dict[str, np.ndarray]) -> dict[str, object]:
    kind = _coded(COPY_KIND, raw["copy"])
    return {
        "name": kind.rename_categories([f"Memcpy {c}".strip() for c in kind.categories]),
        "bytes": raw["bytes"],
        "copy_kind": kind,
        "src_mem": _coded(MEMORY, raw["src"]),
        "dst_mem": _coded(MEMORY, raw["dst"]),
    }


def _memset(db: _Db, raw: dict[str, np.ndarray]) -> dict[str, object]:
    name = pd.Categorical.from_codes(np.zeros(len(raw["start"]), np.int8), categories=["Memset"])
    return {"name": name, "bytes": raw["bytes"], "dst_mem": _coded(MEMORY, raw["dst"])}


def _whole_graph(db: _Db, raw: dict[str, np.ndarray]) -> dict[str, object]:
    unique, codes = np.unique(raw["exec"], return_inverse=True)
    return {"name": labelled([f"CUDA graph {i} (opaque)" for i in unique], codes)}


_DETAILS = {"kernel": _kernel, "memcpy": _memcpy, "memset": _memset, "graph": _whole_graph}


def _threads(global_tid: np.ndarray) -> dict[str, np.ndarray]:
    return {"pid": (global_tid >> 24) & THREAD, "tid": global_tid & THREAD}


def _spans(raw: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {"start": raw["start"], "end": np.maximum(raw["end"], raw["start"])}


def _api(db: _Db) -> pd.DataFrame:
    raw = db.integers(RUNTIME, {**THREADED, "corr": "correlationId", "name": "nameId", "ret": "returnValue"})
    names = db.strings(raw.pop("name"), bare_name)
    frame = table(
        "api",
        **_spans(raw),
        **_threads(raw.pop("gtid")),
        name=names,
        corr=raw["corr"],
        sync_kind=sync_kinds(names),
        ret=raw["ret"],
    )
    return sort_rows(frame)[0]


def _nvtx(db: _Db) -> pd.DataFrame:
    """Closed push/pop and start/end ranges; a range still open when recording stopped has no end and is left out."""
    where = f"WHERE eventType IN {RANGES} AND end IS NOT NULL"
    raw = db.integers("NVTX_EVENTS", {**THREADED, "name": "textId"}, where)
    names = db.strings(raw["name"])
    if "text" in db.columns["NVTX_EVENTS"]:
        text = np.array([row[0] for row in db.rows(f"SELECT text FROM NVTX_EVENTS {where}")] or [None], object)[
            : len(raw["start"])
        ]
        names = pd.Categorical(np.where(pd.notna(text), text, np.asarray(names, object)))
    kind = pd.Categorical.from_codes(np.zeros(len(names), np.int8), categories=["nvtx"])
    frame, _ = sort_rows(table("host", **_spans(raw), **_threads(raw.pop("gtid")), name=names, kind=kind))
    return nest(frame)


def _overhead(db: _Db) -> pd.DataFrame:
    for name in ("PROFILER_OVERHEAD", "CUPTI_ACTIVITY_KIND_OVERHEAD"):
        if db.has(name):
            raw = db.integers(name, {**THREADED, "name": "nameId"})
            return sort_rows(
                table("overhead", **_spans(raw), **_threads(raw.pop("gtid")), name=db.strings(raw["name"]))
            )[0]
    return table("overhead")


def _sync(db: _Db, frames: dict[str, pd.DataFrame | None]) -> pd.DataFrame:
    wanted = {
        "type": "syncType",
        "stream": "streamId",
        "event": "eventId",
        "corr": "correlationId",
        "gpid": "globalPid",
    }
    raw = db.integers(SYNC, SPAN | wanted)
    api = frames["api"]
    call = np.full(len(raw["start"]), -1)
    if api is not None:
        call = find_launches(_key(raw["gpid"] >> 24 & THREAD, raw["corr"], -1), _key(api["pid"], api["corr"], -2))
    kind = record_kinds(_coded(SYNC_KIND, raw["type"]), api, call)
    return sort_rows(
        table("sync", **_spans(raw), kind=kind, stream=raw["stream"], event=raw["event"], corr=raw["corr"])
    )[0]


def _capture(db: _Db) -> pd.DataFrame:
    wanted = {"time": "start", "gtid": "globalTid", "node": "graphNodeId", "original": "originalGraphNodeId"}
    raw = db.integers("CUDA_GRAPH_NODE_EVENTS", wanted, "ORDER BY start")
    return table("capture", **_threads(raw.pop("gtid")), **raw)


def _graph_mode(db: _Db) -> str:
    """'node', 'graph', or '' where the file does not say."""
    if "META_DATA_CAPTURE" not in db.columns:
        return ""
    rows = db.rows("SELECT value FROM META_DATA_CAPTURE WHERE name LIKE '%CUDA_GRAPH_TRACE_OPTIONS:MODE'")
    return str(rows[0][0]).lower() if rows else ""


def _epoch(db: _Db) -> int:
    if "utcEpochNs" not in db.columns.get("TARGET_INFO_SESSION_START_TIME", ()):
        return 0
    rows = db.rows("SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME")
    return int(rows[0][0]) if rows and rows[0][0] else 0


def _devices(db: _Db) -> dict[int, str]:
    """Device number, as in gpu.device -> GPU name."""
    if not {"id", "name"} <= db.columns.get("TARGET_INFO_GPU", set()):
        return {}
    names = {int(i): str(n) for i, n in db.rows("SELECT id, name FROM TARGET_INFO_GPU") if n}
    if db.ordinals_clash or not db.gpu_of:
        return names
    return {cuda: names[gpu] for (_, cuda), gpu in db.gpu_of.items() if gpu in names}


def _lock(db: _Db, mode: str) -> dict[str, object]:
    lock: dict[str, object] = {"cuda_graph_trace": mode, "schema": db.schema, "nsys": db.meta("EXPORT_PRODUCT_VERSION")}
    if "TARGET_INFO_SYSTEM_ENV" in db.columns:
        rows = db.rows("SELECT value FROM TARGET_INFO_SYSTEM_ENV WHERE name = 'CudaDriverVersion'")
        lock["cuda_driver_version"] = rows[0][0] if rows else None
    return {key: value for key, value in lock.items() if value}


def _missing(db: _Db, mode: str) -> dict[str, Missing]:
    def absent(name: str) -> str:
        return (
            "none was recorded" if name in db.columns else f"the file has no table {name}: not traced, or none happened"
        )

    return {
        "gpu": Missing(
            "GPU times", "no kernel, copy, memset or graph was recorded", RECORD + ", on a program that uses the GPU"
        ),
        "api": Missing("launches and blocking calls", absent(RUNTIME), RECORD),
        "host": Missing(
            "named ranges", absent("NVTX_EVENTS"), "add nvtx to --trace and mark steps with torch.cuda.nvtx.range_push"
        ),
        "sync": Missing("synchronisation records", absent(SYNC), RECORD),
        "capture": Missing(
            "the layer of a CUDA-graph node",
            absent("CUDA_GRAPH_NODE_EVENTS"),
            RECORD + ", started before the graph is captured",
        ),
    }


def _lacks(frames: dict[str, pd.DataFrame | None], mode: str) -> dict[str, Missing]:
    lacks = {
        "host.python": Missing(
            "Python functions",
            "Nsight Systems was run without Python sampling",
            "record with the torch profiler, with_stack=True",
        )
    }
    gpu = frames["gpu"]
    if gpu is not None and (gpu["kind"] == "graph").any():
        why = f"the CUDA graphs were traced whole{f' (mode {mode})' if mode else ''}: their kernels are not in the file"
        lacks["gpu.graph_node"] = Missing(
            "kernels inside CUDA graphs", why, "record with nsys profile --cuda-graph-trace=node"
        )
    elif gpu is None or not (gpu["graph_node"] >= 0).any():
        lacks["gpu.graph_node"] = Missing(
            "CUDA graph node ids", "no kernel of a CUDA graph was recorded", "record with --cuda-graph-trace=node"
        )
    return lacks


TABLES: dict[str, tuple[str | None, Callable[[_Db, dict], pd.DataFrame]]] = {
    "api": (RUNTIME, lambda db, _: _api(db)),
    "gpu": (None, _gpu),
    "host": ("NVTX_EVENTS", lambda db, _: _nvtx(db)),
    "overhead": (None, lambda db, _: _overhead(db)),
    "sync": (SYNC, _sync),
    "capture": ("CUDA_GRAPH_NODE_EVENTS", lambda db, _: _capture(db)),
}


def is_report(start: bytes) -> bool:
    """Whether a file starts as an .nsys-rep does."""
    return start.startswith(b"NVIDIA Tegra Profiler Report")

"""Nsight Systems .sqlite (every exported schema) and .nsys-rep -> Trace. Opens the file read-only; sorts for itself."""

import glob
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from ling_prof.errors import Missing, TraceError
from ling_prof.load.calls import record_kinds, sync_kinds
from ling_prof.load.kineto import bare_name
from ling_prof.load.stream import pieces
from ling_prof.trace import Trace, find_launches, nest, sort_rows, table

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
            yield _Db(connection)
    except sqlite3.DatabaseError as error:
        raise TraceError(path, f"the SQLite file is damaged ({error})", "export it again from its .nsys-rep") from None


class _Db:
    """Queries by column name over tables that may be absent and columns that may not exist in this schema."""

    def __init__(self, connection: sqlite3.Connection):
        self.connection = connection
        names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")]
        self.columns = {name: {row[1] for row in connection.execute(f'PRAGMA table_info("{name}")')} for name in names}
        self._strings: dict[int, str] | None = None

    def has(self, name: str) -> bool:
        return name in self.columns and self.connection.execute(f"SELECT 1 FROM {name} LIMIT 1").fetchone() is not None

    def integers(self, name: str, wanted: Sequence[str], where: str = "") -> dict[str, np.ndarray]:
        """Columns as int64 arrays; NULL, and a column this schema lacks, become -1."""
        have = [f"COALESCE({column}, -1)" if column in self.columns[name] else "-1" for column in wanted]
        cursor = self.connection.execute(f"SELECT {', '.join(have)} FROM {name} {where}")
        parts = []
        while rows := cursor.fetchmany(ROWS):
            parts.append(
                np.fromiter(chain.from_iterable(rows), np.int64, len(rows) * len(wanted)).reshape(len(rows), -1)
            )
        flat = np.concatenate(parts) if parts else np.empty((0, len(wanted)), np.int64)
        return {column: np.ascontiguousarray(flat[:, i]) for i, column in enumerate(wanted)}

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
    )


class _Source(NamedTuple):
    name: str
    kind: str
    columns: tuple[str, ...]


IN_GRAPH = ("graphNodeId", "graphId")
SHAPE = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")
USE = ("registersPerThread", "staticSharedMemory", "dynamicSharedMemory")
SOURCES = (
    _Source(KERNEL, "kernel", ("demangledName", "shortName", *IN_GRAPH, *SHAPE, *USE)),
    _Source(MEMCPY, "memcpy", ("bytes", "copyKind", "srcKind", "dstKind", *IN_GRAPH)),
    _Source(MEMSET, "memset", ("bytes", "memKind", *IN_GRAPH)),
    _Source(GRAPH, "graph", ("graphId", "graphExecId")),
)
COMMON = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid")


def _gpu(db: _Db, frames: dict[str, pd.DataFrame | None]) -> pd.DataFrame:
    api = frames["api"]
    parts = [_activity(db, source) for source in SOURCES if db.has(source.name)]
    if not parts:
        return table("gpu")
    frame, _ = sort_rows(_concat(parts))
    if api is None:
        return frame
    launch = find_launches(_key(frame["pid"], frame["corr"], -1), _key(api["pid"], api["corr"], -2))
    return frame.assign(api_row=launch)


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
    raw = db.integers(source.name, COMMON + source.columns)
    rows = len(raw["start"])
    node, graph = (raw.get(key, np.full(rows, -1)) for key in IN_GRAPH)
    return table(
        "gpu",
        start=raw["start"],
        end=np.maximum(raw["end"], raw["start"]),
        device=raw["deviceId"],
        stream=raw["streamId"],
        corr=raw["correlationId"],
        pid=(raw["globalPid"] >> 24) & THREAD,
        kind=pd.Categorical.from_codes(np.zeros(rows, np.int8), categories=[source.kind]),
        graph_node=np.where(node > 0, node, -1),
        graph_id=np.where(graph > 0, graph, -1),
        **_DETAILS[source.kind](db, raw),
    )


def _kernel(db: _Db, raw: dict[str, np.ndarray]) -> dict[str, object]:
    name = np.where(raw["demangledName"] >= 0, raw["demangledName"], raw["shortName"])
    return {
        "name": db.strings(name),
        "grid": _shape(raw, "grid"),
        "block": _shape(raw, "block"),
        "regs": raw["registersPerThread"],
        "smem": np.maximum(raw["staticSharedMemory"], 0) + np.maximum(raw["dynamicSharedMemory"], 0),
    }


def _shape(raw: dict[str, np.ndarray], which: str) -> pd.Categorical:
    # 32, 16 and 16 bits hold CUDA's largest grid; the sum is exact below that and only labels the row.
    x, y, z = (raw[which + axis].astype(np.uint64) for axis in "XYZ")
    unique, codes = np.unique(x << np.uint64(32) | y << np.uint64(16) | z, return_inverse=True)
    return labelled([f"{int(u) >> 32},{int(u) >> 16 & 0xFFFF},{int(u) & 0xFFFF}" for u in unique], codes)


def _memcpy(db: _Db, raw: dict[str, np.ndarray]) -> dict[str, object]:
    kind = _coded(COPY_KIND, raw["copyKind"])
    return {
        "name": kind.rename_categories([f"Memcpy {c}".strip() for c in kind.categories]),
        "bytes": raw["bytes"],
        "copy_kind": kind,
        "src_mem": _coded(MEMORY, raw["srcKind"]),
        "dst_mem": _coded(MEMORY, raw["dstKind"]),
    }


def _memset(db: _Db, raw: dict[str, np.ndarray]) -> dict[str, object]:
    name = pd.Categorical.from_codes(np.zeros(len(raw["start"]), np.int8), categories=["Memset"])
    return {"name": name, "bytes": raw["bytes"], "dst_mem": _coded(MEMORY, raw["memKind"])}


def _whole_graph(db: _Db, raw: dict[str, np.ndarray]) -> dict[str, object]:
    unique, codes = np.unique(raw["graphExecId"], return_inverse=True)
    return {"name": labelled([f"CUDA graph {i} (opaque)" for i in unique], codes)}


_DETAILS = {"kernel": _kernel, "memcpy": _memcpy, "memset": _memset, "graph": _whole_graph}


def _threads(global_tid: np.ndarray) -> dict[str, np.ndarray]:
    return {"pid": (global_tid >> 24) & THREAD, "tid": global_tid & THREAD}


def _spans(raw: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {"start": raw["start"], "end": np.maximum(raw["end"], raw["start"])}


def _api(db: _Db) -> pd.DataFrame:
    raw = db.integers(RUNTIME, ("start", "end", "globalTid", "correlationId", "nameId", "returnValue"))
    names = db.strings(raw["nameId"], bare_name)
    frame = table(
        "api",
        **_spans(raw),
        **_threads(raw["globalTid"]),
        name=names,
        corr=raw["correlationId"],
        sync_kind=sync_kinds(names),
        ret=raw["returnValue"],
    )
    return sort_rows(frame)[0]


def _nvtx(db: _Db) -> pd.DataFrame:
    """Closed push/pop and start/end ranges; a range still open when recording stopped has no end and is left out."""
    where = f"WHERE eventType IN {RANGES} AND end IS NOT NULL"
    raw = db.integers("NVTX_EVENTS", ("start", "end", "globalTid", "textId"), where)
    names = db.strings(raw["textId"])
    if "text" in db.columns["NVTX_EVENTS"]:
        text = np.array([row[0] for row in db.rows(f"SELECT text FROM NVTX_EVENTS {where}")] or [None], object)[
            : len(raw["start"])
        ]
        names = pd.Categorical(np.where(pd.notna(text), text, np.asarray(names, object)))
    kind = pd.Categorical.from_codes(np.zeros(len(names), np.int8), categories=["nvtx"])
    frame, _ = sort_rows(table("host", **_spans(raw), **_threads(raw["globalTid"]), name=names, kind=kind))
    return nest(frame)


def _overhead(db: _Db) -> pd.DataFrame:
    for name in ("PROFILER_OVERHEAD", "CUPTI_ACTIVITY_KIND_OVERHEAD"):
        if db.has(name):
            raw = db.integers(name, ("start", "end", "globalTid", "nameId"))
            return sort_rows(
                table("overhead", **_spans(raw), **_threads(raw["globalTid"]), name=db.strings(raw["nameId"]))
            )[0]
    return table("overhead")


def _sync(db: _Db, frames: dict[str, pd.DataFrame | None]) -> pd.DataFrame:
    raw = db.integers(SYNC, ("start", "end", "syncType", "streamId", "eventId", "correlationId", "globalPid"))
    api = frames["api"]
    call = np.full(len(raw["start"]), -1)
    if api is not None:
        call = find_launches(
            _key(raw["globalPid"] >> 24 & THREAD, raw["correlationId"], -1), _key(api["pid"], api["corr"], -2)
        )
    kind = record_kinds(_coded(SYNC_KIND, raw["syncType"]), api, call)
    return sort_rows(
        table("sync", **_spans(raw), kind=kind, stream=raw["streamId"], event=raw["eventId"], corr=raw["correlationId"])
    )[0]


def _capture(db: _Db) -> pd.DataFrame:
    raw = db.integers(
        "CUDA_GRAPH_NODE_EVENTS", ("start", "globalTid", "graphNodeId", "originalGraphNodeId"), "ORDER BY start"
    )
    return table(
        "capture",
        node=raw["graphNodeId"],
        original=raw["originalGraphNodeId"],
        time=raw["start"],
        **_threads(raw["globalTid"]),
    )


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
    """CUDA ordinal -> GPU name; the ordinal is the program's own (CUDA_VISIBLE_DEVICES)."""
    if not {"id", "name"} <= db.columns.get("TARGET_INFO_GPU", set()):
        return {}
    names = {int(i): str(n) for i, n in db.rows("SELECT id, name FROM TARGET_INFO_GPU") if n}
    if {"gpuId", "cudaId"} <= db.columns.get("TARGET_INFO_CUDA_DEVICE", set()):
        pairs = db.rows("SELECT cudaId, gpuId FROM TARGET_INFO_CUDA_DEVICE")
        return {int(cuda): names[gpu] for cuda, gpu in pairs if gpu in names}
    return names


def _lock(db: _Db, mode: str) -> dict[str, object]:
    lock: dict[str, object] = {"cuda_graph_trace": mode} if mode else {}
    for name in ("META_DATA_EXPORT", "EXPORT_META_DATA"):
        if name in db.columns:
            meta = dict(db.rows(f"SELECT name, value FROM {name}"))
            lock |= {"nsys": meta.get("EXPORT_PRODUCT_VERSION"), "schema": meta.get("EXPORT_SCHEMA_VERSION")}
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

"""Nsight Systems .sqlite (every exported schema) and .nsys-rep -> Trace. Opens the file read-only; sorts for itself."""

import glob
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from ling_prof.calls import bare_name, record_kinds, sync_kinds
from ling_prof.errors import Missing, TraceError
from ling_prof.load.database import Database, database, labelled
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
    try:
        with tempfile.NamedTemporaryFile(suffix=".sqlite") as plain:
            for piece in pieces(path):
                plain.write(piece)
            plain.flush()
            return _read(path, Path(plain.name), progress)
    except OSError as error:
        remedy = f"free space in {tempfile.gettempdir()} or set TMPDIR, or gunzip the file"
        raise TraceError(path, f"it cannot be unpacked ({error.strerror})", remedy) from None


def _coded(table_of: dict[int, str], values: np.ndarray) -> pd.Categorical:
    unique, codes = np.unique(values, return_inverse=True)
    return labelled([table_of.get(int(v), "") for v in unique], codes)


def _read(path: Path, file: Path, progress: Progress) -> Trace:
    with database(path, file) as db:
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


def _build(path: Path, db: Database, progress: Progress) -> Trace:
    mode = _graph_mode(db)
    frames: dict[str, pd.DataFrame | None] = {}
    for i, (name, (source, make)) in enumerate(TABLES.items()):
        frames[name] = make(db, frames) if source is None or db.has(source) else None
        progress((i + 1) / len(TABLES))
    early = 0
    if frames["gpu"] is not None:
        frames["gpu"], early = without_corrupt(frames["gpu"], frames["api"])
    missing = _missing(db, mode)
    timed = [f for key, f in frames.items() if f is not None and key != "capture" and len(f)]
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
        notes=_notes(db, early),
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


def _gpu(db: Database, frames: dict[str, pd.DataFrame | None]) -> pd.DataFrame:
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


def _activity(db: Database, source: _Source) -> pd.DataFrame:
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


def _kernel(db: Database, raw: dict[str, np.ndarray]) -> dict[str, object]:
    shapes = {key: _shape(raw.pop(key)) for key in ("grid", "block")}
    return {"name": db.strings(raw.pop("name")), "regs": raw.pop("regs"), "smem": raw.pop("smem"), **shapes}


def _shape(packed: np.ndarray) -> pd.Categorical:
    unique, codes = np.unique(packed, return_inverse=True)
    return labelled(
        ["" if u < 0 else f"{int(u) >> 32},{int(u) >> 16 & 0xFFFF},{int(u) & 0xFFFF}" for u in unique], codes
    )


def _memcpy(db: Database, raw: dict[str, np.ndarray]) -> dict[str, object]:
    kind = _coded(COPY_KIND, raw["copy"])
    return {
        "name": kind.rename_categories([f"Memcpy {c}".strip() for c in kind.categories]),
        "bytes": raw["bytes"],
        "copy_kind": kind,
        "src_mem": _coded(MEMORY, raw["src"]),
        "dst_mem": _coded(MEMORY, raw["dst"]),
    }


def _memset(db: Database, raw: dict[str, np.ndarray]) -> dict[str, object]:
    name = pd.Categorical.from_codes(np.zeros(len(raw["start"]), np.int8), categories=["Memset"])
    return {"name": name, "bytes": raw["bytes"], "dst_mem": _coded(MEMORY, raw["dst"])}


def _whole_graph(db: Database, raw: dict[str, np.ndarray]) -> dict[str, object]:
    unique, codes = np.unique(raw["exec"], return_inverse=True)
    return {"name": labelled([f"CUDA graph {i} (opaque)" for i in unique], codes)}


_DETAILS = {"kernel": _kernel, "memcpy": _memcpy, "memset": _memset, "graph": _whole_graph}


def _threads(global_tid: np.ndarray) -> dict[str, np.ndarray]:
    return {"pid": (global_tid >> 24) & THREAD, "tid": global_tid & THREAD}


def _spans(raw: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {"start": raw["start"], "end": raw["end"]}


def _api(db: Database) -> pd.DataFrame:
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


def _nvtx(db: Database) -> pd.DataFrame:
    """Closed push/pop and start/end ranges; a range still open when recording stopped has no end and is left out."""
    where = f"WHERE eventType IN {RANGES} AND end IS NOT NULL" if "eventType" in db.columns["NVTX_EVENTS"] else ""
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


def _overhead(db: Database) -> pd.DataFrame:
    for name in ("PROFILER_OVERHEAD", "CUPTI_ACTIVITY_KIND_OVERHEAD"):
        if db.has(name):
            raw = db.integers(name, {**THREADED, "name": "nameId"})
            return sort_rows(
                table("overhead", **_spans(raw), **_threads(raw.pop("gtid")), name=db.strings(raw["name"]))
            )[0]
    return table("overhead")


def _sync(db: Database, frames: dict[str, pd.DataFrame | None]) -> pd.DataFrame:
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


def _capture(db: Database) -> pd.DataFrame:
    wanted = {"time": "start", "gtid": "globalTid", "node": "graphNodeId", "original": "originalGraphNodeId"}
    raw = db.integers("CUDA_GRAPH_NODE_EVENTS", wanted, "ORDER BY start")
    return table("capture", **_threads(raw.pop("gtid")), **raw)


def _graph_mode(db: Database) -> str:
    """'node', 'graph', or '' where the file does not say."""
    if "META_DATA_CAPTURE" not in db.columns:
        return ""
    rows = db.rows("SELECT value FROM META_DATA_CAPTURE WHERE name LIKE '%CUDA_GRAPH_TRACE_OPTIONS:MODE'")
    return str(rows[0][0]).lower() if rows else ""


def _epoch(db: Database) -> int:
    if "utcEpochNs" not in db.columns.get("TARGET_INFO_SESSION_START_TIME", ()):
        return 0
    rows = db.rows("SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME")
    return int(rows[0][0]) if rows and rows[0][0] else 0


def _devices(db: Database) -> dict[int, str]:
    """Device number, as in gpu.device -> GPU name."""
    if not {"id", "name"} <= db.columns.get("TARGET_INFO_GPU", set()):
        return {}
    names = {int(i): str(n) for i, n in db.rows("SELECT id, name FROM TARGET_INFO_GPU") if n}
    if db.ordinals_clash or not db.gpu_of:
        return names
    return {cuda: names[gpu] for (_, cuda), gpu in db.gpu_of.items() if gpu in names}


def _lock(db: Database, mode: str) -> dict[str, object]:
    lock: dict[str, object] = {"cuda_graph_trace": mode, "schema": db.schema, "nsys": db.meta("EXPORT_PRODUCT_VERSION")}
    if "TARGET_INFO_SYSTEM_ENV" in db.columns:
        rows = db.rows("SELECT value FROM TARGET_INFO_SYSTEM_ENV WHERE name = 'CudaDriverVersion'")
        lock["cuda_driver_version"] = rows[0][0] if rows else None
    return {key: value for key, value in lock.items() if value}


def _notes(db: Database, early: int) -> tuple[str, ...]:
    met = {
        early_note(early): early,
        f"{db.untimed:,} records without a valid time are left out": db.untimed,
        "the file has no StringIds: names are unknown": "StringIds" not in db.columns,
    }
    return tuple(note for note, count in met.items() if count)


def _missing(db: Database, mode: str) -> dict[str, Missing]:
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


TABLES: dict[str, tuple[str | None, Callable[[Database, dict], pd.DataFrame]]] = {
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

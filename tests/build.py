"""Hand-made traces for tests: a few events in plain numbers, written the way the profilers write them.

Kineto times are microseconds, as numbers or as text that is written unchanged ("12.345"). Nsight times are nanoseconds.

    path = kineto(tmp_path, [*launch("gemm", 5, 10, corr=1), python("model.py(3): forward", 0, 20)])
    path = nsys(tmp_path, KERNEL=[{"start": 100, "end": 200, "corr": 1, "name": "gemm"}], META_DATA_EXPORT={"a": "b"})
"""

import json
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

Time = int | float | str


def _span(cat: str, name: str, ts: Time, dur: Time, pid: object, tid: object, **args: object) -> dict:
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}


def kernel(name: str, ts: Time, dur: Time, corr: int = 0, stream: int = 7, device: int = 0, **args: object) -> dict:
    where = {"device": device, "stream": stream, "correlation": corr}
    return _span("kernel", name, ts, dur, device, stream, **where | args)


def memcpy(kind: str, ts: Time, dur: Time, corr: int = 0, stream: int = 7, device: int = 0, **args: object) -> dict:
    """`kind` as Kineto writes it: "DtoH (Device -> Pageable)"."""
    return kernel(f"Memcpy {kind}", ts, dur, corr, stream, device, **args) | {"cat": "gpu_memcpy"}


def memset(ts: Time, dur: Time, corr: int = 0, stream: int = 7, device: int = 0, **args: object) -> dict:
    return kernel("Memset (Device)", ts, dur, corr, stream, device, **args) | {"cat": "gpu_memset"}


def runtime(name: str, ts: Time, dur: Time, corr: int = 0, tid: int = 1, pid: int = 1, **args: object) -> dict:
    return _span("cuda_runtime", name, ts, dur, pid, tid, **{"correlation": corr} | args)


def cpu_op(name: str, ts: Time, dur: Time, tid: int = 1, pid: int = 1, **args: object) -> dict:
    return _span("cpu_op", name, ts, dur, pid, tid, **args)


def python(name: str, ts: Time, dur: Time, tid: int = 1, pid: int = 1, **args: object) -> dict:
    return _span("python_function", name, ts, dur, pid, tid, **args)


def annotation(name: str, ts: Time, dur: Time, tid: int = 1, pid: int = 1, **args: object) -> dict:
    return _span("user_annotation", name, ts, dur, pid, tid, **args)


def overhead(name: str, ts: Time, dur: Time, **args: object) -> dict:
    return _span("overhead", name, ts, dur, -1, 0, **args)


def sync(name: str, ts: Time, dur: Time, corr: int = 0, stream: int = 7, device: int = 0, **args: object) -> dict:
    """`name`: "Stream Sync", "Event Sync", "Context Sync" or "Stream Wait Event"."""
    return kernel(name, ts, dur, corr, stream, device, **args) | {"cat": "cuda_sync"}


def launch(
    name: str, ts: Time, dur: Time, corr: int, call: Time = 0, call_dur: Time = 1, tid: int = 1, pid: int = 1, **args
) -> list[dict]:
    """A kernel and the cudaLaunchKernel at `call` that launched it."""
    return [runtime("cudaLaunchKernel", call, call_dur, corr, tid, pid), kernel(name, ts, dur, corr, **args)]


def graph(nodes: Iterable[tuple[str, Time, Time]], corr: int, call: Time = 0, call_dur: Time = 1, **args) -> list[dict]:
    """Kernels (name, ts, dur) that share the correlation of one cudaGraphLaunch at `call`."""
    return [runtime("cudaGraphLaunch", call, call_dur, corr), *(kernel(*node, corr, **args) for node in nodes)]


def text(event: dict | str) -> str:
    """An event as JSON; `ts` and `dur` unchanged, an event given as text unchanged."""
    if isinstance(event, str):
        return event
    fields = (f'"{k}": {v if k in ("ts", "dur") else json.dumps(v, ensure_ascii=False)}' for k, v in event.items())
    return "{" + ", ".join(fields) + "}"


def kineto(tmp_path: Path, events: Iterable[dict | str], name: str = "trace.json", **top: object) -> Path:
    """Writes a Kineto file; `top` are further top-level keys. A lone surrogate "\\udcff" becomes the raw byte 0xff."""
    head = "".join(f"{json.dumps(k)}: {json.dumps(v)},\n" for k, v in ({"schemaVersion": 1} | top).items())
    body = ",\n".join(map(text, events))
    path = tmp_path / name
    path.write_bytes(f'{{{head}"traceEvents": [{body}],\n"traceName": "t.json"}}'.encode("utf-8", "surrogateescape"))
    return path


VM = 1 << 48
CUPTI = ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE", "SYNCHRONIZATION", "RUNTIME")
TABLES = {short: f"CUPTI_ACTIVITY_KIND_{short}" for short in CUPTI}
TABLES |= {"NVTX": "NVTX_EVENTS", "OVERHEAD": "PROFILER_OVERHEAD", "NODES": "CUDA_GRAPH_NODE_EVENTS"}
ON_GPU = {"device": 0, "stream": 7, "corr": 0, "pid": 1}
ON_HOST = {"pid": 1, "tid": 1}
DEFAULTS: dict[str, dict[str, object]] = {
    **dict.fromkeys(CUPTI, ON_GPU),
    "RUNTIME": ON_HOST | {"corr": 0},
    "NVTX": ON_HOST | {"eventType": 59},
    "OVERHEAD": ON_HOST,
    "NODES": ON_HOST | {"originalGraphNodeId": None},
}
COLUMNS = {"device": "deviceId", "stream": "streamId", "corr": "correlationId"}
NAMES = {"KERNEL": "demangledName", "NVTX": "textId"}
INTERNED = ("demangledName", "shortName", "nameId", "textId")


def nsys(tmp_path: Path, name: str = "trace.sqlite", **tables: list[dict] | dict[str, str]) -> Path:
    """Writes an Nsight Systems .sqlite with just the tables given, and StringIds.

    A table is a list of rows, or a dict for the name-value tables. Short table names are those of TABLES; in rows
    device, stream, corr, pid, tid and name stand for the real columns, and strings are put into StringIds. A column is
    made for every key some row has; its type comes from its values.
    """
    strings: dict[str, int] = {}
    path = tmp_path / name
    with closing(sqlite3.connect(path)) as db:
        for short, rows in tables.items():
            pairs = [{"name": k, "value": v} for k, v in rows.items()] if isinstance(rows, dict) else None
            full = pairs or [_row(short, row, strings) for row in rows if isinstance(row, dict)]
            _insert(db, TABLES.get(short, short), full)
        _insert(db, "StringIds", [{"id": i, "value": s} for s, i in strings.items()] or [{"id": 0, "value": ""}])
        db.commit()
    return path


def _row(table: str, given: dict, strings: dict[str, int]) -> dict[str, object]:
    row = dict(given) if table not in DEFAULTS else DEFAULTS[table] | given
    out: dict[str, object] = {}
    if table in DEFAULTS and "pid" in row:
        pid, tid = row.pop("pid"), row.pop("tid", 0)
        out["globalPid" if DEFAULTS[table] is ON_GPU else "globalTid"] = VM | int(pid) << 24 | int(tid)
    for key, value in row.items():
        column = COLUMNS.get(key, key)
        if key == "name" and table in DEFAULTS:
            column = NAMES.get(table, "nameId")
        interned = column in INTERNED and isinstance(value, str)
        out[column] = strings.setdefault(value, len(strings) + 1) if interned else value
    return out


def _insert(db: sqlite3.Connection, table: str, rows: list[dict]) -> None:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    kinds = {c: "TEXT" if any(isinstance(row.get(c), str) for row in rows) else "INTEGER" for c in columns}
    db.execute(f'CREATE TABLE "{table}" ({", ".join(f"{c} {kinds[c]}" for c in columns) or "start INTEGER"})')
    for row in rows:
        marks = ", ".join("?" * len(row))
        db.execute(f'INSERT INTO "{table}" ({", ".join(row)}) VALUES ({marks})', list(row.values()))

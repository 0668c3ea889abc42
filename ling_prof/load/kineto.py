"""torch-profiler / Kineto JSON -> Trace."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from decimal import Decimal
from operator import attrgetter
from pathlib import Path

import numpy as np
import pandas as pd

from ling_prof.calls import bare_name, record_kinds, sync_kinds
from ling_prof.errors import Missing, TraceError
from ling_prof.load.decimals import UNIT, nanoseconds
from ling_prof.load.events import Args, Event, Reading, arguments, batches, integer
from ling_prof.trace import Trace, early_note, find_launches, nest, sort_rows, table, without_corrupt

GPU = {"kernel": "kernel", "gpu_memcpy": "memcpy", "gpu_memset": "memset", "memcpy": "memcpy", "memset": "memset"}
API = {"cuda_runtime", "cuda_driver", "runtime", "hip_runtime", "hip_driver", "musa_runtime", "xpu_runtime"}
HOST = {"cpu_op": "op", "operator": "op", "python_function": "python", "user_annotation": "annotation"}
TABLE = {**dict.fromkeys(GPU, "gpu"), **dict.fromkeys(API, "api"), **dict.fromkeys(HOST, "host")}
TABLE |= {"overhead": "overhead", "cuda_sync": "sync"}
SYNC = {"Event Sync": "event", "Stream Wait Event": "stream_wait", "Stream Sync": "stream", "Context Sync": "device"}
PID_STRIDE = 10_000_000  # above any real pid
COPY = re.compile(r"(HtoD|DtoH|DtoD|PtoP|HtoH)(?: \((\w+) -> (\w+)\))?|Copy(Host|Device)To(Host|Device)", re.I)


def read(path: Path, partial: bool = False, progress: Callable[[float], None] = lambda _: None) -> Trace:
    """Reads a Kineto trace (.json, .json.gz, .zip). `partial` accepts a file that was cut off inside its events.

    Raises TraceError when the content is not such a trace.
    """
    reading = Reading(path, partial, progress)
    columns = _Columns()
    for events in batches(reading):
        columns.add(events)
    if not columns.events:
        raise TraceError(
            path, "a traceEvents array without any event", "record at least one step between profiler start and stop"
        )
    return _build(reading, columns)


class _Codes(dict):
    """value -> code, given out in order of first sight."""

    def __missing__(self, value: object) -> int:
        self[value] = code = len(self)
        return code


class _Columns:
    """Per table, lists of numpy arrays that grow batch by batch; names become codes at once."""

    def __init__(self) -> None:
        self.parts: dict[str, dict[str, list]] = defaultdict(lambda: defaultdict(list))
        self.names: dict[str, _Codes] = defaultdict(_Codes)
        self.open: dict[tuple, list[Event]] = defaultdict(list)
        self.events = self.untimed = 0

    def add(self, events: list[Event]) -> None:
        self.events += len(events)
        by_cat: dict[str, list[Event]] = defaultdict(list)
        for event in events:
            if event.ph == "X":
                by_cat[event.cat].append(event)
            elif event.ph == "B" or event.ph == "E":
                self._pair(event, by_cat)
        for cat, found in by_cat.items():
            if name := TABLE.get(cat.lower()):
                self._append(name, cat.lower(), found)

    def _pair(self, event: Event, by_cat: dict[str, list[Event]]) -> None:
        stack = self.open[event.pid, event.tid]
        if event.ph == "B":
            stack.append(event)
        elif stack:
            begun = stack.pop()
            start, end = (int(nanoseconds([e.ts])[0][0]) for e in (begun, event))
            begun.dur = str(Decimal(end - start) / UNIT).encode()  # type: ignore[assignment]
            by_cat[begun.cat].append(begun)

    def _append(self, name: str, cat: str, events: list[Event]) -> None:
        start, timed = nanoseconds(list(map(attrgetter("ts"), events)))
        length, measured = nanoseconds(list(map(attrgetter("dur"), events)))
        keep = timed & measured & (length >= 0)
        if name == "gpu":
            keep &= (start != 0) | (length != 0)  # the profiler's mark for a record it lost
        if not keep.all():
            self.untimed += int((~keep).sum())
            events = [e for e, k in zip(events, keep, strict=True) if k]
            start, length = start[keep], length[keep]
        if not events:
            return
        part = self.parts[name]
        part["start"].append(start)
        part["end"].append(start + length)
        part["name"].append(self._codes(name, map(attrgetter("name"), events)))
        part["cat"].append(np.full(len(events), self.names["cat"][cat], np.int32))
        part["pid"].append(self._codes("pid", map(attrgetter("pid"), events)))
        part["tid"].append(self._codes("tid", map(attrgetter("tid"), events)))
        if name in ("gpu", "api", "sync"):
            args = arguments(events)
            part["corr"].append(_ints(map(attrgetter("correlation"), args)))
        if name == "gpu":
            self._append_gpu(part, args)
        if name == "sync":
            part["stream"].append(_ints(a.stream if a.stream >= 0 else a.wait_on_stream for a in args))
            part["event"].append(_ints(a.event for a in args))

    def _append_gpu(self, part: dict[str, list], args: list[Args]) -> None:
        for key in ("device", "stream", "bytes", "graph_id", "graph_node"):
            part[key].append(_ints(map(attrgetter(key), args)))
        part["regs"].append(_ints(map(attrgetter("registers"), args)))
        part["smem"].append(_ints(map(attrgetter("shared_memory"), args)))
        for key in ("grid", "block"):
            part[key].append(self._codes("shape", map(bytes, map(attrgetter(key), args))))

    def _codes(self, space: str, values: Iterable) -> np.ndarray:
        values = list(values)
        if values.count(values[0]) == len(values):  # one thread, most often
            return np.full(len(values), self.names[space][values[0]], np.int32)
        return np.fromiter(map(self.names[space].__getitem__, values), np.int32, len(values))

    def take(self, name: str) -> dict[str, np.ndarray]:
        """The columns of one table, concatenated; releases the parts."""
        return {key: np.concatenate(arrays) for key, arrays in self.parts.pop(name).items()}

    def category(self, space: str, codes: np.ndarray, rename=lambda value: value) -> pd.Categorical:
        """Codes as a Categorical whose categories are `rename`d; equal results are merged."""
        if not len(codes):
            return pd.Categorical([], categories=[""])
        renamed, labels = pd.factorize(np.array([printable(rename(v)) for v in self.names[space]], object))
        return pd.Categorical.from_codes(renamed[codes], categories=pd.Index(labels, dtype=str))

    def numbers(self, space: str, codes: np.ndarray) -> np.ndarray:
        """pids and tids as integers: the number a label such as "[TP0] 483" ends in, moved on where labels share it."""
        found, taken = [], dict[int, str]()
        for label in map(str, self.names[space]):
            number = _number(label)
            while space == "pid" and taken.setdefault(number, label) != label:
                number += PID_STRIDE
            found.append(number)
        return np.array(found, np.int64)[codes]

    def groups(self, codes: np.ndarray) -> np.ndarray:
        """Which merged file a pid came from: the text before the last number ('' in an unmerged trace)."""
        labels = [re.sub(r"-?\d+$", "", str(v)).strip() for v in self.names["pid"]]
        return pd.factorize(np.array(labels, object))[0][codes]


def printable(text: str) -> str:
    """`text` with halves of surrogate pairs replaced: a name cut inside an emoji cannot be written anywhere."""
    return text.encode("utf-8", "replace").decode()


def _number(value: object) -> int:
    found = re.search(r"-?\d+$", str(value))
    return int(found[0]) % 2**63 if found and int(found[0]) >= 0 else -1


def _ints(values: Iterable[int]) -> np.ndarray:
    values = list(values)
    try:
        return np.array(values, np.int64)
    except OverflowError:
        return np.array([integer(v) for v in values], np.int64)


def _build(reading: Reading, columns: _Columns) -> Trace:
    frames, early = _frames(columns)
    _refuse_nothing(reading, columns, frames)
    origin = min(int(frame["start"].iloc[0]) for frame in frames.values() if len(frame))
    for frame in frames.values():
        frame[["start", "end"]] -= origin
    missing = _missing_tables()
    tables = {key: frames[key] if len(frames.get(key, ())) else missing[key] for key in missing}
    base = integer(reading.meta.get("baseTimeNanoseconds"))
    return Trace(
        path=str(reading.path),
        format="kineto",
        tables={**tables, "overhead": frames.get("overhead", table("overhead"))},
        epoch_ns=origin + max(base, 0),
        devices=_devices(reading.meta),
        lock=_lock(reading.meta),
        lacks=_lacks(frames),
        notes=_notes(reading, columns, early),
    )


def _frames(columns: _Columns) -> tuple[dict[str, pd.DataFrame], int]:
    """The tables the file holds rows of, and how many GPU records were too corrupt to keep."""
    present, early = set(columns.parts), 0
    frames: dict[str, pd.DataFrame] = {n: _named(columns, n) for n in ("host", "overhead") if n in present}
    api, groups = _api(columns) if "api" in present else (None, None)
    if api is not None:
        frames["api"] = api
    if "gpu" in present:
        frames["gpu"], early = without_corrupt(_gpu(columns, api, groups), api)
    if "sync" in present:
        frames["sync"] = _sync(columns, api)
    return frames, early


def _refuse_nothing(reading: Reading, columns: _Columns, frames: dict[str, pd.DataFrame]) -> None:
    """Raises TraceError for a file without a single row of the torch profiler."""
    if any(len(frame) for key, frame in frames.items() if key != "overhead"):
        return
    if columns.untimed:
        found = f"{columns.untimed} events, none with a time"
        raise TraceError(reading.path, found, "record again with torch.profiler")
    found = f"{columns.events} events, none of them of the torch profiler (kernel, cpu_op, cuda_runtime, ...)"
    raise TraceError(reading.path, found, "give a trace written by torch.profiler")


def _times(cols: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {"start": cols["start"], "end": cols["end"]}


def _named(columns: _Columns, name: str) -> pd.DataFrame:
    cols = columns.take(name)
    names = columns.category(name, cols["name"])
    extra = {"kind": _host_kinds(columns, cols["cat"], names)} if name == "host" else {}
    threads = {key: columns.numbers(key, cols[key]) for key in ("pid", "tid")}
    frame, _ = sort_rows(table(name, **_times(cols), **threads, name=names, **extra))
    return nest(frame) if name == "host" else frame


def _host_kinds(columns: _Columns, cats: np.ndarray, names: pd.Categorical) -> pd.Categorical:
    """Old traces write ProfilerStep#N as an operator: it is an annotation."""
    kinds = columns.category("cat", cats, lambda c: HOST.get(c, ""))
    step = np.array([n.startswith("ProfilerStep#") for n in names.categories])[names.codes]
    return pd.Categorical(np.where(step, "annotation", np.asarray(kinds, object))) if step.any() else kinds


def _api(columns: _Columns) -> tuple[pd.DataFrame, np.ndarray]:
    """The api table and, row by row, the merged file each call came from."""
    cols = columns.take("api")
    names = columns.category("api", cols["name"], bare_name)
    threads = {key: columns.numbers(key, cols[key]) for key in ("pid", "tid")}
    frame = table("api", **_times(cols), **threads, name=names, corr=cols["corr"], sync_kind=sync_kinds(names))
    frame, order = sort_rows(frame)
    return frame, columns.groups(cols["pid"])[order]


def _gpu(columns: _Columns, api: pd.DataFrame | None, groups: np.ndarray | None) -> pd.DataFrame:
    cols = columns.take("gpu")
    names = columns.category("gpu", cols["name"])
    copies = [_copy(name) for name in names.categories]
    device = np.where(cols["device"] >= 0, cols["device"], columns.numbers("pid", cols["pid"]))
    frame = table(
        "gpu",
        **_times(cols),
        name=names,
        kind=columns.category("cat", cols["cat"], lambda c: GPU.get(c, "")),
        device=device,
        stream=np.where(cols["stream"] >= 0, cols["stream"], columns.numbers("tid", cols["tid"])),
        **{key: cols[key] for key in ("corr", "bytes", "regs", "smem")},
        **{key: np.where(cols[key] > 0, cols[key], -1) for key in ("graph_id", "graph_node")},
        **{key: columns.category("shape", cols[key], _shape) for key in ("grid", "block")},
        **{
            key: pd.Categorical(np.array([c[i] for c in copies], object)[names.codes])
            for i, key in enumerate(("copy_kind", "src_mem", "dst_mem"))
        },
    )
    frame, order = sort_rows(frame)
    if api is None or groups is None:
        return frame
    return _link(frame, columns.groups(cols["pid"])[order], api, groups)


def _link(gpu: pd.DataFrame, gpu_group: np.ndarray, api: pd.DataFrame, api_group: np.ndarray) -> pd.DataFrame:
    """Fills gpu.api_row and gpu.pid. Groups of a merged file are told apart only when both sides carry a label."""
    same = set(np.unique(gpu_group)) <= set(np.unique(api_group))
    # Kineto correlation ids are 32-bit; 64-bit ones (ROCm) come in unmerged files, where the group is 0.
    gpu_key = _absent(gpu["corr"], -1) + (gpu_group.astype(np.int64) << 40) * same
    api_key = _absent(api["corr"], -2) + (api_group.astype(np.int64) << 40) * same
    rows = find_launches(np.where(gpu["corr"] > 0, gpu_key, -1), np.where(api["corr"] > 0, api_key, -2))
    return gpu.assign(api_row=rows, pid=np.where(rows >= 0, api["pid"].to_numpy()[rows], -1))


def _copy(name: str) -> tuple[str, str, str]:
    found = COPY.search(name)
    if not found:
        return "", "", ""
    if found[4]:
        return f"{found[4][0]}to{found[5][0]}", "", ""
    kind = found[1][0].upper() + "to" + found[1][3].upper()
    return kind, (found[2] or "").lower(), (found[3] or "").lower()


def _shape(raw: bytes) -> str:
    return raw.decode("utf-8", "replace").strip("[] \n").replace(" ", "").replace("\n", "")


def _sync(columns: _Columns, api: pd.DataFrame | None) -> pd.DataFrame:
    cols = columns.take("sync")
    kinds = columns.category("sync", cols["name"], lambda n: SYNC.get(n, "event" if "Event" in n else "device"))
    call = (
        np.full(len(kinds), -1) if api is None else find_launches(_absent(cols["corr"], -1), _absent(api["corr"], -2))
    )
    kinds = record_kinds(kinds, api, call)
    return sort_rows(table("sync", **_times(cols), kind=kinds, **{k: cols[k] for k in ("stream", "event", "corr")}))[0]


def _absent(corr: np.ndarray | pd.Series, mark: int) -> np.ndarray:
    """Correlation ids with `mark` for those that link nothing (HIP writes 0)."""
    return np.where(np.asarray(corr) > 0, corr, mark)


def _missing_tables() -> dict[str, Missing]:
    cuda = "record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"
    return {
        "gpu": Missing(
            "GPU times", "no kernel, copy or memset was recorded", cuda + ", or check that the program used a GPU"
        ),
        "api": Missing("launches and blocking calls", "no CUDA or HIP call was recorded", cuda),
        "host": Missing("operators, Python frames and ranges", "no CPU activity was recorded", cuda),
        "sync": Missing(
            "synchronisation records",
            "cuda_sync events are off by default",
            "record with experimental_config=_ExperimentalConfig(enable_cuda_sync_events=True)",
        ),
        "capture": Missing(
            "which capture made a CUDA-graph node, by its number",
            "Kineto numbers no nodes; their layers are told by the order of the calls, if the capture is recorded too",
            "capture while recording, record with nsys --cuda-graph-trace=node, or trace once with graphs off",
        ),
    }


def _lacks(frames: dict[str, pd.DataFrame]) -> dict[str, Missing]:
    lacks = {}
    host, gpu = frames.get("host"), frames.get("gpu")
    if host is None or not (host["kind"] == "python").any():
        lacks["host.python"] = Missing("Python functions", "recorded without stacks", "record with with_stack=True")
    if gpu is None or not (gpu["graph_node"] >= 0).any():
        lacks["gpu.graph_node"] = Missing(
            "CUDA graph node ids",
            "this Kineto build writes none",
            "record with nsys --cuda-graph-trace=node or a newer torch",
        )
    return lacks


def _devices(meta: dict) -> dict[int, str]:
    rows = meta.get("deviceProperties")
    rows = [d for d in rows if isinstance(d, dict)] if isinstance(rows, list) else []
    return {d["id"]: str(d.get("name") or f"device {d['id']}") for d in rows if isinstance(d.get("id"), int)}


def _lock(meta: dict) -> dict[str, object]:
    wanted = (
        "cuda_driver_version",
        "cuda_runtime_version",
        "hip_runtime_version",
        "hip_driver_version",
        "cupti_version",
    )
    lock: dict[str, object] = {key: meta[key] for key in wanted if key in meta}
    info = meta.get("distributedInfo")
    if isinstance(info, dict):
        lock |= {key: info[key] for key in ("rank", "world_size", "backend") if info.get(key) is not None}
    return lock


def _notes(reading: Reading, columns: _Columns, early: int) -> tuple[str, ...]:
    met = {
        f"{reading.repaired:,} damaged events were repaired": reading.repaired,
        f"{reading.dropped:,} events could not be read and are left out": reading.dropped,
        f"{columns.untimed:,} events without a time or a valid duration are left out": columns.untimed,
        early_note(early): early,
        f"{reading.trailing:,} bytes after the events could not be read and are left out": reading.trailing,
        "the file ends inside its events: what comes after the cut is missing": reading.cut,
    }
    return tuple(note for note, count in met.items() if count)

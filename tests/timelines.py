"""Hand-made traces, built straight into tables: times in ns, one process, threads and streams by number."""

import numpy as np
import pandas as pd

from ling_prof.calls import sync_kinds
from ling_prof.errors import Missing
from ling_prof.trace import Trace, find_launches, nest, sort_rows, table

PID = 1


class Recording:
    """Collects rows, then makes a Trace."""

    def __init__(self) -> None:
        self.gpu: list[dict] = []
        self.api: list[dict] = []
        self.host: list[dict] = []
        self.overhead: list[dict] = []
        self.sync: list[dict] = []

    def call(self, name: str, start: int, end: int, corr: int = -1, tid: int = 1) -> "Recording":
        self.api.append({"name": name, "start": start, "end": end, "corr": corr, "tid": tid, "pid": PID})
        return self

    def op(
        self, name: str, start: int, end: int, corr: int = -1, stream: int = 7, kind: str = "kernel", **more: object
    ) -> "Recording":
        row = {
            "name": name,
            "start": start,
            "end": end,
            "corr": corr,
            "stream": stream,
            "kind": kind,
            "device": 0,
            "pid": PID,
        }
        self.gpu.append({**row, **more})
        return self

    def kernel(
        self, name: str, launched: tuple[int, int], ran: tuple[int, int], corr: int, stream: int = 7, tid: int = 1
    ) -> "Recording":
        return self.call("cudaLaunchKernel", *launched, corr=corr, tid=tid).op(name, *ran, corr=corr, stream=stream)

    def inside(self, kind: str, name: str, start: int, end: int, tid: int = 1) -> "Recording":
        self.host.append({"kind": kind, "name": name, "start": start, "end": end, "tid": tid, "pid": PID})
        return self

    def trace(self) -> Trace:
        api, _ = sort_rows(_table("api", self.api))
        api = api.assign(sync_kind=sync_kinds(api["name"].array))
        gpu, _ = sort_rows(_table("gpu", self.gpu))
        rows = find_launches(gpu["corr"].to_numpy(), np.where(api["corr"] > 0, api["corr"], -2))
        host = nest(sort_rows(_table("host", self.host))[0]) if self.host else Missing("host", "not made", "make it")
        sync = sort_rows(_table("sync", self.sync))[0] if self.sync else Missing("sync", "not made", "make it")
        absent = Missing("capture", "not made", "make it")
        tables = {
            "gpu": gpu.assign(api_row=rows),
            "api": api,
            "host": host,
            "overhead": _table("overhead", self.overhead),
        }
        return Trace("hand-made", "kineto", {**tables, "sync": sync, "capture": absent})


def _table(name: str, rows: list[dict]) -> pd.DataFrame:
    keys = dict.fromkeys(key for row in rows for key in row)
    return table(name, **{key: [row.get(key, -1) for row in rows] for key in keys})

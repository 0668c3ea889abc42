"""One reader over one file in a process of its own: `python candidates.py NAME FILE` prints its figures as JSON.

Imports happen before the clock starts. This file needs nothing beyond what the candidate itself imports, so that it
also runs in the environments of the other tools. Times in seconds, memory in bytes.
"""

import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

KERNEL = (
    "start, end, deviceId, streamId, correlationId, globalPid, demangledName, shortName, graphNodeId, "
    "gridX, gridY, gridZ, blockX, blockY, blockZ, registersPerThread, staticSharedMemory, dynamicSharedMemory"
)
RUNTIME = "start, end, globalTid, correlationId, nameId, returnValue"

# What a candidate returns once its imports are done: named stages, each given the file and the result of the one
# before, and a function that counts the kernels in the last result.
Stages = dict[str, Callable]


def ling_prof_load() -> tuple[Stages, Callable]:
    import ling_prof.load.kineto
    import ling_prof.load.nsys  # load imports its readers when called

    return {"load": lambda path, _: ling_prof.load.load(path)}, lambda trace: int((trace.gpu["kind"] == "kernel").sum())


def ling_prof_report() -> tuple[Stages, Callable]:
    from ling_prof.report import report

    stages, kernels = ling_prof_load()
    stages["report"] = lambda _, trace: (report(trace), trace)
    return stages, lambda both: kernels(both[1])


def hta() -> tuple[Stages, Callable]:
    """TraceAnalysis(trace_dir=...), the first line of its user guide: parses, links and aligns; no analysis runs."""
    from hta.trace_analysis import TraceAnalysis

    def kernels(analysis: TraceAnalysis) -> int:
        kind = analysis.t.symbol_table.get_sym_id_map()["kernel"]
        return int((analysis.t.get_trace(0)["cat"] == kind).sum())

    return {"load": lambda path, _: TraceAnalysis(trace_dir=str(path.parent))}, kernels


def read_sql() -> tuple[Stages, Callable]:
    """The columns ling_prof reads of the same three tables, ids left as ids."""
    return _sql(
        kernel=f"SELECT {KERNEL} FROM CUPTI_ACTIVITY_KIND_KERNEL",
        runtime=f"SELECT {RUNTIME} FROM CUPTI_ACTIVITY_KIND_RUNTIME",
        strings="SELECT id, value FROM StringIds",
    )


def read_sql_named() -> tuple[Stages, Callable]:
    """The same with the names joined in, which ling_prof's tables also hold."""
    kernel = ", ".join(f"k.{c}" for c in KERNEL.split(", ") if not c.endswith("Name"))
    runtime = ", ".join(f"r.{c}" for c in RUNTIME.split(", ") if c != "nameId")
    return _sql(
        kernel=f"SELECT {kernel}, s.value AS name FROM CUPTI_ACTIVITY_KIND_KERNEL k "
        "JOIN StringIds s ON s.id = k.demangledName",
        runtime=f"SELECT {runtime}, s.value AS name FROM CUPTI_ACTIVITY_KIND_RUNTIME r "
        "JOIN StringIds s ON s.id = r.nameId",
    )


def _sql(**queries: str) -> tuple[Stages, Callable]:
    import sqlite3

    import pandas as pd

    def load(path: Path, _: object) -> dict:
        with sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True) as db:
            return {name: pd.read_sql(query, db) for name, query in queries.items()}

    return {"load": load}, lambda frames: len(frames["kernel"])


CANDIDATES = {f.__name__: f for f in (ling_prof_load, ling_prof_report, hta, read_sql, read_sql_named)}


def peak_rss() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure(name: str, path: Path) -> dict:
    began = time.perf_counter()
    stages, kernels = CANDIDATES[name]()
    figures: dict = {"import_s": time.perf_counter() - began, "base_rss": peak_rss()}
    result = None
    for stage, run in stages.items():
        began, cpu = time.perf_counter(), time.process_time()
        result = run(path, result)
        figures[f"{stage}_s"] = time.perf_counter() - began
        figures[f"{stage}_cpu_s"] = time.process_time() - cpu
    return {**figures, "peak_rss": peak_rss(), "kernels": kernels(result)}


if __name__ == "__main__":
    print("\n" + json.dumps(measure(sys.argv[1], Path(sys.argv[2]))))

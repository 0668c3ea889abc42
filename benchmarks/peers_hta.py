"""What HTA says of a recording: `python peers_hta.py FILE ANNOTATION INSTANCE [QUESTION...]` prints {question: answer}.

Runs in the environment of HolisticTraceAnalysis or of traceinsight, which both import as hta. Every option is the
default, but that no figure is drawn. What stops an analysis is its answer: {"error": ...}. Times in us, as in HTA.
"""

import json
import logging
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)


def answer(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        said = str(error) or where.line
        return {"error": f"{type(error).__name__} in {Path(where.filename).name}: {said}"}


def main(path: str, annotation: str, instance: str, *questions: str) -> dict[str, Any]:
    from hta.trace_analysis import TraceAnalysis

    loaded = answer(lambda: TraceAnalysis(trace_files={0: path}, trace_dir=""))
    if isinstance(loaded, dict):
        return {"load": loaded}

    def temporal() -> dict[str, float]:
        row = loaded.get_temporal_breakdown(visualize=False).iloc[0]
        return {"idle": float(row["idle_time(us)"]), "span": float(row["kernel_time(us)"])}

    def idle() -> dict[str, float]:
        rows = loaded.get_idle_time_breakdown(visualize=False)[0]
        return {str(k): float(v) for k, v in rows.groupby("idle_category")["idle_time"].sum().items()}

    def launches() -> int:
        return len(loaded.get_cuda_kernel_launch_stats(visualize=False)[0])

    def critical() -> dict[str, float]:
        graph, ok = loaded.critical_path_analysis(rank=0, annotation=annotation, instance_id=int(instance))
        if not ok:
            raise RuntimeError("the critical path analysis did not succeed")
        path = graph.get_critical_path_breakdown()
        return {str(k): float(v) for k, v in path.groupby("bound_by")["duration"].sum().items() if v}

    asked = {"temporal": temporal, "idle": idle, "launches": launches, "critical": critical}
    return {name: answer(asked[name]) for name in questions or asked}


if __name__ == "__main__":
    print("\n" + json.dumps(main(*sys.argv[1:])))

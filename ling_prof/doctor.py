"""What a file holds, what it lacks, and the recording command that would add it."""

from typing import Any

from ling_prof.steps import WHOLE
from ling_prof.trace import SCHEMA, Trace
from ling_prof.view import Options, view


def examine(trace: Trace) -> dict[str, Any]:
    """{"holds": [{table, rows, detail}], "lacks": [{what, why, remedy}], "notes", "lock"}: plain data."""
    holds, lacks = [], []
    for name in SCHEMA:
        if trace.has(name):
            holds.append({"table": name, "rows": len(trace.table(name)), "detail": _detail(trace, name)})
        else:
            missing: Any = trace.tables[name]
            lacks.append({"what": missing.what, "why": missing.why, "remedy": missing.remedy})
    lacks += [{"what": m.what, "why": m.why, "remedy": m.remedy} for m in trace.lacks.values()]
    steps = _steps(trace) if trace.has("gpu") else {}
    if steps.get("source") == WHOLE:
        remedy = "mark steps with torch.profiler.record_function('decode_step_N') or NVTX"
        lacks.append({"what": "decode steps", "why": "no marker and no repetition", "remedy": remedy})
    return {
        "path": trace.path,
        "format": trace.format,
        "holds": holds,
        "steps": steps,
        "lacks": lacks,
        "notes": list(trace.notes),
        "lock": dict(trace.lock),
    }


def _detail(trace: Trace, name: str) -> str:
    frame = trace.table(name)
    if "kind" in frame:
        counts = frame["kind"].value_counts()
        return ", ".join(f"{n:,} {kind}" for kind, n in counts.items() if n)
    return f"{frame['name'].nunique()} names" if "name" in frame else ""


def _steps(trace: Trace) -> dict[str, Any]:
    found = view(trace, Options()).steps
    return {
        "source": found.source,
        "phases": {p: int(n) for p, n in found.table["phase"].value_counts(sort=False).items()},
    }

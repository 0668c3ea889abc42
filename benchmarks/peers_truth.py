"""What is true of a recording: from ling_prof, and where there is an oracle beside it, held against that.

Span and busy time are the union of what ran on the device, which the oracle (an independent script over the raw file)
also has; steps, classes and sites are ling_prof's own answer.
"""

import json
from pathlib import Path
from typing import Any

import pandas as pd

import ling_prof
from ling_prof import Trace, UserError
from ling_prof.intervals import total, union
from ling_prof.units import show_time

SMALLEST = 0.0005  # share of a step that is told


def truth(path: Path) -> dict[str, Any]:
    """Figures of the busiest device, times in ns; or {"error": the sentence} where there is nothing to say."""
    try:
        trace = ling_prof.load(path)
        found = ling_prof.report(trace)
    except UserError as error:
        return {"error": str(error).removeprefix(f"{path}: ")}
    summary = found["summary"][0]
    gpu = trace.gpu[trace.gpu["device"] == summary["device"]]
    span, busy = extent(gpu)
    return {
        "span": span,
        "busy": busy,
        "kernels": int((gpu["kind"] == "kernel").sum()),
        "devices": len(found["summary"]),
        "annotation": annotation(found, trace),
        **mean_step(summary),
        "sync": costliest(found["syncs"], summary),
        "oracle": oracle(path, summary["device"], extent(gpu[gpu["kind"] != "graph"])),
    }


def extent(gpu: pd.DataFrame) -> tuple[int, int]:
    """From the first start to the last end, and the union of all in between."""
    start, end = gpu["start"].to_numpy(), gpu["end"].to_numpy()
    return int(end.max() - start.min()), total(union(start, end))


def mean_step(summary: dict[str, Any]) -> dict[str, Any]:
    wall = summary["wall_ns"]["mean"]
    if not wall:
        return {"steps": "", "ledger": {}}
    whole = summary["source"].startswith("none found")
    rounds = f"{summary['rounds']} step" + "s" * (summary["rounds"] > 1)
    steps = "the whole recording" if whole else f"{rounds} of {show_time(wall)}"
    shares = {name: row["mean"] / wall for name, row in summary["ledger"].items()}
    return {"steps": steps, "ledger": {name: share for name, share in shares.items() if share >= SMALLEST}}


def costliest(syncs: list[dict], summary: dict[str, Any]) -> str:
    """The blocking call that caused most idle time in the steps, and where it was made."""
    mine = (s for s in syncs if s["device"] == summary["device"])
    row = max(mine, key=lambda s: s["focus_idle_ns"], default=None)
    if not row or not row["focus_idle_ns"]:
        return ""
    site = " < ".join(row["site"].split(" < ")[:2])
    return f"{show_time(row['focus_idle_ns'] / summary['rounds'])} a step by {row['api']}" + (site and f" at {site}")


def annotation(found: Any, trace: Trace) -> tuple[str, int]:
    """The range of a step in the middle, and which of that name it is; ("", 0) where no range marks steps."""
    steps = [s for s in found["steps"] if s["device"] == found["summary"][0]["device"]]
    at = next((i for i in range(len(steps) // 2, len(steps)) if not steps[i]["note"]), 0)
    name = steps[at]["name"] if steps else ""
    if not trace.has("host") or not (trace.host["name"] == name).any():
        return "", 0
    return name, sum(s["name"] == name for s in steps[:at])


def oracle(path: Path, device: int, found: tuple[int, int]) -> bool | None:
    """Whether the oracle, which leaves graphs traced whole out, has the same span and busy time; None: not in it."""
    file = next((p / "oracle.json" for p in path.parents if (p / "oracle.json").exists()), None)
    known = json.loads(file.read_text()).get(path.name, {}).get("devices", {}).get(str(device)) if file else None
    return known and found == tuple(round(known[key] * 1000) for key in ("span_us", "busy_us"))

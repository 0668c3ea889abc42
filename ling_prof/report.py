"""Report: what the analyses say of a trace, as plain data; to and from JSON (schema documented in docs/json.md)."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ling_prof.analyses import ANALYSES, question, run
from ling_prof.analyses.ledger import whole
from ling_prof.callable_module import make_callable
from ling_prof.errors import Missing, UserError
from ling_prof.roles import ROLES
from ling_prof.steps import NO_STEPS, WHOLE, lost_replays
from ling_prof.timeline import CLASSES, HOST_CLASSES, HOST_PARTS
from ling_prof.trace import Trace
from ling_prof.view import Options, View, views

SCHEMA = "ling-prof.report/1"
MOST_ROWS = 50
Progress = Callable[[float], None]


@dataclass(frozen=True)
class Report:
    """`data` is JSON-ready: numbers, strings, lists and dicts only; all times int ns unless the key says otherwise."""

    data: dict[str, Any]

    def __getitem__(self, key: str) -> Any:
        return self.data[key]

    def to_json(self, indent: int | None = None) -> str:
        return json.dumps(self.data, indent=indent, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> "Report":
        """Raises UserError when `text` is not a report of a schema this version reads."""
        try:
            data = json.loads(text)
        except ValueError as error:
            raise UserError(f"not a ling-prof report: {error}.") from None
        found = data.get("schema") if isinstance(data, dict) else None
        if found != SCHEMA:
            raise UserError(f"not a {SCHEMA} report (schema {found!r}); write it again with ling-prof report --json.")
        return cls(data)


def report(trace: Trace, options: Options = Options(), progress: Progress = lambda _: None) -> Report:
    """Runs every analysis on every device that worked, or the chosen one. Raises Missing without GPU activity."""
    seen = views(trace, options)
    total = len(seen) * len(ANALYSES)
    rows: dict[str, list[dict]] = {name: [] for name in ANALYSES}
    summaries, cannot = [], []
    for i, view in enumerate(seen):
        for j, name in enumerate(ANALYSES):
            found, reason = _rows(name, view)
            rows[name] += found
            cannot += reason
            progress((i * len(ANALYSES) + j + 1) / total)
        summaries.append(summary(view))
        cannot += _gaps_in_knowledge(view)
    data: dict[str, Any] = {
        "schema": SCHEMA,
        "trace": _trace(trace),
        "options": {**options.__dict__, "devices": [v.ops.device for v in seen]},
        "summary": summaries,
        "steps": [step(row) for row in rows.pop("ledger")],
        **rows,
        "cannot_say": list({json.dumps(c): c for c in cannot}.values()),
    }
    return Report(data)


def _trace(trace: Trace) -> dict[str, Any]:
    devices = [{"id": d, "name": trace.device_name(d)} for d in sorted({int(x) for x in trace.gpu["device"].unique()})]
    return {
        "path": trace.path,
        "format": trace.format,
        "devices": devices,
        "lock": dict(trace.lock),
        "epoch_ns": trace.epoch_ns,
        "notes": list(trace.notes),
    }


def _rows(name: str, view: View) -> tuple[list[dict], list[dict]]:
    try:
        frame = run(name, view)
    except Missing as missing:
        return [], [_cannot(question(name), missing)]
    if name != "ledger":
        frame = frame.head(MOST_ROWS).assign(device=view.ops.device)
    return plain(frame), []


def _cannot(asked: str, missing: Missing) -> dict[str, str]:
    return {"question": asked, "reason": f"{missing.what}: {missing.why}", "remedy": missing.remedy}


def _gaps_in_knowledge(view: View) -> list[dict[str, str]]:
    """What this trace cannot answer although every analysis ran."""
    trace, out = view.trace, []
    if view.steps.source == WHOLE:
        out.append(_cannot("Where does a decode step begin?", NO_STEPS))
    if view.steps.empty:
        why = f"{view.steps.empty} of the ranges that mark steps launched no GPU work"
        remedy = "check that recording covered them, or name other ranges with --steps REGEX"
        out.append(_cannot("What happened in every marked step?", Missing("those steps", why, remedy)))
    if lost := len(lost_replays(view.ops)):
        why = f"{lost} CUDA-graph launches left no GPU activity in the recording: what looks idle then may be busy"
        remedy = "record fewer steps at once, or start and stop recording between steps"
        out.append(_cannot("Was the device idle in under-recorded steps?", Missing("their idle time", why, remedy)))
    if view.ops.is_opaque.any():
        out.append(
            _cannot(
                "Which kernels run inside the CUDA graphs, and where are their gaps?", trace.lacks["gpu.graph_node"]
            )
        )
    if "host.python" in trace.lacks:
        out.append(_cannot("Which Python function made each call?", trace.lacks["host.python"]))
    unlinked = int((view.ops.launch < 0).sum())
    if unlinked:
        why = f"{unlinked:,} of {len(view.ops):,} ops have no recorded launch"
        out.append(
            _cannot(
                "Why did the gaps before them arise?",
                Missing("their cause", why, "start recording before the first step, with the CPU side on"),
            )
        )
    if trace.lock.get("world_size", 1) not in (1, None) or (view.ops.role == ROLES.index("all_reduce")).any():
        skew = Missing(
            "rank_skew",
            "one rank's trace does not show how late the others were",
            "give the traces of all ranks of the same steps",
        )
        out.append(_cannot("How much of each collective is waiting for a later rank?", skew))
    return out


def step(row: dict) -> dict[str, Any]:
    """One ledger row in the nested form of the JSON."""
    out = {key: row[key] for key in ("index", "phase", "name", "device", "round", "note", "kernels", "extra_kernels")}
    out |= {"start_ns": row["start"], "end_ns": row["end"], "wall_ns": row["wall"], "overlapped_ns": row["overlapped"]}
    out |= {"ledger": {c: row[c] for c in CLASSES}, "host_bound": {p: row[f"host_{p}"] for p in HOST_PARTS}}
    out["roles"] = {r: row[f"role_{r}"] for r in ROLES}
    if row["calibrated_busy"] >= 0:
        out["calibrated"] = {c: row[f"calibrated_{c}"] for c in CLASSES}
    return out


def summary(view: View) -> dict[str, Any]:
    """Mean, p50 and p99 per token round of the chosen steps. The means of the classes add up to the mean wall time."""
    ledger = run("ledger", view).loc[view.chosen.index]
    columns = ["wall", "overlapped", *CLASSES, *(f"host_{p}" for p in HOST_PARTS), *(f"role_{r}" for r in ROLES)]
    per_round = ledger[columns].groupby(view.rounds).sum()
    out: dict[str, Any] = {
        "device": view.ops.device,
        "focus": view.options.focus,
        "source": view.steps.source,
        "steps": {p: int(n) for p, n in view.steps.table["phase"].value_counts(sort=False).items()},
        "counted": len(view.chosen),
        "rounds": view.n_rounds,
        "left_out": [f"{n} step(s): {why}" for why, n in view.steps.table["note"].value_counts().items() if why],
        "wall_ns": _spread(per_round["wall"]),
        "tpot_ns": _spread(per_round["wall"] / view.options.accept_length),
        "overlapped_ns": _spread(per_round["overlapped"]),
    }
    for key, names, prefix in (("ledger", CLASSES, ""), ("host_bound", HOST_PARTS, "host_"), ("roles", ROLES, "role_")):
        out[key] = _spreads(per_round, names, prefix)
    out["kernels"] = float(ledger["kernels"].sum() / max(1, view.n_rounds))
    out["extra_kernels"] = float(ledger["extra_kernels"].sum() / max(1, view.n_rounds))
    return out | _ruler(view, ledger)


def _spread(values: pd.Series) -> dict[str, int]:
    if not len(values):
        return {"mean": 0, "p50": 0, "p99": 0}
    return {"mean": round(values.mean()), "p50": round(values.quantile(0.5)), "p99": round(values.quantile(0.99))}


def _spreads(per_round: pd.DataFrame, names: tuple[str, ...], prefix: str) -> dict[str, dict[str, int]]:
    if not len(per_round):
        return {name: _spread(per_round["wall"]) for name in names}
    exact = per_round[[prefix + name for name in names]].mean().to_numpy()
    means = whole(exact, round(exact.sum()))
    return {
        name: _spread(per_round[prefix + name]) | {"mean": int(mean)} for name, mean in zip(names, means, strict=True)
    }


def _ruler(view: View, ledger: pd.DataFrame) -> dict[str, Any]:
    """How the profiled step compares with the unprofiled one, in words and numbers."""
    tpot = view.options.unprofiled_tpot
    if tpot is None or view.options.focus != "decode":
        return {
            "ruler": "host-side idle is an upper bound: profiling slows the host. Give --unprofiled-tpot to calibrate."
        }
    target = round(tpot * view.options.accept_length)
    sums = ledger[[f"calibrated_{c}" for c in CLASSES]].groupby(view.rounds).sum()
    wall = ledger["wall"].groupby(view.rounds).sum().mean() if len(ledger) else 0
    gpu = (
        ledger[[c for c in CLASSES if c not in HOST_CLASSES]].sum(axis=1).groupby(view.rounds).sum().mean()
        if len(ledger)
        else 0
    )
    said = f"profiled step {wall / 1e6:.3f} ms, unprofiled {target / 1e6:.3f} ms: {wall / target:.2f} times as long"
    if gpu > target:
        alone = f"; the GPU classes alone ({gpu / 1e6:.3f} ms) exceed the unprofiled step and are scaled by"
        said += f"{alone} {target / gpu:.3f}"
    return {"ruler": said + ".", "calibrated": _spreads(sums.assign(wall=target), CLASSES, "calibrated_")}


def plain(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows as JSON-ready dicts."""
    return [{key: _plain(value) for key, value in row.items()} for row in frame.to_dict("records")]


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not np.isfinite(value) else value


make_callable(__name__, report)

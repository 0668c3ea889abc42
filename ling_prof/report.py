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
from ling_prof.steps import NO_STEPS, WHOLE, lost_launches
from ling_prof.timeline import CLASSES, HOST_CLASSES, HOST_PARTS
from ling_prof.trace import Trace
from ling_prof.view import Options, View, views
from ling_prof.whatif.predict import helps

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
    return report_of(views(trace, options), options, progress)


def report_of(seen: list[View], options: Options, progress: Progress = lambda _: None) -> Report:
    """As `report`, on views that are there already: what these have computed is not computed again."""
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
        "trace": _trace(seen[0].trace),
        "options": {**options.__dict__, "devices": [v.ops.device for v in seen]},
        "summary": summaries,
        "steps": [step(row) for row in rows.pop("ledger")],
        **rows,
        "helps": helps(seen[0]),
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
    checks = (_no_steps, _none_counts, _empty_steps, _lost_launches, _opaque_graphs, _no_stacks, _unlinked, _one_rank)
    return [_cannot(*found) for check in checks if (found := check(view))]


Gap = tuple[str, Missing] | None


def _no_steps(view: View) -> Gap:
    return ("Where does a decode step begin?", NO_STEPS) if view.steps.source == WHOLE else None


def _none_counts(view: View) -> Gap:
    if len(view.chosen):
        return None
    why = "; ".join(view.left_out) or f"the recording has no {view.options.focus} step"
    remedy = "record more steps, or choose others with --focus, --skip or --steps"
    return f"What does a {view.options.focus} step cost?", Missing("the mean step", why, remedy)


def _empty_steps(view: View) -> Gap:
    why = f"{view.steps.empty} of the ranges that mark steps launched no GPU work"
    remedy = "check that recording covered them, or name other ranges with --steps REGEX"
    missing = Missing("those steps", why, remedy)
    return ("What happened in every marked step?", missing) if view.steps.empty else None


def _lost_launches(view: View) -> Gap:
    lost = len(lost_launches(view.ops))
    why = f"{lost} launches of kernels or graphs left no GPU activity in the recording: what looks idle may be busy"
    remedy = "record fewer steps at once, or start and stop recording between steps"
    missing = Missing("their idle time", why, remedy)
    return ("Was the device idle in under-recorded steps?", missing) if lost else None


def _opaque_graphs(view: View) -> Gap:
    if not view.ops.is_opaque.any():
        return None
    return "Which kernels run inside the CUDA graphs, and where are their gaps?", view.trace.lacks["gpu.graph_node"]


def _no_stacks(view: View) -> Gap:
    missing = view.trace.lacks.get("host.python")
    return ("Which Python function made each call?", missing) if missing else None


def _unlinked(view: View) -> Gap:
    count = int((view.ops.launch < 0).sum())
    why = f"{count:,} of {len(view.ops):,} ops have no recorded launch"
    missing = Missing("their cause", why, "start recording before the first step, with the CPU side on")
    return ("Why did the gaps before them arise?", missing) if count else None


def _one_rank(view: View) -> Gap:
    collectives = (view.ops.role == ROLES.index("all_reduce")).any()
    if view.trace.lock.get("world_size", 1) in (1, None) and not collectives:
        return None
    why, remedy = "one rank's trace does not show how late the others were", "give the traces of all ranks"
    return "How much of each collective is waiting for a later rank?", Missing("rank_skew", why, remedy)


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
        "left_out": view.left_out,
        "wall_ns": _spread(per_round["wall"]),
        "tpot_ns": _spread(per_round["wall"] / view.options.accept_length),
        "overlapped_ns": _spread(per_round["overlapped"]),
    }
    out["ledger"] = ledger_means = _spreads(per_round, CLASSES, "", out["wall_ns"]["mean"])
    out["host_bound"] = _spreads(per_round, HOST_PARTS, "host_", ledger_means["host_bound"]["mean"])
    out["roles"] = _spreads(per_round, ROLES, "role_", ledger_means["busy"]["mean"])
    out["kernels"] = float(ledger["kernels"].sum() / max(1, view.n_rounds))
    out["extra_kernels"] = float(ledger["extra_kernels"].sum() / max(1, view.n_rounds))
    return out | _ruler(view, ledger)


def _spread(values: pd.Series) -> dict[str, int | None]:
    if not len(values):
        return {"mean": None, "p50": None, "p99": None}
    return {"mean": round(values.mean()), "p50": round(values.quantile(0.5)), "p99": round(values.quantile(0.99))}


def _spreads(per_round: pd.DataFrame, names: tuple[str, ...], prefix: str, total: int | None) -> dict[str, Any]:
    """The spread of each column; the means are whole numbers that add up to `total`, their own mean rounded."""
    if total is None:
        return {name: _spread(per_round["wall"]) for name in names}
    columns = [prefix + name for name in names]
    means = whole(per_round[columns].mean().to_numpy(), total)
    return {n: _spread(per_round[c]) | {"mean": int(mean)} for n, c, mean in zip(names, columns, means, strict=True)}


def _ruler(view: View, ledger: pd.DataFrame) -> dict[str, Any]:
    """How the profiled step compares with the unprofiled one, in words and numbers."""
    if (target := view.unprofiled_step) is None or not view.n_rounds:
        return {"ruler": _no_ruler(view)}
    rounds = ledger.groupby(view.rounds).sum(numeric_only=True)
    scaled = rounds[[f"calibrated_{c}" for c in CLASSES]]
    wall, total = rounds["wall"].mean(), round(scaled.sum(axis=1).mean())
    gpu = rounds[[c for c in CLASSES if c not in HOST_CLASSES]].sum(axis=1).mean()
    said = f"profiled step {wall / 1e6:.3f} ms, unprofiled {target / 1e6:.3f} ms: {wall / target:.2f} times as long"
    if wall < target:
        said += "; a profiler does not speed a step up: check the unprofiled time and the accept length"
    elif gpu > target:
        said += f"; the GPU classes alone ({gpu / 1e6:.3f} ms) exceed it and are scaled by {target / gpu:.3f}"
    elif total < target:
        idle = int((rounds[list(HOST_CLASSES)].sum(axis=1) == 0).sum())
        said += f"; in {idle} of {len(rounds)} rounds there is no host time to scale"
    return {"ruler": said + ".", "calibrated": _spreads(scaled, CLASSES, "calibrated_", total)}


def _no_ruler(view: View) -> str:
    if view.options.unprofiled_tpot is None:
        return "host-side idle is an upper bound: profiling slows the host. Give --unprofiled-tpot to calibrate."
    return "the unprofiled time per token is that of a decode step: it cannot calibrate what is shown here."


def plain(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows as JSON-ready dicts."""
    return [{key: _plain(value) for key, value in row.items()} for row in frame.to_dict("records")]


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not np.isfinite(value) else value


make_callable(__name__, report)

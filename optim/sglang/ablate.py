"""The ablation of a SGLang server as the same report as the engine's, made from what `rounds` kept."""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import numpy as np

import ling_prof
from ling_prof import ablation_report
from ling_prof.ablation_report import SCHEMA, Ablation
from ling_prof.errors import UserError
from ling_prof.lock import Lock
from ling_prof.plain_file import sha256
from ling_prof.server_info import decoding_of, lock_of
from optim import designs
from optim.designs import Player, label
from optim.options import check_folder, make_folder
from optim.sglang import engine
from optim.sglang.judge import Judge, Verdict
from optim.sglang.kept import SHAPES, Begun, Visit
from optim.sglang.plan import SAMPLED, TOKENS, Plan, labelled, modules_of
from optim.sglang.registry import passes
from optim.sglang.rounds import AGAIN, ALL_AGAIN, Rounds, Say, rungs_of, traces_of
from optim.store import Store

REPORT, STORE = "ablation.json", "ablation.sqlite"
KEYED = ("model", "passes", "design", "isl", "osl", "alive", "starts", "seed")
UNPREDICTED = dict.fromkeys(("predicted_us", "predicted_low", "predicted_high"))
NO_GAIN = dict.fromkeys(("gain_us", "gain_pct", "low", "high", "error_us"))
TIMES = ("tpot_ms", "low", "high")


def measured(plan: Plan, say: Say = lambda _: None) -> Ablation:
    """Runs what is not kept yet, then reports; where sglang is missing, on what is kept.

    Raises UserError where nothing can be measured, and for a folder that holds another ablation.
    """
    check_folder(plan.folder)
    can_run = find_spec("sglang") is not None
    if not can_run and not (plan.folder / STORE).exists():
        raise UserError('sglang is not installed here, which this runs; pip install "ling-prof[sglang]".')
    make_folder(plan.folder)
    with Store(plan.folder / STORE, {name: getattr(plan, name) for name in KEYED}, SHAPES) as store:
        if can_run:
            Rounds(plan, store, say).run()
        report = _Report(plan, store)
        if not report.rounds:
            verdict = report.verdicts[()]
            why = "run again to go on" if verdict.ok else f"without passes: {verdict.said}"
            raise UserError(f"{plan.folder}: no round is complete ({why}); nothing can be said.")
        return _checked(report.made(), plan)


def save(found: Ablation, plan: Plan) -> None:
    """Leaves the report in the folder. Raises UserError where that fails."""
    ablation_report.save(found, plan.folder / REPORT)


def _checked(found: Ablation, plan: Plan) -> Ablation:
    """The report. Raises UserError for one that could not be read again."""
    with TemporaryDirectory() as folder:
        draft = Path(folder) / REPORT
        ablation_report.save(found, draft)
        try:
            ablation_report.load(draft)
        except UserError as fault:
            said = str(fault).removeprefix(f"{draft}: ").rstrip(".")
            raise UserError(f"{plan.folder / STORE} makes no report: {said}.") from None
    return found


@dataclass
class _Report:
    """What is kept of a plan, as a report."""

    plan: Plan
    store: Store

    def made(self) -> Ablation:
        design = self.plan.design_made
        said = designs.estimate(design, self.times, self.plan.seed, failed=self.failed)
        rows = [self._row(*pair) for pair in zip(design.combinations, said["rows"], strict=True)]
        found = {
            **self._about(self._kept("begun", "")),
            **self._noise(),
            "baseline": _tpot(rows[0]),
            "all_on": _tpot(rows[-1]),
            "rows": rows,
            "attribution": self._attribution(said["attribution"]),
            "interactions": said["interactions"],
            "ladder": self._ladder({tuple(row["passes"]): row for row in rows}),
            "gates": [self._gate(one) for one in design.combinations],
            "blocked": [{"pass": label(player), "reason": why} for player, why in self.plan.blocked.items()],
            "kernels": [],
        }
        return cast(Ablation, found)

    def _kept(self, kind: str, name: str) -> Any:
        """What must be there. Raises UserError where it is not."""
        if (kept := self.store.get(kind, name)) is None:
            raise self.store.damaged(kind, name)
        return kept

    def _about(self, begun: Begun) -> dict[str, Any]:
        """How it was measured."""
        return {
            "schema": SCHEMA,
            "command": self.plan.command,
            "date": begun["date"],
            "code": begun["code"],
            "lock": self._lock(begun).to_dict(),
            "target": "sglang",
            "design": self.plan.design,
            "clocks": begun["clocks"],
            "windows": len(self.rounds),
            "steps": self.plan.osl - 1,
            "notes": list(self._notes(begun)),
        }

    @property
    def combinations(self) -> list[Player]:
        return self.plan.design_made.combinations

    @cached_property
    def visits(self) -> dict[tuple[int, str], Visit]:
        """By round and name of a visit."""
        names = [*map(labelled, self.combinations), AGAIN, ALL_AGAIN]
        pairs = [(number, name) for number in range(self.plan.sample) for name in names]
        return {pair: kept for pair in pairs if (kept := self.store.get("visit", "{}/{}".format(*pair))) is not None}

    @cached_property
    def verdicts(self) -> dict[Player, Verdict]:
        """Whether a combination may show its speed, and why."""
        judge = Judge(self.plan, self.store, self._was_measured)
        return {one: judge.verdict(one) for one in self.combinations}

    def _was_measured(self, one: Player) -> bool:
        return any((number, labelled(one)) in self.visits for number in range(self.plan.sample))

    @cached_property
    def failed(self) -> set[int]:
        """Combinations, by index, without a time."""
        return {i for i, one in enumerate(self.combinations) if not self.verdicts[one].ok}

    @cached_property
    def rounds(self) -> list[int]:
        """Those in which every combination that may show its speed was measured, and the baseline's pair."""
        needed = [labelled(one) for i, one in enumerate(self.combinations) if i not in self.failed] + [AGAIN]
        whole = (number for number in range(self.plan.sample) if all((number, name) in self.visits for name in needed))
        return [] if 0 in self.failed else list(whole)

    @cached_property
    def times(self) -> np.ndarray:
        """float (rounds, combinations), ns a token; NaN where there is none."""
        return np.array([[self._ns(number, labelled(one)) for one in self.combinations] for number in self.rounds])

    def _ns(self, number: int, name: str) -> float:
        visit = self.visits.get((number, name))
        return np.nan if visit is None else visit["ns"]

    def _noise(self) -> dict[str, float | None]:
        """Of the baseline's pair, and of all's, as in an ablation of the engine."""
        again, loaded = (np.array([self._ns(number, name) for number in self.rounds]) for name in (AGAIN, ALL_AGAIN))
        floor, high = designs.noise_floor(self.times[:, 0], again, self.plan.seed)
        missing = len(self.combinations) - 1 in self.failed or np.isnan(loaded).all()
        of_all = None if missing else designs.noise_floor(self.times[:, -1], loaded, self.plan.seed)[0]
        return {"noise_floor_pct": floor, "noise_high_pct": high, "all_on_noise_pct": of_all}

    def _accept_length(self, one: Player) -> float:
        return float(np.mean([self.visits[number, labelled(one)]["accept_length"] for number in self.rounds]))

    def _gate(self, one: Player) -> Any:
        ok, said, figures = self.verdicts[one]
        tokens = None if self.plan.pinned else TOKENS
        return {"passes": list(one), "verdict": said, "ok": ok, "tokens": tokens, **figures}

    def _row(self, one: Player, tpot: dict[str, Any]) -> Any:
        accepted = None if tpot["tpot_ms"] is None else self._accept_length(one)
        step = None if accepted is None else tpot["tpot_ms"] * accepted
        return {
            "passes": list(one),
            **tpot,
            "step_ms": step,
            "accept_length": accepted,
            "gate": self.verdicts[one].said,
        }

    def _attribution(self, gains: list[dict[str, Any]]) -> Any:
        """Each player with the verdict and the proof of the smallest combination that has it."""
        rows = []
        for gain, player in zip(gains, self.plan.design_made.players, strict=True):
            with_it = next(one for one in sorted(self.combinations, key=len) if {*player} <= {*one})
            exact = all(module.exact for module in modules_of(player).values())
            more = {"exact": exact, "gate": self.verdicts[with_it].said, "took_effect": self._evidence(player, with_it)}
            rows.append({**NO_GAIN, **gain, **UNPREDICTED, **more})
        return rows

    def _evidence(self, player: Player, one: Player) -> str:
        proofs = self.store.get("proof", labelled(one)) or []
        return "; ".join(row["evidence"] for of in proofs[:1] for row in of["passes"] if row["pass"] in player)

    def _ladder(self, rows: dict[Player, Any]) -> Any:
        found = []
        for rung, added in rungs_of(self.plan).items():
            trace = self._trace(rung)
            ratio = self._ratio(trace, rows[rung]["step_ms"])
            found.append({"added": added, **_tpot(rows[rung]), "trace": trace, "profiled_ratio": ratio, "lowers": []})
            if trace and (path := self.plan.folder / trace).exists():
                found[-1]["trace_sha256"] = sha256(path)
        return found

    def _trace(self, rung: Player) -> str | None:
        """A rung's recording. Raises UserError for one of another name, and for what is no file that can be read."""
        if (trace := self.store.get("trace", labelled(rung))) is None:
            return None
        if trace != traces_of(self.plan)[rung]:
            raise self.store.damaged("trace", labelled(rung))
        path = self.plan.folder / trace
        if path.exists() and not (path.is_file() and os.access(path, os.R_OK)):
            raise UserError(f"{path} is no file that can be read; move it away and run again.")
        return trace

    def _ratio(self, trace: str | None, step_ms: float | None) -> float | None:
        """A step of a recording over one without the profiler; None where one of them is not known."""
        with suppress(UserError, IndexError):
            if trace and step_ms:
                report = ling_prof.report(ling_prof.load(self.plan.folder / trace))
                return report["summary"][0]["wall_ns"]["mean"] / 1e6 / step_ms
        return None

    def _lock(self, begun: Begun) -> Lock:
        """Of the first server that was ready; the weights of a checkpoint are told by its folder only."""
        drawn = {"model": self.plan.model, "weights": f"random, seed {self.plan.seed}"}
        return lock_of(
            {**begun["server"], "version": begun["versions"].get("sglang")},
            **(drawn if self.plan.is_bundled else {}),
            **{name: begun[name] for name in ("driver", "cuda", "torch", "triton", "python")},
            hardware=tuple(begun["hardware"] or ()),
            isl=self.plan.isl,
            osl=self.plan.osl,
            decoding=decoding_of(begun["server"], 0.0, self.plan.pinned),
            ling_prof=ling_prof.__version__,
        )

    def _notes(self, begun: Begun) -> Iterator[str]:
        versions = ", ".join(f"{name} {version or 'unknown'}" for name, version in begun["versions"].items())
        yield f"{versions}; CUDA graph of one request, prompts without, no radix cache, Triton attention"
        if self.plan.pinned:
            yield f"accept length pinned to {self.plan.pinned}: speed only, the text means nothing and is not judged"
        else:
            yield f"gate: {TOKENS} greedy tokens, and again after {SAMPLED} sampled ones, on one prompt"
            if positions := {verdict.figures["positions"] for verdict in self.verdicts.values()} - {None}:
                yield f"gate of rounding passes: their logits at {max(positions)} positions of the text without passes"
        if len(self.rounds) < self.plan.sample:
            yield f"{len(self.rounds)} of {self.plan.sample} rounds are complete, which count"
        if off := [name for name in self.plan.selection(()) if passes()[name].default]:
            are = "are" if len(off) > 1 else "is"
            yield f"without passes: {', '.join(off)} {are} off, which SGLang has on as it comes"
        if self.plan.has_engine:
            yield f"{engine.NAME}: the bundled engine, in a process beside the server's, asked for the same tokens"
        if self.plan.drifts:
            alive = f"{self.plan.alive} of {len(self.combinations)} configurations alive at a time"
            yield f"{alive}: what drifts between groups is not shared, and pairs are of one start"


def _tpot(row: Any) -> Any:
    return {key: row[key] for key in TIMES}

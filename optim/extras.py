"""What is added to an ablation once it is measured: a recording of every rung, and kernels with cold weights."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import ling_prof
from ling_prof.ablation_report import Ablation
from ling_prof.plain_file import sha256
from optim import base, microbench
from optim.engine.generate import Engine
from optim.ladder import lowered, quantities
from optim.measure import Passes, Progress
from optim.options import AblateOptions
from optim.store import Store
from optim.trace import record_open, rehearse

RECORDED = 12  # decode steps of a recording


@dataclass
class Extras:
    """Adds to `found`, whose ladder has a row for each of `rungs`; what goes wrong becomes a note there."""

    found: Ablation
    engine: Engine
    options: AblateOptions
    store: Store
    prompt: list[int]

    def add(self, rungs: list[Passes], progress: Progress) -> None:
        """What an earlier run reached comes from the store. progress takes the share done, 0 to 1."""
        now: dict[str, float] = {}
        for number, (below, passes) in enumerate(pairwise([(), *rungs])):
            row, before, now = cast(Any, self.found["ladder"][number]), now, {}
            added = row["added"] or "baseline"
            if row["tpot_ms"] and records(self.engine, self.options):
                with self._noting(f"the recording of {added}"):
                    said = self._recorded(passes, f"{number:02}-{added}.json.gz")
                    now = said["quantities"]
                    row |= {"trace": said["trace"], "trace_sha256": said["sha256"]}
                    row["profiled_ratio"] = said["step_ms"] / said["plain_ms"]
                    row["lowers"] = lowered(passes[len(below) :], before, now) if before else []
            progress((number + 1) / len(rungs))
        with self._noting("the kernels with cold weights"):
            self.found["kernels"] = cast(Any, self._kernels())

    def _recorded(self, passes: Passes, name: str) -> dict[str, Any]:
        """The file, the time of a step in it and of one just before without the profiler, quantities of a step.

        Anew where an earlier run's file is gone or another one.
        """
        path = self.options.folder / name
        kept = self.store.get("trace", name)
        if kept is None or not path.exists() or sha256(path) != kept["sha256"]:
            kept = {"trace": name, "plain_ms": self._record(passes, path), "sha256": sha256(path), **_read(path)}
            self.store.replace("trace", name, kept)
        return kept

    def _record(self, passes: Passes, path: Path) -> float:
        """Leaves the recording -> ms of a step before it."""
        with base.applied(self.engine, list(passes)):
            self.engine.prefill(self.prompt)
            plain = rehearse(self.engine)
            record_open(self.engine, path, RECORDED)
        return plain

    def _kernels(self) -> list[dict[str, Any]]:
        if (kept := self.store.get("kernels", "")) is None:
            kept = microbench.projections(self.engine)
            self.store.put("kernels", "", kept)
        return kept

    @contextmanager
    def _noting(self, what: str) -> Iterator[None]:
        """An error inside costs only what it is about: the measurement is done."""
        try:
            yield
        except Exception as fault:
            self.found["notes"].append(f"{what}: missing, {type(fault).__name__}, {' '.join(str(fault).split())}")


def _read(path: Path) -> dict[str, Any]:
    report = ling_prof.report(ling_prof.load(path))
    return {"step_ms": report["summary"][0]["wall_ns"]["mean"] / 1e6, "quantities": quantities(report)}


def records(engine: Engine, options: AblateOptions) -> bool:
    """Whether rungs are recorded: on a CPU there are no kernels."""
    return options.traces and engine.token.device.type == "cuda"

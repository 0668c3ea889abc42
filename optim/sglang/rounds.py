"""Runs the configurations of a plan and keeps what is finished: proofs, texts, distances, times and recordings.

Those that are alive together are measured in rounds: in each, every one serves the same request, in an order drawn
anew, the baseline and all on twice. What was kept before is not run again.
"""

import math
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import msgspec

from ling_prof.errors import UserError
from optim.designs import Player, label
from optim.options import make_folder
from optim.sglang import configs, engine, processes, proof
from optim.sglang.distances import Distances
from optim.sglang.kept import Facts, Ns, Recording, Request
from optim.sglang.plan import SAMPLED, TOKENS, Plan, labelled
from optim.sglang.workers import START_S, Process, Setup, close
from optim.store import ELSEWHERE, Store, code

AGAIN, ALL_AGAIN = "A/A", "A/A of all on"  # second visits of a round, as in an ablation of the engine
PILOTS = 2  # start alone where nothing is compiled yet: with no pass and with all they compile what the others need
WARM_UP, RECORDED = 8, 12  # tokens of a first request; steps of a recording
SAME = ("hardware", "driver", "cuda", "torch", "triton", "python", "versions", "code")  # else times are not mixed
Say = Callable[[str], None]


class Elsewhere(UserError):
    """What is kept was measured with another machine, version or code."""


@dataclass
class Rounds:
    """The experiment of a plan; `say` is told of every step, a line each."""

    plan: Plan
    store: Store
    say: Say = lambda _: None
    began: float = field(default_factory=time.monotonic)
    voids: set[Player] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.distances = Distances(self.plan, self.store, self.say)

    def run(self) -> None:
        """A configuration that does not run is left out, and said. Raises Elsewhere."""
        self.distances.tidy()
        for start in range(self.plan.starts):
            combinations = self._ordered(start)
            size = self.plan.alive or len(combinations)
            for first in range(0, len(combinations), size):
                group = [one for one in combinations[first : first + size] if not self.failed(one)]
                if (needed := self._needed(start, group)) and not self._over:
                    self._group(start, needed)
        self.distances.tidy()
        if self._over:
            self.say("the minutes are over: nothing more is begun")

    def _ordered(self, start: int) -> list[Player]:
        """All in an order drawn anew, but pilots first, and first of all a baseline that others are compared with."""
        combinations = [*self.plan.design_made.combinations]
        random.Random(f"{self.plan.seed} {start}").shuffle(combinations)
        needed = bool(self.distances.missing)
        return sorted(combinations, key=lambda one: (one not in self._ends, needed and one != ()))

    def failed(self, combination: Player) -> bool:
        """Whether it does not run; another run tries it again."""
        return combination in self.voids

    @property
    def _ends(self) -> tuple[Player, Player]:
        return self.plan.design_made.combinations[0], self.plan.design_made.combinations[-1]

    @property
    def _over(self) -> bool:
        return self._left(1.0) <= 0

    def _left(self, most: float) -> float:
        """Seconds until nothing more is begun, at most `most`."""
        end = self.began + 60 * (self.plan.minutes or math.inf)
        return min(most, end - time.monotonic())

    def _numbers(self, start: int) -> range:
        """The rounds of a start."""
        share = self.plan.sample // self.plan.starts
        return range(start * share, (start + 1) * share)

    def _visits(self, combination: Player) -> list[str]:
        """The names of its visits of a round."""
        first, last = self._ends
        twice = [*[AGAIN] * (combination == first), *[ALL_AGAIN] * (combination == last != first)]
        return [labelled(combination), *twice]

    def _needed(self, start: int, group: list[Player]) -> list[Player]:
        """All of a group where a visit of one is missing: times are taken side by side; else those that lack more."""
        return group if any(self._lacks_visits(start, one) for one in group) else [*filter(self._lacks, group)]

    def _lacks_visits(self, start: int, combination: Player) -> bool:
        visits = [f"{number}/{name}" for number in self._numbers(start) for name in self._visits(combination)]
        return any(self.store.get("visit", visit) is None for visit in visits)

    def _lacks(self, combination: Player) -> bool:
        """Whether its logits or its recording have to be asked for, or its last run ended badly."""
        unrecorded = self.plan.traces and combination in traces_of(self.plan) and not self._is_recorded(combination)
        return unrecorded or self.distances.lacks(combination) or bool(self.store.get("void", labelled(combination)))

    def _is_recorded(self, combination: Player) -> bool:
        return self.store.get("trace", labelled(combination)) is not None

    def _group(self, start: int, group: list[Player]) -> None:
        with self._workers(group) as workers:
            self._each(workers, self._judge)
            self._each(workers, self.distances.keep, fatal=False)
            for number in self._numbers(start):
                if not self._over:
                    self._round(number, workers)
            self._each(workers, self._prove, fatal=False)
            if self.plan.traces:
                rungs = [rung for rung in reversed(traces_of(self.plan)) if rung in workers]
                self._each({rung: workers[rung] for rung in rungs}, self._record, fatal=False)

    @contextmanager
    def _workers(self, group: list[Player]) -> Iterator[dict[Player, Process]]:
        """Those that run with the passes as asked, warm."""
        setup = setup_of(self.plan)
        pilots = group if any(setup.caches.iterdir()) else group[:PILOTS]
        workers: dict[Player, Process] = {}
        with processes.stoppable():
            try:
                for wave in (pilots, group[len(pilots) :]):
                    for one in wave:
                        workers[one] = Process(self._setup(setup, one), labelled(one), self.plan.selection(one))
                    self._each({one: workers[one] for one in wave}, self._ready)
                    self._warm({one: workers[one] for one in wave})
                yield {one: worker for one, worker in workers.items() if not self.failed(one)}
            finally:
                close(workers.values())

    def _setup(self, setup: Setup, combination: Player) -> Setup:
        """That of a server; of the engine where it takes the server's place."""
        if engine.NAME not in combination:
            return setup
        how = {"isl": self.plan.isl, "tokens": max(self.plan.osl, TOKENS), "seed": self.plan.seed}
        return replace(setup, kind="engine", model=Path(self.plan.model), arguments=how)

    def _each(self, workers: dict[Player, Process], do: Callable[[Player, Process], None], fatal: bool = True) -> None:
        """Does it with each that has not failed; where it cannot be done it is said and, if `fatal`, that one has.

        What ends when the minutes are over has not failed.
        """
        for combination, worker in workers.items():
            if not self._over and not self.failed(combination):
                try:
                    do(combination, worker)
                except Elsewhere:
                    raise
                except UserError as fault:
                    if self._over:
                        continue
                    if fatal:
                        self._fail(combination, worker, str(fault).rstrip("."))
                    else:
                        self.say(f"{labelled(combination)}: {fault}")

    def _fail(self, combination: Player, worker: Process, why: str) -> None:
        worker.close()
        self.say(f"{labelled(combination)} failed: {why}")
        self.voids.add(combination)
        self.store.replace("void", labelled(combination), why)

    def _ready(self, combination: Player, worker: Process) -> None:
        facts = worker.ready(self._left(START_S), Facts)
        self._begin({**facts, "code": code()}, engine.NAME not in combination)
        proofs = proof.load(worker.proof)
        self.store.replace("proof", labelled(combination), proofs)
        self.store.replace("void", labelled(combination), "")
        self.say(f"{labelled(combination)} is ready")
        for fault in (fault for one in proofs for fault in proof.faults(one)):
            self.say(f"{labelled(combination)}: {fault}")

    def _begin(self, facts: dict[str, Any], is_server: bool) -> None:
        """Keeps what the first server runs on. Raises Elsewhere where one, or the engine, runs on something else."""
        begun = self.store.get("begun", "")
        if begun is None and is_server:
            self.store.put("begun", "", {"date": datetime.now(UTC).isoformat(timespec="seconds"), **facts})
        elif begun is not None:
            pairs = {name: (begun[name], facts[name]) for name in SAME if name != "versions" or is_server}
            said = [f"{name} ({there} there, {now} now)" for name, (there, now) in pairs.items() if there != now]
            if said:
                raise Elsewhere(f"{self.store.path} was begun with another {', '.join(said)}; {ELSEWHERE}.")

    def _warm(self, workers: dict[Player, Process]) -> None:
        """A first request of all at once: it compiles what the prompt needs."""
        self._each(workers, lambda _, worker: worker.send("generate", isl=self.plan.isl, osl=WARM_UP))
        self._each(workers, self._answered)

    def _answered(self, _: Player, worker: Process) -> None:
        worker.answer()

    def _judge(self, combination: Player, worker: Process) -> None:
        """Greedy tokens, and again after a sampled request."""
        if self.store.get("text", labelled(combination)) is None:
            first = self._request(worker, TOKENS)
            self._request(worker, SAMPLED, temperature=1.0)
            again = self._request(worker, TOKENS)
            self.store.put("text", labelled(combination), [first["tokens"], again["tokens"]])

    def _request(self, worker: Process, osl: int, **more: float) -> Request:
        """Raises UserError for another number of tokens."""
        found: Request = worker.ask("generate", Request, isl=self.plan.isl, osl=osl, seed=self.plan.seed, **more)
        if len(found["tokens"]) != osl:
            raise UserError(f"{worker.name} gave {len(found['tokens'])} of {osl} tokens; run again")
        return found

    def _prove(self, combination: Player, worker: Process) -> None:
        """Anew: some passes take effect in the first steps only. The clocks too, now that the GPU has worked."""
        if engine.NAME not in combination:
            clocks = worker.ask("facts", Facts)["clocks"]
            self.store.replace("begun", "", {**self.store.get("begun", ""), "clocks": clocks})
        worker.ask("proof")
        self.store.replace("proof", labelled(combination), proof.load(worker.proof))

    def _round(self, number: int, workers: dict[Player, Process]) -> None:
        names = {name: one for one in workers for name in self._visits(one)}
        order = [name for name in names if self.store.get("visit", f"{number}/{name}") is None]
        random.Random(f"{self.plan.seed} {number}").shuffle(order)
        for name in order:
            self._each({names[name]: workers[names[name]]}, partial(self._visit, number, name))

    def _visit(self, number: int, name: str, _: Player, worker: Process) -> None:
        found = self._request(worker, self.plan.osl)
        time_ns = _ns(found, worker.name)
        kept = {"ns": time_ns, "accept_length": found["accept_length"], "ttft_ms": found["ttft_ms"]}
        self.store.put("visit", f"{number}/{name}", kept)
        self.say(f"round {number}, {name}: {time_ns / 1e6:.4f} ms a token")

    def _record(self, combination: Player, worker: Process) -> None:
        name = traces_of(self.plan)[combination]
        if not self._is_recorded(combination):
            if os.path.lexists(place := self.plan.folder / name) and not place.is_file():
                raise UserError(f"{place} is no regular file; move it away and run again")
            made = worker.ask("trace", Recording, folder=str(self.plan.folder), isl=self.plan.isl, steps=RECORDED)
            _move(Path(made["file"]), place)
            self.store.put("trace", labelled(combination), name)
            self.say(f"{name} is recorded")


def _ns(found: Request, who: str) -> float:
    """A token's time, after the first piece. Raises UserError where there is none."""
    tokens = len(found["tokens"]) - found["sizes"][0]
    if tokens <= 0:
        raise UserError(
            f"{who} gave its {len(found['tokens'])} tokens in one piece, so that no time per token can be taken; "
            "ask for a larger --osl"
        )
    ns = (found["ends_ns"][-1] - found["ends_ns"][0]) / tokens
    try:
        return msgspec.convert(ns, Ns)
    except msgspec.ValidationError:
        raise UserError(f"{who} gave a token every {ns:g} ns, which is no time; run again") from None


def _move(made: Path, place: Path) -> None:
    """A recording to its place. Raises UserError where it is not there, or cannot be moved."""
    if not os.path.isfile(made):
        raise UserError(f"{made!s:.200} holds no recording, which SGLang said that it left there; run again")
    try:
        made.replace(place)
    except OSError as error:
        raise UserError(f"{made} cannot be moved to {place} ({error.strerror}); make room there, run again") from None


def rungs_of(plan: Plan) -> dict[Player, str]:
    """The combinations of the design in which one player after the other joins -> what joined, '' at the first."""
    there = plan.design_made.combinations
    rungs = [rung for rung in accumulate(plan.design_made.players, initial=()) if rung in there]
    return {rung: label(rung[len(before) :]) for before, rung in zip([(), *rungs], rungs, strict=False)}


def traces_of(plan: Plan) -> dict[Player, str]:
    """The file of each rung's recording."""
    return {rung: f"{i:02}-{added or 'baseline'}.json.gz" for i, (rung, added) in enumerate(rungs_of(plan).items())}


def setup_of(plan: Plan) -> Setup:
    """The folders, made; the configuration of a bundled model written."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ling-prof" / "sglang"
    make_folder(plan.folder)
    make_folder(caches)
    model = configs.write_config(plan.model, plan.folder / plan.model) if plan.is_bundled else Path(plan.model)
    trained = any(model.glob("*.safetensors"))
    arguments = configs.arguments(plan.model, model) | ({"load_format": "auto"} if trained else {})
    seed = None if trained else plan.seed
    return Setup(model, plan.folder, caches, seed, arguments, configs.environment(plan.model))

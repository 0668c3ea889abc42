"""The ablation: players pass the gate, their combinations are measured, and what each is worth becomes a report.

A player is a pass, or several that are switched together. What is finished is kept in a store, from which a run that
was cut short goes on.
"""

from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cached_property
from itertools import accumulate, chain, groupby
from pathlib import Path
from typing import Any, cast

import numpy as np

from ling_prof import ablation_report
from ling_prof.ablation_report import SCHEMA, Ablation
from ling_prof.errors import UserError
from ling_prof.plain_file import check_writable
from optim import base, designs
from optim.bench import reservations
from optim.designs import Design, label
from optim.engine.generate import Engine
from optim.extras import RECORDED, Extras, records
from optim.gate import POSITIONS, TOKENS, Gate, Passing, Verdict, is_exact
from optim.measure import AGAIN, ALL_AGAIN, WARM_UP, Passes, Progress, Protocol, reference
from optim.options import AblateOptions, check_folder, make_folder
from optim.session import clocks_of, lock_of, open_engine, prompt_for
from optim.store import Store, code
from optim.trace import REHEARSED, SETTLE

REPORT, STORE = "ablation.json", "ablation.sqlite"
ACCEPT_LENGTH = 1.0  # tokens a step
SHARES = (0.2, 0.9, 1.0)  # of the progress: where judging, measuring and recording end
ROUNDING = (
    "rounding passes: accept length is 1 by construction, since nothing is drafted; fp32 twin is the largest error of a"
    " small fp32 model's logits, half layer the error of half a layer that is fed the same, each with the passes on"
)
UNPREDICTED = dict.fromkeys(("predicted_us", "predicted_low", "predicted_high"))
NO_GAIN = dict.fromkeys(("gain_us", "gain_pct", "low", "high", "error_us"))
TIMES = ("tpot_ms", "low", "high")
PAIRS = ("A/A of all on", "A/A")  # in the store: ALL_AGAIN, AGAIN


def save(found: Ablation, options: AblateOptions) -> None:
    """Leaves the report in the folder. Raises UserError where that fails."""
    ablation_report.save(found, options.folder / REPORT)


def measured(options: AblateOptions, progress: Progress = lambda _: None) -> Ablation:
    """Judges, measures and records. The report is saved before the recordings. progress: the share done, 0 to 1.

    Raises UserError for an unknown pass or one that is on already, for what cannot be opened or written, for a folder
    that holds another ablation, and where the engine without passes does not repeat itself.
    """
    check_results(options.folder)
    base.named(list(chain(*options.players)))  # before the model is built
    tokens = max(options.windows * options.steps + WARM_UP, SETTLE + REHEARSED + RECORDED + 1, TOKENS)
    engine = open_engine(options, tokens + 1, options.seed)  # run-ahead needs one more
    players = players_of(engine, options)
    make_folder(options.folder)
    with Store(options.folder / STORE, _key(engine, options, players)) as store:
        work = _Work(engine, options, store, players)
        found = work.report(progress)
        with suppress(UserError):  # it is saved again, whole
            save(found, options)
        Extras(found, engine, options, store, work.prompt).add(work.rungs, _part(progress, 2))
    return found


def check_results(folder: Path) -> None:
    """Raises UserError for a folder that cannot be written, or has a report which no run there can have left."""
    check_folder(folder)
    if folder.exists():
        check_writable(folder / REPORT)
    if (folder / REPORT).exists() and not (folder / STORE).exists():
        left = f"{folder / REPORT} is there without the {STORE} of its run"
        raise UserError(f"{left}; move it away, or give another folder with --output.")


def players_of(engine: Engine, options: AblateOptions) -> list[Passes]:
    """Those asked for; if none are, all passes that are not on, those of one rung together.

    Raises UserError for one that is on already.
    """
    for name in chain(*options.players):
        if name in engine.passes:
            raise UserError(f"{name} is on already; leave it out of --passes, or measure it with --eager.")
    free = [(name, module.rung) for name, module in base.passes().items() if name not in engine.passes]
    rungs = [tuple(name for name, _ in rung) for _, rung in groupby(free, key=lambda one: one[1])]
    return options.players or rungs


def blocked(engine: Engine, player: Passes) -> str:
    """Why it cannot be applied here; empty when it can. A pass may need those that stand before it in its player."""
    with ExitStack() as stack:
        for name, module in base.named(list(player)).items():
            if reason := module.blocked(engine):
                return reason
            if name != player[-1]:
                stack.enter_context(module.apply(engine))
    return ""


def _key(engine: Engine, options: AblateOptions, players: list[Passes]) -> dict[str, Any]:
    """What must be the same for a run to be gone on with."""
    asked = {"design": options.design, "windows": options.measured, "steps": options.steps, "seed": options.seed}
    lock = lock_of(engine, options.request).to_dict()
    return {"lock": lock, "code": code(), "players": [label(player) for player in players], **asked}


def _part(progress: Progress, number: int) -> Progress:
    """The progress of one of the three parts of the work."""
    low, high = (0.0, *SHARES)[number : number + 2]
    return lambda share: progress(low + (high - low) * share)


class _Verdicts(dict[Passes, Verdict]):
    """By set of passes, each judged when first asked for; what lasts of an earlier run's comes from the store."""

    def __init__(self, gate: Gate, store: Store):
        super().__init__()
        self.gate, self.store = gate, store

    def __missing__(self, passes: Passes) -> Verdict:
        if (kept := self.store.get("gate", label(passes))) is not None:
            try:
                self[passes] = Verdict(**{**kept, "passes": passes})
            except TypeError:
                raise self.store.damaged("gate", label(passes)) from None
            return self[passes]
        self[passes] = self.gate.judge(list(passes))
        if not isinstance(self[passes].verdict, Passing):
            self.store.put("gate", label(passes), asdict(self[passes]))
        return self[passes]


@dataclass
class _Work:
    """An ablation under way; `asked` are its players, also those that turn out blocked or fail."""

    engine: Engine
    options: AblateOptions
    store: Store
    asked: list[Passes]

    def report(self, progress: Progress) -> Ablation:
        begun = self._begun()
        self._judge(_part(progress, 0))
        self._measure(_part(progress, 1))
        said = designs.estimate(self.design, self.times, self.options.seed, failed=self.failed)
        rows = [self._row(*pair) for pair in zip(self.design.combinations, said["rows"], strict=True)]
        noise, loaded = self._noise()
        return {
            "schema": SCHEMA,
            "command": self.options.command,
            "date": begun["date"],
            "code": code(),
            "lock": lock_of(self.engine, self.options.request).to_dict(),
            "target": "engine",
            "design": self.options.design,
            "clocks": begun["clocks"],
            "noise_floor_pct": noise[0],
            "noise_high_pct": noise[1],
            "all_on_noise_pct": loaded,
            "windows": len(self.options.measured),
            "steps": self.options.steps,
            "baseline": _tpot(rows[0]),
            "all_on": _tpot(rows[-1]),
            "rows": rows,
            "attribution": self._attribution(said["attribution"]),
            "interactions": cast(Any, said["interactions"]),
            "ladder": self._ladder({tuple(row["passes"]): _tpot(row) for row in rows}),
            "gates": [verdict.row() for verdict in self.verdicts.values()],
            "blocked": [{"pass": label(player), "reason": why} for player, why in self.blocked.items()],
            "kernels": [],
            "notes": list(self._notes()),
        }

    def _begun(self) -> dict[str, Any]:
        """date and clocks of the first run."""
        if (kept := self.store.get("begun", "")) is None:
            kept = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "clocks": clocks_of(self.engine)}
            self.store.put("begun", "", kept)
        return kept

    @cached_property
    def blocked(self) -> dict[Passes, str]:
        return {player: reason for player in self.asked if (reason := blocked(self.engine, player))}

    @cached_property
    def prompt(self) -> list[int]:
        return prompt_for(self.engine.c, self.options.isl, self.options.seed)

    @cached_property
    def free(self) -> list[Passes]:
        """The players that can be applied."""
        return [player for player in self.asked if player not in self.blocked]

    def _judge(self, progress: Progress) -> None:
        """The design holds the players that pass alone; then all exact ones, and each rung, are judged together."""
        self.verdicts = _Verdicts(Gate(self.engine, self.prompt), self.store)
        if not self.verdicts[()].ok:
            fault = self.verdicts[()].verdict
            raise UserError(f"the engine without passes does not repeat itself ({fault}); nothing can be measured.")
        passed = [player for player in _counted(self.free, progress) if self.verdicts[player].ok]
        self.design = _design(self.options, passed)
        self.rungs = [rung for rung in accumulate(passed, initial=()) if rung in self.design.combinations]
        self.exact = tuple(chain(*filter(is_exact, passed)))
        for passes in (self.exact, *self.rungs):
            self.verdicts[passes]
        self.verdicts.gate.release()

    def _measure(self, progress: Progress) -> None:
        """Fills the times (windows, combinations) and again (windows, PAIRS), ns per token, from the store."""
        combinations, count = self.design.combinations, self.options.windows
        names = [*map(label, combinations), *PAIRS]  # by index, those of the pairs are below 0
        self.voids = {i: said for i in range(len(combinations)) if (said := self.store.get("void", names[i]))}
        self.resumed = {number for number in self.store.windows() if self._is_whole(number, names)}
        protocol = Protocol(self.engine, self.prompt, combinations, count, self.options.steps, self.options.seed)
        left_out = set(range(count)) - set(self.options.measured)
        if len(self.resumed) < len(self.options.measured):
            for window in protocol.windows(self.resumed | left_out, self.failed, progress):
                for i, said in window.voids.items():
                    if not isinstance(said, Passing):
                        self.store.put("void", names[i], said)
                self.store.finish(window.number, {names[i]: time for i, time in window.times.items()})
                self.voids |= window.voids
        windows = [self.store.window(number) or {} for number in self.options.measured]
        times = np.array([[window.get(name, np.nan) for name in names] for window in windows])
        self.times, self.again = times[:, :ALL_AGAIN], times[:, ALL_AGAIN:]

    def _is_whole(self, number: int, names: list[str]) -> bool:
        """Whether an earlier run's window has a time of all that count now; what it could not run then, it may lack."""
        needed = [name for i, name in enumerate(names[:ALL_AGAIN]) if i not in self.failed]
        return {*needed, *PAIRS[0 if self._all_twice else 1 :]} <= (self.store.window(number) or {}).keys()

    @property
    def _all_twice(self) -> bool:
        """Whether the combination of all was visited twice: it has a time, and is not the baseline."""
        last = len(self.design.combinations) - 1
        return last > 0 and last not in self.failed

    def _noise(self) -> tuple[tuple[float, float], float | None]:
        """How far the baseline's pair lies apart and may by chance, and how far all's does; percent of each."""
        seed = self.options.seed
        noise = designs.noise_floor(self.times[:, 0], self.again[:, AGAIN], seed)
        return noise, designs.noise_floor(self.times[:, -1], self.again[:, ALL_AGAIN], seed)[
            0
        ] if self._all_twice else None

    @property
    def failed(self) -> set[int]:
        """Combinations, by index, whose speed is not shown."""
        failed = {passes for passes, verdict in self.verdicts.items() if not verdict.ok}
        wrong = (i for i, passes in enumerate(self.design.combinations) if passes in failed or self._unsound(passes))
        return {*wrong} | self.voids.keys()

    def _unsound(self, passes: Passes) -> bool:
        """Whether it holds all exact passes, where these together change a token."""
        return not self.verdicts[self.exact].ok and {*self.exact} <= {*passes}

    def _gate_of(self, passes: Passes) -> str:
        """The verdict on a combination, in a phrase: the worst that is known of it."""
        if said := {self.design.combinations[i]: said for i, said in self.voids.items()}.get(passes):
            return said
        if self._unsound(passes):
            return f"all exact passes together: {self.verdicts[self.exact].verdict}"
        if passes in self.verdicts:
            return self.verdicts[passes].verdict
        return self._windows_say(passes)

    def _windows_say(self, passes: Passes) -> str:
        """Of a combination that only its windows judge."""
        beside = reference(passes, self.design.combinations)
        if beside is None or self.design.combinations.index(beside) in self.failed:
            return "not judged"
        steps, starts = self.options.steps, [number * self.options.steps for number in self.options.measured]
        tokens = {start + i for start in starts for i in range(steps + WARM_UP)}
        return f"{len(tokens)} window tokens equal" + (f" those with {label(beside)} alone" if beside else "")

    def _row(self, passes: Passes, tpot: dict[str, Any]) -> Any:
        more = {"step_ms": tpot["tpot_ms"], "accept_length": ACCEPT_LENGTH, "gate": self._gate_of(passes)}
        return {"passes": list(passes), **tpot, **more}

    def _attribution(self, gains: list[dict[str, Any]]) -> Any:
        """Of every player that is not blocked; those that failed alone have no gain."""
        known = {gain["pass"]: gain for gain in gains}
        methods = _design(self.options, self.free).methods
        return [
            {
                **known.get(label(player), {"pass": label(player), "method": methods[player], **NO_GAIN}),
                **UNPREDICTED,
                "exact": is_exact(player),
                "gate": self._gate_of(player),
                "took_effect": self.verdicts[player].proof,
            }
            for player in self.free
        ]

    def _ladder(self, tpots: dict[Passes, Any]) -> Any:
        """A row a rung, none of them recorded yet."""
        sizes = [0, *map(len, self.rungs)]
        unrecorded: dict[str, Any] = {"trace": None, "profiled_ratio": None, "lowers": []}
        return [
            {"added": label(rung[before:]), **tpots[rung], **unrecorded}
            for rung, before in zip(self.rungs, sizes, strict=False)
        ]

    def _notes(self) -> Iterator[str]:
        options = self.options
        if left := options.osl % options.steps:
            yield f"whole windows only: the last {left} of {options.osl} tokens are not measured"
        if not self.design.players:
            yield "no pass can be measured here: only the baseline is"
        if self.resumed:
            yield f"{len(self.resumed)} of {len(options.measured)} windows were measured by an earlier run"
        if (positions := self.verdicts.gate.positions) < POSITIONS:
            yield f"rounding was judged on {positions} positions, not {POSITIONS}: raise --osl for more"
        if self._unsound(self.exact):
            said = self.verdicts[self.exact].verdict
            yield f"all exact passes together, {label(self.exact)}: {said}; what holds them all shows no speed"
        for i, said in self.voids.items():
            yield f"{label(self.design.combinations[i])}, while it was measured: {said}; its times are dropped"
        if any(not is_exact(passes) for passes in self.verdicts):
            yield ROUNDING
        if options.traces and not records(self.engine, options):
            yield "no recordings: there are no kernels to record on a CPU"
        yield from reservations(self.engine)


def _tpot(row: Any) -> Any:
    return {key: row[key] for key in TIMES}


def _design(options: AblateOptions, players: list[Passes]) -> Design:
    """The design asked for; without players only the baseline."""
    if players:
        return designs.make(options.design, players, options.seed)
    return Design(options.design, (), [()], {}, {}, {}, [])


def _counted(items: list[Passes], progress: Progress) -> Iterator[Passes]:
    """The items, telling the progress after each."""
    for number, item in enumerate(items):
        yield item
        progress((number + 1) / len(items))

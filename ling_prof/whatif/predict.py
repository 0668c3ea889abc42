"""What a step would take after some edits: applied together and replayed, never added up; with a low and a high."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from ling_prof.errors import UserError
from ling_prof.marks import DECODE
from ling_prof.roles import ROLES, short_name
from ling_prof.steps import WHOLE
from ling_prof.trace import Trace
from ling_prof.units import show_time
from ling_prof.view import Options, View, view_of
from ling_prof.whatif import edits
from ling_prof.whatif.build import build
from ling_prof.whatif.costs import Costs, Reckoning, reckoning
from ling_prof.whatif.critical import critical_path, host_slack
from ling_prof.whatif.graph import Draft, Graph, Text
from ling_prof.whatif.replay import Course, Replay, calibrated, course, replay, step_of

SCHEMA = "ling-prof.whatif/1"
PASSES = "ling_prof.passes"  # the entry-point group: functions that give name -> module with `predict`
FEW, MANY_OPS = 4, 10_000  # rounds, and ops in them, of a prediction that a report makes on its own
NOTHING = "these edits find nothing to change here"
REMEDY = "mend or uninstall the package it comes from"
SHORT = 0.8  # of the device's recorded time: profiling does not add that much to it
MISSED = 0.01  # of the unprofiled step: farther off, the replay was not calibrated
LIKELY = 1.005  # the device without a profiler; below that a step says nothing of the host (docs/predictions.md)
SLOWER = 1.02  # the same, at most: 1.016 in docs/results/h200-tiny-ablation.json, at seam_fuse
LEAST_BAND = 0.005  # of the step, to either side: two measurements of one program differ by as much
Edit = Callable[[Draft, Costs], Draft]
Base = tuple[Graph, Replay, Costs]


def passes() -> dict[str, ModuleType]:
    """Every pass that predicts, in the order of the ladder, from all installed packages.

    Raises UserError, naming the entry point, for one that does not load or brings a name that is taken.
    """
    found: dict[str, ModuleType] = {}
    for point in _points():
        try:
            brought = {name: module for name, module in point.load()().items() if hasattr(module, "predict")}
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            raise UserError(f"the entry point {point.name} of {PASSES} is broken ({said}); {REMEDY}.") from error
        if taken := found.keys() & brought:
            raise UserError(f"the entry point {point.name} of {PASSES} brings {min(taken)} again; {REMEDY}.")
        found |= brought
    return found


@cache
def _points() -> list[metadata.EntryPoint]:
    """To look through all that is installed takes longer than a replay."""
    return sorted(metadata.entry_points(group=PASSES), key=lambda point: (point.name, point.value))


@dataclass(frozen=True)
class Outcome:
    """What some edits make of a step, ns: the step before and after, what is saved and the ends of that.

    sites: (what, how often a round), most often first: kernels and calls that the edits change.
    """

    step: float
    predicted: float
    saved: float
    low: float
    high: float
    sites: list[tuple[str, float]]


@dataclass(frozen=True)
class Predictor:
    """Answers for one graph. step: the unprofiled time of a round, ns; None where it is not known."""

    graph: Graph
    costs: Reckoning
    step: float | None = None

    @cached_property
    def recorded(self) -> float:
        return float(np.median(self.graph.recorded))

    @cached_property
    def unchanged(self) -> Replay:
        """The replay of the graph as it was recorded."""
        return replay(self.graph, along=self.course)

    @cached_property
    def course(self) -> Course:
        """Of the graph and of all that edits make of it."""
        return course(self.graph)

    @property
    def replay_error(self) -> float:
        """Of the unchanged replay, percent of the recorded step."""
        return 100 * (self.unchanged.step / self.recorded - 1)

    @cached_property
    def base(self) -> Base:
        """What the edits are applied to, as is likeliest: the device takes up to `LIKELY` longer than recorded, and the
        host what is left."""
        return self._base(self.costs.likely.traced, LIKELY)

    @cached_property
    def bases(self) -> list[Base]:
        """`base`, then others that span the band.

        With an unprofiled step they differ in how much of the difference is the profiler's work on the device, and in
        whether the device is slower without it; without, in whether the host is as slow as recorded or takes no time.
        """
        graph, base, likely = self.base
        if self.step is None:
            others = [(graph, replay(graph, 0.0, along=self.course), likely)]
        else:
            more = ((0.0, 1.0), (2 * likely.traced, 1.0), (likely.traced, SLOWER))
            others = [self._base(traced, device) for traced, device in more]
        return [self.base, *((graph, base, costs) for costs in self.costs.ends), *others]

    def _base(self, traced: float, device: float = 1.0) -> Base:
        """As it would be without a profiler that lengthens a node of a graph by so many ns, the device up to `device`
        times as slow."""
        if self.step is None:
            return self.graph, self.unchanged, self.costs.likely
        graph = edits.untraced(self.graph.draft(), traced)
        return graph, calibrated(graph, self.step, self.course, device), self.costs.likely

    def predicted(self, chosen: Mapping[str, Edit]) -> float:
        """The median round after these edits together, ns: as is likeliest, of one replay."""
        return self._after(chosen, *self.base)

    def steps(self, chosen: Mapping[str, Edit], predicted: float | None = None) -> list[float]:
        """The median round after these edits together, ns, on each of the bases; the first is not replayed again where
        it is known."""
        first = self.predicted(chosen) if predicted is None else predicted
        return [first, *(self._after(chosen, *base) for base in self.bases[1:])]

    def sites(self, chosen: Mapping[str, Edit]) -> list[tuple[str, float]]:
        """What these edits change, as in an Outcome; nothing is replayed."""
        return _sites(self.graph, edited_by(chosen, self.graph, self.costs.likely))

    @property
    def room(self) -> float:
        """What the band gets to either side, ns."""
        return LEAST_BAND * self.base[1].step + abs(self.unchanged.step - self.recorded)

    def outcome(self, chosen: Mapping[str, Edit], predicted: float | None = None) -> Outcome:
        """Of these edits together; what `predicted` said of them may be given."""
        before = [base.step for _, base, _ in self.bases]
        sites = self.sites(chosen)
        if not sites:
            return Outcome(before[0], before[0], 0.0, 0.0, 0.0, [])
        after = self.steps(chosen, predicted)
        saved = [one - other for one, other in zip(before, after, strict=True)]
        high = min(before[0], max(saved) + self.room)  # no step takes less than nothing
        return Outcome(before[0], after[0], saved[0], min(saved) - self.room, high, sites)

    def _after(self, chosen: Mapping[str, Edit], graph: Graph, base: Replay, costs: Costs) -> float:
        """The median round, ns, at the pace of `base`."""
        after = edited_by(chosen, graph, costs)
        return base.step if after is graph else step_of(after, base.pace, base.stretch, self.course)

    @property
    def _is_open(self) -> bool:
        """Whether the host takes part in some of the bases only."""
        return len({base.pace > 0 for _, base, _ in self.bases}) > 1

    @property
    def basis(self) -> str:
        """What the prediction rests on, in sentences."""
        base = self.base[1]
        if self.step is None:
            host = "The host is as slow as while profiled, its savings are upper bounds: give --unprofiled-tpot"
        elif abs(base.step - self.step) > MISSED * self.step:
            took, asked = show_time(base.step), show_time(self.step)
            host = f"The replay takes {took}, not the unprofiled {asked}: check that time and the accept length"
        elif base.stretch < SHORT:
            took, asked = show_time(replay(self.graph, 0.0).step), show_time(self.step)
            host = f"The device alone takes {took}, the unprofiled step {asked}: check that time and the accept length"
        else:
            host = f"Calibrated to the unprofiled step: the host at {base.pace:.2f} of its recorded time"
            host += "" if base.stretch == 1 else f", the device at {base.stretch:.3f}"
            host += "; whether the device hides the host cannot be told, the band holds both" if self._is_open else ""
        return f"{host}. Costs: {self.costs.source}."


def edited_by(chosen: Mapping[str, Edit], graph: Graph, costs: Costs) -> Graph:
    """After all of them; where kernels are chained already, so are those that edits make."""
    if not chosen:
        return graph
    edited = graph.draft()
    for edit in chosen.values():
        edited = edit(edited, costs)
    if edited.early is graph.early or edits.unchain in chosen.values() or not (graph.node & (graph.gap < 0)).any():
        return edited
    return edits.chain(edited, costs, only_early=True)


def _sites(before: Graph, after: Graph) -> list[tuple[str, float]]:
    """Names of the ops, and sites of the calls, that differ; those calls only of which the waiting does."""
    if after is before:
        return []
    ops = np.any([getattr(before, n) != getattr(after, n) for n in ("duration", "gap", "launch", "gone")], axis=0)
    calls = np.flatnonzero(before.awaits != after.awaits)
    found: Counter[str] = Counter()
    for name, times in _counted(before.name, np.flatnonzero(ops)):
        found[short_name(name)] += times
    for site, times in _counted(before.site, calls):
        found[site] += times
    rounds = max(1, len(before.begins))
    return [(name, count / rounds) for name, count in found.most_common()]


def _counted(text: Text, rows: np.ndarray) -> Iterator[tuple[str, int]]:
    """Each string of these rows and how often it stands there, in the order of their first."""
    codes, first, count = np.unique(text.codes[rows], return_index=True, return_counts=True)
    for i in np.argsort(first).tolist():
        yield str(text.values[codes[i]]), int(count[i])


def asked_for(values: Iterable[str]) -> list[str]:
    """The edits in values of --do: with commas between them, but for one that has a pattern."""
    return [name.strip() for value in values for name in ([value] if "=" in value else value.split(","))]


def chosen(asked: Iterable[str]) -> dict[str, Edit]:
    """Edits by what the user wrote: passes in the order of the ladder, the others in theirs, passes that come last.

    Raises UserError, with what there is, for anything else.
    """
    asked, there = list(asked), passes()
    modules = {name: there[name] for name in there if name in asked}
    late = {name: module for name, module in modules.items() if getattr(module, "predicted_last", False)}
    own = {name: _own(name, there) for name in asked if name not in there}
    early = {name: module.predict for name, module in modules.items() if name not in late}
    return {**early, **own, **{name: module.predict for name, module in late.items()}}


def _own(asked: str, there: Mapping[str, Any]) -> Edit:
    """-pdl, -lateness, wait=REGEX, drop=REGEX, zero=ROLE or ROLE=FACTOR."""
    kind, _, text = asked.partition("=")
    if asked == "-pdl":
        return edits.unchain
    if asked == "-lateness":
        return lambda graph, costs: edits.punctual(graph)
    if kind in ROLES and (factor := _factor(text)) is not None:
        return lambda graph, costs: edits.scale(graph, edits.named(graph, role=f"^{kind}$"), factor, costs)
    if kind == "zero" and text in ROLES:
        return lambda graph, costs: edits.drop(graph, edits.named(graph, role=f"^{text}$"))
    if kind in ("wait", "drop") and text:
        pattern = _pattern(asked, text)
        if kind == "drop":
            return lambda graph, costs: edits.drop(graph, edits.named(graph, pattern))
        return lambda graph, costs: edits.remove_wait(graph, edits.waiting(graph, pattern))
    more = f"-pdl, -lateness, wait=REGEX, drop=REGEX, zero=ROLE, ROLE=FACTOR (of {', '.join(ROLES)})"
    hint = "; one with a pattern takes a --do of its own" if "," in asked else ""
    raise UserError(f"no edit {asked!r}; there are {', '.join(there)}, {more}{hint}.")


def _factor(text: str) -> float | None:
    """A number from 0 to 100; None for anything else."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value <= 100 else None


def _pattern(asked: str, text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise UserError(f"{asked}: not a regular expression ({error}).") from None
    return text


def predictor(view: View, table: Path | None = None, most: int | None = None) -> Predictor:
    """For the counted rounds of a view, or the `most` in the middle. Raises UserError where there are none, and for a
    table that is none."""
    graph = build(view, most)
    return Predictor(graph, reckoning(graph.gpu, table), view.unprofiled_step)


def whatif(trace: Trace, asked: list[str], options: Options = Options(), table: Path | None = None) -> dict[str, Any]:
    """As docs/json.md says. Raises UserError for unknown edits, for a table that is none, and where no step counts."""
    edits_of = chosen(asked)
    found = predictor(view_of(trace, options), table)
    shown = _shown(found, list(edits_of), found.outcome(edits_of))
    idle = [name for name, edit in edits_of.items() if not found.sites({name: edit})] if shown["sites"] else []
    shown["cannot_say"] += [f"{name} by itself finds nothing to change here" for name in idle]
    return shown


def listing(trace: Trace, options: Options = Options(), table: Path | None = None) -> dict[str, Any]:
    """Every pass that finds sites, alone, those that save most first, and all of them together; the critical path of
    the step as it is, ns a round by class, and how much longer the host could take before the step does."""
    found = predictor(view_of(trace, options), table)
    rows = alone(found)
    names = [row["edits"][0] for row in rows]
    together = chosen(names)
    graph, base, _ = found.base
    path = {name: round(ns) for name, ns in critical_path(graph, base).items()}
    slack = host_slack(graph, base)
    more = {"critical_path": path, "host_slack_ns": None if slack is None else round(slack)}
    return {**_shown(found, list(together), found.outcome(together)), "alone": rows, **more}


def helps(view: View) -> dict[str, Any]:
    """For a report: `alone` from a few rounds of the view, with what it rests on; no rows where no decode step counts,
    or one is very long."""
    if view.options.focus != DECODE or not view.n_rounds or view.steps.source == WHOLE:
        return {"rows": [], "basis": "No decode step counts.", "replay_error_pct": None}
    ops = (view.step_of(view.ops.start) >= 0).sum() / view.n_rounds
    if ops > MANY_OPS:
        long = f"A step of {ops:,.0f} ops takes long to replay: ask ling-prof whatif --list."
        return {"rows": [], "basis": long, "replay_error_pct": None}
    found = predictor(view, most=max(1, min(FEW, int(MANY_OPS // ops))))
    rows = [row for row in alone(found) if row["saved_ns"] > 0]
    return {"rows": rows, "basis": found.basis, "replay_error_pct": found.replay_error}


def alone(found: Predictor) -> list[dict[str, Any]]:
    """Each pass that finds sites, those that save most first: {edits, saved_ns, low_ns, high_ns, sites}."""
    rows = [(name, found.outcome({name: edit})) for name, edit in chosen(passes()).items()]
    rows.sort(key=lambda row: -row[1].saved)
    return [{"edits": [name], **_saved(outcome)} for name, outcome in rows if outcome.sites]


def _saved(outcome: Outcome) -> dict[str, Any]:
    sites = [{"site": site, "count": round(count, 2)} for site, count in outcome.sites]
    return {
        "saved_ns": round(outcome.saved),
        "low_ns": round(outcome.low),
        "high_ns": round(outcome.high),
        "sites": sites,
    }


def _shown(found: Predictor, names: list[str], outcome: Outcome) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "trace": found.graph.path,
        "edits": names,
        "recorded_ns": round(found.recorded),
        "replayed_ns": round(found.unchanged.step),
        "replay_error_pct": found.replay_error,
        "step_ns": round(outcome.step),
        "predicted_ns": round(outcome.predicted),
        **_saved(outcome),
        "basis": found.basis,
        "cannot_say": [*found.graph.cannot_say, *([] if outcome.sites else [NOTHING])],
    }

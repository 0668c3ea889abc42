"""What a step would take after some edits: applied together and replayed, never added up; with a low and a high."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from types import ModuleType
from typing import Any

import numpy as np

from ling_prof.errors import UserError
from ling_prof.roles import ROLES
from ling_prof.whatif import edits
from ling_prof.whatif.costs import Costs, Reckoning
from ling_prof.whatif.graph import Graph
from ling_prof.whatif.replay import Replay, calibrated, replay

SCHEMA = "ling-prof.whatif/1"
PASSES = "ling_prof.passes"  # the entry-point group: functions that give name -> module with `predict`
LEAST_BAND = 0.005  # of the step, to either side: two measurements of one program differ by as much
Edit = Callable[[Graph, Costs], Graph]


def passes() -> dict[str, ModuleType]:
    """Every pass that predicts, in the order of the ladder, from all installed packages."""
    found: dict[str, ModuleType] = {}
    for entry in metadata.entry_points(group=PASSES):
        found |= {name: module for name, module in entry.load()().items() if hasattr(module, "predict")}
    return found


@dataclass(frozen=True)
class Outcome:
    """The unedited step, the edited one, what that saves and the ends of it, ns; sites: ops and calls changed a round."""

    step: float
    predicted: float
    saved: float
    low: float
    high: float
    sites: float


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
        return replay(self.graph)

    @cached_property
    def bases(self) -> list[tuple[Graph, Replay, Costs]]:
        """What the edits are applied to: first the likeliest, then what bounds the band."""
        likely, least, most, _ = self.costs
        if self.step is None:
            fastest = replay(self.graph, 0.0)
            return [(self.graph, self.unchanged, cost) for cost in (likely, least, most)] + [
                (self.graph, fastest, cost) for cost in (likely, least, most)
            ]
        graphs = {cost.traced: edits.untraced(self.graph, cost) for cost in (likely, least, most)}
        found = {traced: calibrated(graph, self.step) for traced, graph in graphs.items()}
        return [(graphs[at], found[at], cost) for at in graphs for cost in (likely, least, most)]

    def outcome(self, chosen: Mapping[str, Edit]) -> Outcome:
        """Of these edits together."""
        times = [self._times(chosen, *base) for base in self.bases]
        step, predicted = times[0]
        saved = [before - after for before, after in times]
        room = LEAST_BAND * step + abs(self.unchanged.step - self.recorded)
        edited = _edited(chosen, self.graph, self.costs.likely)
        sites = _changed(self.graph, edited) / max(1, len(self.graph.begins))
        if not sites:
            return Outcome(step, step, 0.0, 0.0, 0.0, 0.0)
        return Outcome(step, predicted, saved[0], min(saved) - room, max(saved) + room, sites)

    def _times(self, chosen: Mapping[str, Edit], graph: Graph, base: Replay, costs: Costs) -> tuple[float, float]:
        edited = _edited(chosen, graph, costs)
        return base.step, base.step if edited is graph else replay(edited, base.pace, base.stretch).step


def _edited(chosen: Mapping[str, Edit], graph: Graph, costs: Costs) -> Graph:
    for edit in chosen.values():
        graph = edit(graph, costs)
    return graph


def _changed(before: Graph, after: Graph) -> int:
    """How many ops and calls differ."""
    if after is before:
        return 0
    ops = [getattr(before, name) != getattr(after, name) for name in ("duration", "gap", "launch", "gone")]
    calls = [getattr(before, name) != getattr(after, name) for name in ("awaits", "lead", "cost")]
    return int(np.any(ops, axis=0).sum() + (np.any(calls, axis=0).sum() if len(before.began) else 0))


def chosen(asked: Iterable[str]) -> dict[str, Edit]:
    """Edits by what the user wrote: names of passes in the order of the ladder, then the others in theirs.

    Raises UserError, with what there is, for anything else.
    """
    asked, there = list(asked), passes()
    modules = {name: there[name] for name in there if name in asked}
    late = {name: module for name, module in modules.items() if getattr(module, "predicted_last", False)}
    ordered = {**{name: module for name, module in modules.items() if name not in late}, **late}
    own = {name: _own(name, there) for name in asked if name not in there}
    return {**{name: module.predict for name, module in ordered.items()}, **own}


def _own(asked: str, there: Mapping[str, Any]) -> Edit:
    """-pdl, wait=REGEX, drop=REGEX or zero=ROLE."""
    kind, _, text = asked.partition("=")
    if asked == "-pdl":
        return edits.unchain
    if kind == "zero" and text in ROLES:
        return lambda graph, costs: edits.drop(graph, edits.named(graph, role=f"^{text}$"))
    if kind in ("wait", "drop") and text:
        pattern = _pattern(asked, text)
        if kind == "drop":
            return lambda graph, costs: edits.drop(graph, edits.named(graph, pattern))
        return lambda graph, costs: edits.remove_wait(graph, edits.waiting(graph, pattern))
    more = f"-pdl, wait=REGEX, drop=REGEX, zero=ROLE (of {', '.join(ROLES)})"
    raise UserError(f"no edit {asked!r}; there are {', '.join(there)}, {more}.")


def _pattern(asked: str, text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise UserError(f"{asked}: not a regular expression ({error}).") from None
    return text

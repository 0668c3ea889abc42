"""The Pass interface and its registry: one optimization is one file in optim/passes/, found by discovery.

A pass module has a docstring, and

    removes                  one phrase: the cost that disappears
    exact                    True: outputs stay bitwise equal; False: it changes rounding
    rung                     its place in the ladder; passes of one rung are switched together
    lowers                   what a recording shows less of: a class of the ledger, a role, "kernels" or "launches"
    find(trace)              DataFrame with COLUMNS: the sites of a recorded trace that it would change
    blocked(engine) -> str   why it cannot be applied here; empty when it can
    apply(engine)            context manager: on inside, undone after, also after an error; `applied` captures anew
    took_effect(engine)      a sentence of proof that it is on. Raises NotOn when it is not
    replaces                 optional: names of passes that it leaves nothing to do
    predict(graph, costs)    optional: gives the draft of the graph of recorded steps (ling_prof.whatif) back as it
                             would be with the pass; predicted_last = True where it acts on what the other passes leave

Importing one imports neither torch nor triton: `find` works where only traces are read.
"""

import importlib
import pkgutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache
from types import ModuleType
from typing import Any

import pandas as pd

from ling_prof.ablation_report import COUNTS
from ling_prof.errors import Missing, UserError
from ling_prof.roles import ROLES
from ling_prof.timeline import CLASSES

COLUMNS = {
    "site": "kernel, range or call",
    "count": "per step",
    "time_ns": "per step: what the edit is about, busy or idle",
    "edit": "what-if transformation, one of EDITS",
}
EDITS = ("remove_wait", "to_graph", "chain", "fuse", "merge", "drop", "scale", "shorten")  # of ling_prof.whatif.edits
NEEDED = ("__doc__", "removes", "rung", "lowers", "find", "blocked", "apply", "took_effect")
SHOWN = (*CLASSES, *ROLES, *COUNTS)  # what `lowers` may name


class NotOn(UserError):
    """A pass that was applied shows no effect."""


def passes() -> dict[str, ModuleType]:
    """Every pass by name, in the order of the ladder. Raises TypeError for a file that breaks the interface."""
    return dict(_registry())


@cache
def _registry() -> dict[str, ModuleType]:
    import optim.passes

    return _ordered({info.name: _checked(info.name) for info in pkgutil.iter_modules(optim.passes.__path__)})


def _ordered(found: dict[str, ModuleType]) -> dict[str, ModuleType]:
    """By rung, then by name. Raises TypeError where a pass replaces one that is not there, or of a later rung."""
    for name, module in found.items():
        for old in getattr(module, "replaces", ()):
            if old not in found:
                raise TypeError(f"optim/passes/{name}.py replaces {old}; there are {', '.join(sorted(found))}")
            if found[old].rung > module.rung:
                raise TypeError(f"optim/passes/{name}.py replaces {old}, whose rung {found[old].rung} is a later one")
    return dict(sorted(found.items(), key=lambda item: (item[1].rung, item[0])))


def _checked(name: str) -> ModuleType:
    module = importlib.import_module(f"optim.passes.{name}")
    lacks = [what for what in NEEDED if not getattr(module, what, None)]
    if lacks or not isinstance(getattr(module, "exact", None), bool):
        raise TypeError(f"optim/passes/{name}.py lacks {', '.join(lacks) or 'exact, True or False'}")
    if module.lowers not in SHOWN:
        raise TypeError(f"optim/passes/{name}.py lowers {module.lowers!r}, none of {', '.join(SHOWN)}")
    return module


def named(names: list[str]) -> dict[str, ModuleType]:
    """The passes of these names, in this order. Raises UserError with the list of valid ones for an unknown name."""
    there = passes()
    if unknown := [name for name in names if name not in there]:
        raise UserError(f"no pass {', '.join(unknown)}; there are {', '.join(there)}.")
    return {name: there[name] for name in names}


def found(trace: Any | None) -> list[dict[str, Any]]:
    """Every pass as plain data; with a trace the sites it would change, or why that cannot be said."""
    rows = []
    for name, module in passes().items():
        row = {"pass": name, "exact": module.exact, "removes": module.removes, "sites": None, "cannot_say": None}
        if trace is not None:
            try:
                row["sites"] = sites(name, trace).to_dict("records")
            except Missing as missing:
                row["cannot_say"] = str(missing)
        rows.append(row)
    return rows


def sites(name: str, trace: Any) -> pd.DataFrame:
    """What a pass would change in a trace. Raises Missing, and TypeError for other columns or an unknown edit."""
    found = passes()[name].find(trace)
    if list(found.columns) != list(COLUMNS):
        raise TypeError(f"optim/passes/{name}.py finds columns {', '.join(found.columns)}, not {', '.join(COLUMNS)}")
    if unknown := set(found["edit"]) - set(EDITS):
        raise TypeError(f"optim/passes/{name}.py edits by {', '.join(sorted(unknown))}, none of {', '.join(EDITS)}")
    return found


def replaced(names: list[str]) -> dict[str, str]:
    """Of these passes those that another one of them leaves nothing to do: name -> which."""
    return {old: new for new, module in named(names).items() for old in getattr(module, "replaces", ()) if old in names}


@contextmanager
def applied(engine: Any, names: list[str], kept: dict[tuple[str, ...], Any] | None = None) -> Iterator[dict[str, str]]:
    """Applies passes, those of lower rungs first; undoes them in reverse, also after an error. Gives name -> proof.

    Requests end at both borders; a pass that another one replaces is left out, and its proof says so. `kept` holds the
    captured forward pass and the proofs of each set of passes, so that coming back to one costs next to nothing.
    Raises UserError for a pass that is blocked here, and NotOn for one without effect.
    """
    idle = replaced(names)
    chosen = {name: module for name, module in passes().items() if name in names and name not in idle}
    with ExitStack() as stack:
        engine.forget()
        stack.callback(engine.forget)
        stack.enter_context(
            exchanged(engine, passes=(*engine.passes, *(name for name in chosen if name not in engine.passes)))
        )
        for name, module in chosen.items():
            if reason := module.blocked(engine):
                raise UserError(f"{name} cannot be applied: {reason}.")
            stack.enter_context(module.apply(engine))
        yield {**_proofs(engine, chosen, kept), **{old: f"idle: {new} takes its place" for old, new in idle.items()}}


def _proofs(engine: Any, chosen: dict[str, ModuleType], kept: dict[tuple[str, ...], Any] | None) -> dict[str, str]:
    key = (str(engine.sampling.temperature), *chosen)
    if kept is not None and key in kept:
        engine._run, engine.logits, proofs = kept[key]
        return proofs
    engine.rehearse()
    engine.capture()
    proofs = {name: module.took_effect(engine) for name, module in chosen.items()}
    if kept is not None:
        kept[key] = engine._run, engine.logits, proofs
    return proofs


@contextmanager
def exchanged(holder: Any, **values: Any) -> Iterator[None]:
    """Sets attributes of `holder`, and sets them back."""
    before = {name: getattr(holder, name) for name in values}
    vars(holder).update(values)
    try:
        yield
    finally:
        vars(holder).update(before)


def once(engine: Any, name: str, make: Callable[[], Any]) -> Any:
    """What a pass derives from the weights: made the first time, kept with the engine, so that switching is cheap."""
    if name not in engine.made:
        engine.made[name] = make()
    return engine.made[name]


class Exchanged:
    """A function of the module `source`, and how often each kernel of that module has been launched since it is there.

    That is the proof: a function may be called and still leave the work to others. `launched` goes on counting outside.
    """

    def __init__(self, function: Callable[..., Any], source: str, launched: Counter[str]):
        self.function, self.source = function, source
        self._launched, self._before = launched, launched.copy()

    def __call__(self, *arguments: Any) -> Any:
        return self.function(*arguments)

    @property
    def kernels(self) -> Counter[str]:
        return self._launched - self._before


def needs_triton(engine: Any) -> str:
    """The `blocked` of a pass whose kernel is Triton's."""
    return "" if engine.has_triton else "its kernel is Triton's, and the engine runs the naive ones"


def operation(
    name: str, module: str, bind: Callable[[Any, ModuleType], Callable[..., Any]] | None = None
) -> tuple[Callable[..., str], Callable[..., Any], Callable[..., str]]:
    """`blocked`, `apply` and `took_effect` of a pass that puts `module`'s kernel in place of one decode operation.

    The kernel has the operation's name, or is what `bind(engine, module)` gives.
    """

    def apply(engine: Any) -> AbstractContextManager:
        from optim.kernels.launch import launched

        found = importlib.import_module(module)
        function = bind(engine, found) if bind else getattr(found, name)
        return exchanged(engine.model.decode_ops, **{name: Exchanged(function, module, launched[module])})

    def took_effect(engine: Any) -> str:
        used = getattr(engine.model.decode_ops, name)
        if not isinstance(used, Exchanged) or used.source != module:
            raise NotOn(f"{name} is not that of {module}.")
        if not used.kernels:
            raise NotOn(f"{name} of {module} has no effect: beside the other passes a decode step launches none of it.")
        listed = ", ".join(f"{kernel} {times} times" for kernel, times in sorted(used.kernels.items()))
        return f"{name} is that of {module}, which launched {listed} while the step was prepared"

    return needs_triton, apply, took_effect

"""The passes that a SGLang server can be switched by: one is one file in optim/sglang/passes/, found by discovery.

A pass module has a docstring, and

    removes                  one phrase: the cost that disappears
    exact                    True: outputs stay bitwise equal; False: it changes rounding
    default                  whether it is on in an unmodified SGLang of version `WRITTEN_FOR`
    took_effect(rank)        a State: whether it is on in this optim.sglang.inside.Rank, and by what that shows

and one or more of

    environment              SGLang's own switch: variable -> its values when off and when on
    arguments                the same of server arguments
    change()                 context manager, in the scheduler's process before the model is built: out of the default
                             state inside, undone after; what was captured meanwhile stays. Raises NotThere

and speculative = True where it acts only while drafts are verified; predict(graph, costs) as in optim.base, where the
engine has no pass of this name that predicts.
"""

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from types import ModuleType
from typing import NamedTuple

from ling_prof.errors import UserError

WRITTEN_FOR = "0.5.19"
NEEDED = {"__doc__": str, "removes": str, "exact": bool, "default": bool}
SWITCHES = ("environment", "arguments", "change")


class State(NamedTuple):
    """on: None where there is nothing to be on or off here, or it cannot be told; evidence: a phrase."""

    on: bool | None
    evidence: str


class NotThere(UserError):
    """SGLang lacks what a pass changes: another version, most likely."""


def passes() -> Mapping[str, ModuleType]:
    """Every pass by name. Raises TypeError for a file that breaks the interface."""
    return _registry()


@cache
def _registry() -> dict[str, ModuleType]:
    import optim.sglang.passes as folder

    names = sorted(info.name for info in pkgutil.iter_modules(folder.__path__))
    return {name: checked(name, importlib.import_module(f"optim.sglang.passes.{name}")) for name in names}


def checked(name: str, module: ModuleType) -> ModuleType:
    """The module. Raises TypeError, naming what is missing or odd."""
    lacks = [what for what, kind in NEEDED.items() if not isinstance(getattr(module, what, None), kind)]
    lacks += [] if callable(getattr(module, "took_effect", None)) else ["took_effect"]
    lacks += [] if any(hasattr(module, switch) for switch in SWITCHES) else [" or ".join(SWITCHES)]
    if lacks:
        raise TypeError(f"optim/sglang/passes/{name}.py lacks {', '.join(lacks)}")
    return module


def rows() -> list[dict[str, object]]:
    """Every pass as plain data."""
    kept = ("exact", "default", "removes")
    return [{"pass": name, **{key: getattr(module, key) for key in kept}} for name, module in passes().items()]


def named(names: list[str], there: Mapping[str, ModuleType] | None = None) -> dict[str, ModuleType]:
    """Those of these names, in this order, out of `there`: all passes, unless given.

    Raises UserError with the list of valid ones for an unknown name.
    """
    there = passes() if there is None else there
    if unknown := [name for name in names if name not in there]:
        raise UserError(f"no pass {', '.join(unknown)} of SGLang; there are {', '.join(there)}.")
    return {name: there[name] for name in names}

"""Changes to SGLang's modules from outside, each a context manager that takes its change back."""

import importlib
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import reduce
from types import ModuleType
from typing import Any

from optim.sglang.registry import NotThere

Make = Callable[[Any], Any]  # what was there -> what is there instead


@contextmanager
def exchanged(target: str, make: Make) -> Iterator[None]:
    """Replaces 'module:name' or 'module:Class.name', in that one place. Raises NotThere where there is none."""
    holder, name = owner(target)
    before = vars(holder).get(name, getattr(holder, name))
    own = name in vars(holder)
    setattr(holder, name, make(before))
    try:
        yield
    finally:
        setattr(holder, name, before) if own else delattr(holder, name)


@contextmanager
def everywhere(target: str, make: Make, leave: Collection[str] = ()) -> Iterator[None]:
    """Replaces 'module:name' also in all modules that have imported it by name, but for those named in `leave`.

    `make` gives an object that nothing else is bound to. Raises NotThere where there is none.
    """
    holder, name = owner(target)
    before = getattr(holder, name)
    after = make(before)
    _rebind(before, after, leave)
    try:
        yield
    finally:
        _rebind(after, before)


def owner(target: str) -> tuple[Any, str]:
    """The module or class that holds a target, and its name there. Raises NotThere."""
    module, _, path = target.partition(":")
    *classes, name = path.split(".")
    try:
        holder = reduce(getattr, classes, importlib.import_module(module))
        getattr(holder, name)
    except (ImportError, AttributeError) as error:
        raise NotThere(f"{module}.{path} is not there ({error})") from None
    return holder, name


def _rebind(old: Any, new: Any, leave: Collection[str] = ()) -> None:
    modules = [one for one in list(sys.modules.values()) if isinstance(one, ModuleType) and one.__name__ not in leave]
    for module in modules:
        for name in [name for name, value in list(vars(module).items()) if value is old]:
            setattr(module, name, new)

"""The operations of the model. Each folder here is one: `naive.py` says what it computes, `triton.py` does it fast.

Both define the same functions with the same parameters; adding an operation is adding a folder.
"""

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

KINDS = ("naive", "triton")
Functions = dict[str, Callable[..., Any]]


def load(kind: str) -> SimpleNamespace:
    """All operations of one kind as one flat namespace: `load("triton").rms_norm(x, weight, eps)`.

    Raises TypeError when a folder's two files differ in functions or names of parameters, or two folders share a name.
    """
    if kind not in KINDS:
        raise ValueError(f"no kernels of kind {kind!r}; there are {', '.join(KINDS)}")
    out: Functions = {}
    for folder in (found for found in pkgutil.iter_modules(__path__) if found.ispkg):
        functions = _functions(importlib.import_module(f"{__name__}.{folder.name}.{kind}"))
        reference = _functions(importlib.import_module(f"{__name__}.{folder.name}.naive"))
        if _signatures(functions) != _signatures(reference):
            raise TypeError(f"optim/kernels/{folder.name}: naive.py and {kind}.py do not define the same functions")
        if twice := out.keys() & functions.keys():
            raise TypeError(f"optim/kernels/{folder.name} defines {', '.join(sorted(twice))} a second time")
        out |= functions
    return SimpleNamespace(**out)


def _functions(module: ModuleType) -> Functions:
    return {name: getattr(module, name) for name in module.__all__}


def _signatures(functions: Functions) -> dict[str, list[str]]:
    return {name: list(inspect.signature(f).parameters) for name, f in functions.items()}

"""`ling_prof.load`, `report` and `diff` are submodules and functions: calling the module calls the function."""

import sys
from collections.abc import Callable
from types import ModuleType


def make_callable(module: str, function: Callable) -> None:
    """Lets `module` be called like its `function`: importing a submodule hides a package attribute of its name."""
    kind = type("CallableModule", (ModuleType,), {"__call__": staticmethod(function)})
    sys.modules[module].__class__ = kind

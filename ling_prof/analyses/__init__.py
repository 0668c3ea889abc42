"""The analyses: one question = one file = one function `rows(view) -> DataFrame`.

Adding a file here is all it takes: it is found by discovery. A module must have a docstring (its first line is the
question), COLUMNS (column -> meaning and unit) and `rows`; one that lacks them fails loudly at import.
"""

import importlib
import pkgutil
from types import ModuleType

import pandas as pd

from ling_prof.view import View


def _load(name: str) -> ModuleType:
    module = importlib.import_module(f"{__name__}.{name}")
    lacks = [what for what in ("__doc__", "COLUMNS", "rows") if not getattr(module, what, None)]
    if lacks:
        raise ImportError(f"analysis {name} lacks {', '.join(lacks)}")
    return module


ANALYSES: dict[str, ModuleType] = {info.name: _load(info.name) for info in pkgutil.iter_modules(__path__)}


def question(name: str) -> str:
    """The first line of an analysis's docstring."""
    return str(ANALYSES[name].__doc__).strip().splitlines()[0]


def run(name: str, view: View) -> pd.DataFrame:
    """The rows of one analysis, with exactly its declared columns; of a view always the same frame: do not write to it.

    May raise `Missing`.
    """
    if name not in view.answers:
        view.answers[name] = _rows(name, view)
    return view.answers[name]


def _rows(name: str, view: View) -> pd.DataFrame:
    frame = ANALYSES[name].rows(view)
    declared = list(ANALYSES[name].COLUMNS)
    if list(frame.columns) != declared:
        raise TypeError(f"analysis {name} returned columns {list(frame.columns)}, declared {declared}")
    return frame

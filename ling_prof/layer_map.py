"""Layers told by another recording: one with graphs off names them, one whose graphs are replayed hides them.

The kernels of a round of both are aligned by name; what is paired has the layer that the other recording names.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pandas as pd

from ling_prof.account import Account, account
from ling_prof.align import align
from ling_prof.analyses import layers
from ling_prof.errors import UserError
from ling_prof.roles import family, same_name
from ling_prof.trace import Trace
from ling_prof.view import Options, View, view_of, views

Keys = tuple[list[str], list[str]]  # names without what compilers vary, and their families
LEAST = 0.5  # of the ops of a round: with fewer paired, it is another model


def named_from(trace: Trace, other: Trace, options: Options = Options()) -> Trace:
    """`trace` with the layers of its counted rounds as `other` names them.

    Raises UserError where `other` has no step or names no layer, or where the two share too few kernels.
    """
    layers_like, found = _told(account(view_of(other, Options()))), np.full(len(trace.gpu), "", object)
    counted = [np.zeros(0, int)]
    for seen in views(trace, options):
        for ops in _rounds(seen):
            counted.append(seen.ops.row[ops])
            found[counted[-1]] = layers_like(_keys(seen, ops))
    rows = np.concatenate(counted)
    share = float((found[rows] != "").mean()) if len(rows) else 0.0
    if share < LEAST:
        said = f"only {100 * share:.0f} % of the kernels of a step have a layer in {other.path}"
        raise UserError(f"{trace.path}: {said}; record the same model for both, the other with graphs off.")
    note = f"{100 * share:.0f} % of the kernels of a step have the layer that {other.path} names"
    return replace(trace, layers=pd.Categorical(found), notes=(*trace.notes, note))


def _told(source: Account) -> Callable[[Keys], np.ndarray]:
    """What gives the kernels of a round, by their keys, the layers of their like in `source`; '' where it names none.

    Rounds of the same kernels are aligned once.
    """
    told = layers.of_ops(source.view)[source.op]
    told = np.where(told == layers.UNNAMED, "", told)
    known: dict[tuple[str, ...], np.ndarray] = {}

    def of(keys: Keys) -> np.ndarray:
        name = tuple(keys[0])
        if name not in known:
            pairs = align(keys, (source.bare_names, source.families))
            like = np.array([j for i, j, _ in pairs if i >= 0])
            known[name] = np.where(like >= 0, told[like], "")
        return known[name]

    return of


def _rounds(seen: View) -> Iterator[np.ndarray]:
    """The ops of each counted round."""
    step = seen.step_of(seen.ops.start)
    number = np.where(step >= 0, seen.rounds[step], -1) if len(seen.chosen) else np.full(len(step), -1)
    yield from (np.flatnonzero(number == i) for i in range(seen.n_rounds))


def _keys(seen: View, ops: np.ndarray) -> Keys:
    names = [seen.ops.name(i) for i in ops]
    return [same_name(name) for name in names], [family(name) for name in names]

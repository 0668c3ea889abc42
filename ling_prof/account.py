"""One step of a recording that stands for the others, and what each of its ops costs."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from ling_prof import intervals as iv
from ling_prof.analyses import run
from ling_prof.report import summary
from ling_prof.roles import ROLES, family, same_name
from ling_prof.timeline import CLASSES
from ling_prof.view import View, require_steps

BATCH = re.compile(r"\bbs=(\d+)|_generation_(\d+)")


@dataclass(frozen=True)
class Account:
    """The round whose wall is the median, of two the shorter.

    summary: of all rounds, as in a report; rows: its ledger rows, one a step; op: index into view.ops, in order of
    start; ledger: (ops, classes) ns.
    """

    view: View
    summary: dict[str, Any]
    rows: pd.DataFrame
    op: np.ndarray
    ledger: np.ndarray

    @property
    def path(self) -> str:
        return self.view.trace.path

    @property
    def phases(self) -> list[str]:
        return [str(phase) for phase in self.rows["phase"]]

    @property
    def gpu(self) -> str | None:
        """The model of the GPU; None where the recording does not name it."""
        name = self.view.trace.device_name(self.view.ops.device)
        return None if name == f"device {self.view.ops.device}" else name

    @property
    def lock(self) -> dict[str, str]:
        """What the recording says of how it was made; not its GPU."""
        trace = self.view.trace
        said = {"format": trace.format, "device_count": trace.gpu["device"].nunique(), **trace.lock}
        if batch := BATCH.search(str(self.rows["name"].iloc[0])):
            said["batch"] = batch[1] or batch[2]
        return {key: str(value) for key, value in said.items()}

    @cached_property
    def start(self) -> np.ndarray:
        """Of each op, ns from the start of the round."""
        return self.view.ops.start[self.op] - int(self.rows["start"].iloc[0])

    @cached_property
    def place(self) -> list[str]:
        """'before' for an op that runs as the round begins, 'after' for one that starts as it ends, else 'inside'."""
        length = int(self.rows["end"].iloc[-1] - self.rows["start"].iloc[0])
        return np.select([self.start < 0, self.start >= length], ["before", "after"], "inside").tolist()

    @cached_property
    def names(self) -> list[str]:
        return self._named(str)

    @cached_property
    def bare_names(self) -> list[str]:
        return self._named(same_name)

    @cached_property
    def families(self) -> list[str]:
        return self._named(family)

    @cached_property
    def roles(self) -> list[str]:
        return [ROLES[i] for i in self.view.ops.role[self.op]]

    def _named(self, by: Callable[[str], str]) -> list[str]:
        names = self.view.ops.names
        codes = names.codes[self.op].astype(np.int64)
        found = {code: by(str(names.categories[code])) for code in iv.distinct(codes)}
        return [found[code] for code in codes]


def account(seen: View) -> Account:
    """The account of a view. Raises UserError, naming the recording, where no step of the focus counts."""
    require_steps(seen)
    said = summary(seen)
    ledger = run("ledger", seen).loc[seen.chosen.index]
    middle = seen.rounds == seen.median_round
    return Account(seen, said, ledger[middle], *_ops(seen, seen.chosen[middle]))


def _ops(seen: View, steps: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """The ops that start in `steps` or own time there, and their (ops, classes) ns."""
    pieces, _ = seen.pieces_in(steps)
    op = iv.distinct(np.r_[pieces.op, np.flatnonzero(seen.step_of(seen.ops.start, steps) >= 0)])
    ledger = np.zeros((len(op), len(CLASSES)), np.int64)
    np.add.at(ledger, (np.searchsorted(op, pieces.op), pieces.cls), pieces.length)
    return op, ledger

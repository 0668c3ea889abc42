"""How far rounding passes move a server's logits from those without them, on the text decoded without them.

The baseline's logits stay in the folder while a distance is missing, so that servers need not be alive together; those
of another server are compared and deleted at once.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ling_prof.errors import UserError
from optim.designs import Player
from optim.sglang.kept import Distance
from optim.sglang.plan import Plan, labelled, modules_of
from optim.sglang.workers import Process
from optim.store import Store

POSITIONS = 128  # at most: 80 MB for a vocabulary of 157,184
ROWS = 16  # compared at once
BASELINE, MADE = "logits-baseline.npy", "logits-made.npy"


def smallest(combinations: Sequence[Player], one: Player) -> Player:
    """The smallest combination that rounds as this one does: what its tokens must be those of."""
    return min((other for other in combinations if _rounding(other) == _rounding(one)), key=len)


def declared(combinations: Sequence[Player]) -> list[Player]:
    """The smallest of each that rounds alike: judged by logits, since their tokens may change."""
    return [one for one in combinations if _rounding(one) and smallest(combinations, one) == one]


def _rounding(one: Player) -> Player:
    """Those of its passes that change rounding."""
    return tuple(name for name, module in modules_of(one).items() if not module.exact)


@dataclass
class Distances:
    """Makes and keeps the distances of a plan, and that of the baseline from itself, whose logits must be finite."""

    plan: Plan
    store: Store
    say: Callable[[str], None] = lambda _: None

    @cached_property
    def declared(self) -> list[Player]:
        """None where tokens prove nothing, and none of the engine, which has weights of its own."""
        skipped = self.plan.pinned or self.plan.has_engine
        return [] if skipped else declared(self.plan.design_made.combinations)

    @property
    def missing(self) -> list[Player]:
        return [one for one in self.declared if self.store.get("distance", labelled(one)) is None]

    def lacks(self, one: Player) -> bool:
        """Whether a server with these passes has to be asked; the baseline while others lack its logits."""
        return one in self.missing if one else bool(self.missing) and not self._baseline.exists()

    def tidy(self) -> None:
        """Deletes logits that are of no use, such as those of another text: call it before and after a run."""
        self._made.unlink(missing_ok=True)
        if not self.missing or self.store.get("text", labelled(())) is None:
            self._baseline.unlink(missing_ok=True)

    def keep(self, one: Player, worker: Process) -> None:
        """Asks what is lacking. Raises UserError, and keeps why, where a server's logits cannot be compared."""
        if self.lacks(one):
            try:
                self._keep(one, worker)
            except UserError as fault:
                self.store.replace("unjudged", labelled(one), str(fault).rstrip("."))
                raise

    @property
    def _baseline(self) -> Path:
        return self.plan.folder.absolute() / BASELINE

    @property
    def _made(self) -> Path:
        return self.plan.folder.absolute() / MADE

    def _keep(self, one: Player, worker: Process) -> None:
        texts = self.store.get("text", labelled(()))
        if texts is None or (one and not self._baseline.exists()):
            why = self.store.get("unjudged", labelled(())) or "it was not asked"
            raise UserError(f"there are no logits without passes ({why})")
        text = texts[0][:POSITIONS]
        with self._forced(worker, text) as made:
            if not one:
                _check_own(made, text)
            found = compared(self._baseline if one else made, made, len(text))
            if not one:
                made.replace(self._baseline)
        self.store.replace("distance", labelled(one), found)
        self.say(f"{labelled(one)}: its logits are {'compared' if one else 'kept'}")

    @contextmanager
    def _forced(self, worker: Process, text: list[int]) -> Iterator[Path]:
        """The logits of a server on a text, in a file that is deleted in the end."""
        try:
            worker.ask("logits", isl=self.plan.isl, text=text, file=str(self._made), seed=self.plan.seed)
            yield self._made
        finally:
            self._made.unlink(missing_ok=True)


def compared(expected: Path, found: Path, positions: int) -> Distance:
    """Two .npy files of logits, (positions, vocab) fp32; no figures where they are not finite.

    Raises UserError for what is no such file, for two vocabularies, and where torch is missing.
    """
    pair = _loaded(expected, positions), _loaded(found, positions)
    if pair[0].shape != pair[1].shape:
        raise UserError(f"logits of {pair[1].shape[1]} tokens are compared with some of {pair[0].shape[1]}")
    if not all(np.isfinite(rows).all() for logits in pair for rows in _blocks(logits)):
        return {"finite": False, "positions": positions, "top1_agreement": None, "kl_mean": None, "kl_max": None}
    kl, agrees = _divergences(*pair)
    figures = {"top1_agreement": float(agrees.mean()), "kl_mean": float(kl.mean()), "kl_max": float(kl.max())}
    return {"finite": True, "positions": positions, **figures}  # type: ignore[typeddict-item]


def _divergences(expected: Any, found: Any) -> tuple[Any, Any]:
    """optim.distance.divergence of all rows: fp64 and bool (positions)."""
    try:
        import torch
    except ImportError:
        raise UserError("torch is missing here, which compares logits") from None
    from optim.distance import divergence

    pairs = zip(_blocks(expected), _blocks(found), strict=True)
    parts = [divergence(*map(torch.from_numpy, pair)) for pair in pairs]
    kl, agrees = zip(*parts, strict=True)
    return torch.cat(kl).numpy(), torch.cat(agrees).numpy()


def _blocks(logits: Any) -> Iterator[Any]:
    return (np.array(logits[at : at + ROWS]) for at in range(0, len(logits), ROWS))


def _loaded(path: Path, positions: int) -> Any:
    try:
        logits = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        raise UserError(f"{path} holds no logits; delete it and run again") from None
    if logits.ndim != 2 or len(logits) != positions or logits.dtype != np.float32:
        raise UserError(f"{path} does not hold {positions} rows of logits; delete it and run again")
    return logits


def _check_own(path: Path, text: list[int]) -> None:
    """Raises UserError where a token of a server's own text was not a likeliest one: its rows are others, then."""
    for at, (row, token) in enumerate(zip(_loaded(path, len(text)), text, strict=True)):
        if not 0 <= token < len(row) or row[token] < row.max():
            raise UserError(f"token {at} of the text without passes is not the likeliest by its own logits")

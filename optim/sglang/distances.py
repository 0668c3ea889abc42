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
from ling_prof.plain_file import sha256
from optim.designs import Player
from optim.sglang.forced import check_likeliest
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
    def needed(self) -> list[Player]:
        """Whose distances: none where tokens prove nothing, and none of the engine, which has weights of its own."""
        skipped = self.plan.pinned or self.plan.has_engine
        return [] if skipped else declared(self.plan.design_made.combinations)

    @property
    def missing(self) -> list[Player]:
        return [one for one in self.needed if self.store.get("distance", labelled(one)) is None]

    def lacks(self, one: Player) -> bool:
        """Whether a server with these passes has to be asked; the baseline while others lack its logits."""
        return one in self.missing if one else bool(self.missing) and not self._baseline.exists()

    def tidy(self) -> None:
        """Deletes logits that are of no use, such as those of another text: call it before and after a run."""
        _delete(self._made)
        if not self.missing or self.store.get("text", labelled(())) is None:
            _delete(self._baseline)

    def keep(self, one: Player, worker: Process) -> None:
        """Asks what is lacking. Raises UserError, and keeps why, where a server's logits cannot be compared."""
        if not self.lacks(one):
            return
        try:
            found = self._compared(one, worker) if one else self._kept(worker)
        except UserError as fault:
            self.store.replace("unjudged", labelled(one), str(fault).rstrip("."))
            raise
        self.store.replace("distance", labelled(one), found)
        self.store.replace("unjudged", labelled(one), "")
        self.say(f"{labelled(one)}: its logits are {'compared' if one else 'kept'}")

    @property
    def _baseline(self) -> Path:
        return self.plan.folder.absolute() / BASELINE

    @property
    def _made(self) -> Path:
        return self.plan.folder.absolute() / MADE

    def _text(self) -> list[int]:
        """What every server has to decode. Raises UserError where the one without passes gave none."""
        if (texts := self.store.get("text", labelled(()))) is None:
            raise self._nothing()
        return texts[0][:POSITIONS]

    def _nothing(self) -> UserError:
        why = self.store.get("unjudged", labelled(())) or "it was not asked"
        return UserError(f"there are no logits without passes ({why})")

    def _kept(self, worker: Process) -> Distance:
        """Keeps the logits of the baseline, which are as near to themselves as can be where they are finite."""
        text = self._text()
        with self._forced(worker, text) as made:
            check_likeliest(made, text, "the text without passes")
            self._made.replace(self._baseline)
            self.store.replace("logits", labelled(()), sha256(self._baseline))
            return _distance(made, 1.0, 0.0, 0.0) if _is_finite(made) else _distance(made)

    def _compared(self, one: Player, worker: Process) -> Distance:
        """With those of the baseline, which are deleted where they are damaged: the next run makes them anew."""
        text = self._text()
        if not self._baseline.exists():
            raise self._nothing()
        try:
            expected = _loaded(self._baseline, len(text))
            if sha256(self._baseline) != self.store.get("logits", labelled(())):
                raise UserError(f"{self._baseline} does not hold the logits that were kept")
        except UserError as fault:
            _delete(self._baseline)
            raise UserError(f"{fault} and is deleted; run again to make it anew") from None
        with self._forced(worker, text) as made:
            return compared(expected, made)

    @contextmanager
    def _forced(self, worker: Process, text: list[int]) -> Iterator[Any]:
        """The logits of a server on a text, of a file that is deleted in the end."""
        try:
            worker.ask("logits", isl=self.plan.isl, text=text, file=str(self._made), seed=self.plan.seed)
            yield _loaded(self._made, len(text))
        finally:
            _delete(self._made)


def _delete(path: Path) -> None:
    """A file that may be there. Raises UserError where that fails."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"{path} cannot be deleted ({error.strerror}); move it away and run again.") from None


def compared(expected: Any, found: Any) -> Distance:
    """Logits, (positions, vocab) fp32 each; no figures where they are not finite.

    Raises UserError for two vocabularies, and where torch is missing.
    """
    if expected.shape != found.shape:
        sizes = f"logits of {found.shape[1]} tokens are compared with some of {expected.shape[1]}"
        raise UserError(f"{sizes}: another model; give another folder")
    if not (_is_finite(expected) and _is_finite(found)):
        return _distance(found)
    kl, agrees = _divergences(expected, found)
    return _distance(found, float(agrees.mean()), float(kl.mean()), float(kl.max()))


def _distance(logits: Any, top1_agreement: Any = None, kl_mean: Any = None, kl_max: Any = None) -> Distance:
    """Without figures where the logits are not finite."""
    figures = {"top1_agreement": top1_agreement, "kl_mean": kl_mean, "kl_max": kl_max}
    return {"finite": kl_mean is not None, "positions": len(logits), **figures}  # type: ignore[typeddict-item]


def _is_finite(logits: Any) -> bool:
    return all(np.isfinite(rows).all() for rows in _blocks(logits))


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
    """Of a .npy file, mapped. Raises UserError for what is no such file of as many rows."""
    try:
        logits = np.lib.format.open_memmap(path, mode="r")
    except Exception:  # a damaged header fails in many ways
        raise UserError(f"{path} holds no logits") from None
    if logits.ndim != 2 or len(logits) != positions or logits.dtype != np.float32:
        raise UserError(f"{path} does not hold {positions} rows of logits")
    return logits

"""The correctness gate: what a set of passes must show before its speed is.

Exact passes keep every greedy token. Rounding passes are declared, with how far their logits move. Both must decode the
same text again after a sampled request: nothing of one request may leak into the next.
"""

from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import torch

from ling_prof.errors import UserError
from optim import base
from optim.engine.generate import Engine
from optim.engine.sample import GREEDY, Sampling

TOKENS = 256
POSITIONS = 1024
SAMPLED = 32  # tokens of the request in between
ROWS = 64  # positions compared at once


@dataclass(frozen=True)
class Verdict:
    """What the gate says of a set of passes, in a sentence and in figures; None where they do not apply.

    tokens: greedy ones compared; first_difference: the number of the first that differs, from 0. top1_agreement: share
    of `positions` with the same likeliest token; kl_mean, kl_max: KL(without || with the passes), nats a position.
    proof: that the passes are on, as they say.
    """

    passes: tuple[str, ...]
    verdict: str
    ok: bool
    tokens: int | None = None
    first_difference: int | None = None
    top1_agreement: float | None = None
    kl_mean: float | None = None
    kl_max: float | None = None
    positions: int | None = None
    proof: str = ""

    def row(self) -> Any:
        """As `ling_prof.ablation_report.Gate`."""
        row = {**asdict(self), "passes": list(self.passes)}
        del row["proof"]
        return row


class Gate:
    """Judges sets of passes against the engine as it is now, on one prompt.

    `tokens` and `positions` are lowered to what the engine's cache has room for.
    """

    def __init__(self, engine: Engine, prompt: list[int], tokens: int = TOKENS, positions: int = POSITIONS):
        room = engine.cache.capacity - len(prompt)
        self.engine, self.prompt = engine, prompt
        self.tokens, self.positions = min(tokens, room), min(positions, room)

    def release(self) -> None:
        """Gives the memory of the logits back; they are made anew when needed."""
        vars(self).pop("logits", None)

    @cached_property
    def text(self) -> list[int]:
        """The greedy tokens without passes: those compared, and those the logits are compared on."""
        with base.applied(self.engine, []):
            return decode(self.engine, self.prompt, max(self.tokens, self.positions))

    @cached_property
    def logits(self) -> torch.Tensor:
        """(positions, vocab) fp32 after each token of the text, without passes."""
        text = self.text[: self.positions]
        found = torch.empty(self.positions, self.engine.c.vocab, device=self.engine.token.device)
        with base.applied(self.engine, []):
            self.engine.prefill(self.prompt)
            for row, logits in zip(found, self.engine.score(text), strict=True):
                row.copy_(logits)
        return found

    def judge(self, names: list[str]) -> Verdict:
        """A pass that cannot be applied or has no effect fails, too: the sentence that says so is the verdict."""
        exact = is_exact(names)
        _ = self.text if exact else self.logits  # made before the passes are on
        try:
            with base.applied(self.engine, names) as proofs:
                return replace(self._judge(tuple(names), exact), proof="; ".join(proofs.values()))
        except UserError as fault:
            return Verdict(tuple(names), str(fault), ok=False)

    def _judge(self, names: tuple[str, ...], exact: bool) -> Verdict:
        first = decode(self.engine, self.prompt, self.tokens)
        at = first_difference(first, self.text) if exact else None
        if at is not None:
            said = f"token {at} is {first[at]}, without the passes {self.text[at]}"
            return Verdict(names, said, False, self.tokens, at)
        decode(self.engine, self.prompt, min(SAMPLED, self.tokens), Sampling(1.0, seed=1))
        again = decode(self.engine, self.prompt, self.tokens)
        at = first_difference(again, first)
        if at is not None:
            said = f"token {at} is {again[at]} after a sampled request, {first[at]} before it"
            return Verdict(names, said, False, self.tokens, at)
        if exact:
            return Verdict(names, f"{self.tokens} tokens equal, again after a sampled request", True, self.tokens)
        return self._rounding(names)

    def _rounding(self, names: tuple[str, ...]) -> Verdict:
        kl, agrees = self._distances()
        if not kl.isfinite().all():
            return Verdict(names, "the logits are not finite", False, self.tokens, positions=self.positions)
        agreement, mean, most = agrees.double().mean().item(), kl.mean().item(), kl.max().item()
        said = (
            f"rounding, declared: top-1 equal at {100 * agreement:.2f} % of {self.positions} positions, KL {mean:.1e}"
        )
        return Verdict(names, said, True, self.tokens, None, agreement, mean, most, self.positions)

    def _distances(self) -> tuple[torch.Tensor, torch.Tensor]:
        """At each position KL in fp64, and whether the likeliest token is the same: (positions) both."""
        rows = torch.empty(ROWS, self.engine.c.vocab, device=self.logits.device)
        self.engine.prefill(self.prompt)
        scored = self.engine.score(self.text[: self.positions])
        parts = []
        for expected in self.logits.split(ROWS):
            found = rows[: len(expected)]
            for row in found:
                row.copy_(next(scored))
            parts.append(divergence(expected, found))
        kl, agrees = zip(*parts, strict=True)
        return torch.cat(kl), torch.cat(agrees)


def is_exact(names: list[str] | tuple[str, ...]) -> bool:
    """Whether every pass of the set keeps outputs bitwise equal."""
    return all(module.exact for module in base.named(list(names)).values())


def decode(engine: Engine, prompt: list[int], tokens: int, sampling: Sampling = GREEDY) -> list[int]:
    """`tokens` new tokens, whatever they are: also beyond the end of the text."""
    return [engine.prefill(prompt, sampling), *(engine.step() for _ in range(tokens - 1))]


def first_difference(found: list[int], expected: list[int]) -> int | None:
    """The first index at which they differ, up to the shorter one's end."""
    return next((i for i, (x, y) in enumerate(zip(found, expected, strict=False)) if x != y), None)


def divergence(expected: torch.Tensor, found: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits (N, vocab) fp32 each -> KL(expected || found) (N) fp64, and whether the largest is the same one (N)."""
    p, q = (logits.double().log_softmax(-1) for logits in (expected, found))
    return (p.exp() * (p - q)).sum(-1).clamp(min=0), expected.argmax(-1) == found.argmax(-1)

"""The correctness gate: what a set of passes must show before its speed is.

Exact passes keep every greedy token, also beside rounding ones: there those of the rounding ones alone. Rounding passes
are declared: how far their logits move, those of an fp32 twin, and halves of layers (optim.witness) has its bounds, and
the token is always a likeliest one. All must decode the same text again after a sampled request: nothing of one request
may leak into the next.
"""

import math
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import torch

from ling_prof.errors import UserError
from optim import base
from optim.distance import NOT_FINITE, divergence, first_difference, within
from optim.engine.generate import Engine
from optim.engine.sample import GREEDY, Sampling
from optim.witness import MOST_HALF, MOST_TWIN, STEPS, Halves, Twin

TOKENS = 256
POSITIONS = 1024
SAMPLED = 32  # tokens of the request in between
ROWS = 64  # positions compared at once


@dataclass(frozen=True)
class Verdict:
    """What the gate says of a set of passes, in a sentence and in figures; None where they do not apply.

    tokens: greedy ones compared; first_difference: the number of the first that differs, from 0. top1_agreement: share
    of `positions` with the same likeliest token; kl_mean, kl_max: KL(without || with the passes), nats a position.
    twin_error, half_error: optim.witness, relative. proof: that the passes are on, as they say.
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
    twin_error: float | None = None
    half_error: float | None = None
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
        self.texts: dict[tuple[str, ...], list[int]] = {}  # by set of rounding passes
        self.halves = Halves(engine, prompt)

    def release(self) -> None:
        """Gives memory back; what was in it is made anew when needed."""
        self.halves.kept.clear()
        for name in ("logits", "twin"):
            vars(self).pop(name, None)

    @cached_property
    def twin(self) -> Twin:
        return Twin(self.engine)

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
        rounding = rounding_of(names)
        _ = (self.logits, self.twin) if rounding else self.text  # made before the passes are on
        try:
            expected = None if names and rounding == tuple(names) else self._expected(rounding)
            with base.applied(self.engine, names) as proofs:
                found = replace(self._judge(tuple(names), rounding, expected), proof="; ".join(proofs.values()))
            return self._witnessed(found) if rounding and found.ok else found
        except Exception as fault:
            return Verdict(tuple(names), refusal(fault), ok=False)

    def _expected(self, rounding: tuple[str, ...]) -> list[int]:
        """The greedy tokens with these passes alone, to which exact ones must add nothing."""
        if not rounding:
            return self.text
        if rounding not in self.texts:
            with base.applied(self.engine, list(rounding)):
                self.texts[rounding] = decode(self.engine, self.prompt, self.tokens)
        return self.texts[rounding]

    def _judge(self, names: tuple[str, ...], rounding: tuple[str, ...], expected: list[int] | None) -> Verdict:
        first = decode(self.engine, self.prompt, self.tokens)
        if expected is None:
            expected = self.texts[names] = first
        without = "with the rounding passes alone {}" if rounding else "without the passes {}"
        if fault := self._differing(names, first, expected, f"token {{}} is {{}}, {without}"):
            return fault
        decode(self.engine, self.prompt, min(SAMPLED, self.tokens), Sampling(1.0, seed=1))
        again = decode(self.engine, self.prompt, self.tokens)
        if fault := self._differing(names, again, first, "token {} is {} after a sampled request, {} before it"):
            return fault
        if rounding:
            return self._rounding(names)
        return Verdict(names, f"{self.tokens} tokens equal, again after a sampled request", True, self.tokens)

    def _differing(self, names: tuple[str, ...], found: list[int], expected: list[int], said: str) -> Verdict | None:
        at = first_difference(found, expected)
        return None if at is None else Verdict(names, said.format(at, found[at], expected[at]), False, self.tokens, at)

    def _rounding(self, names: tuple[str, ...]) -> Verdict:
        kl, agrees, wrong = self._distances()
        if not kl.isfinite().all():
            return Verdict(names, NOT_FINITE, False, self.tokens, positions=self.positions)
        if wrong.any():
            said = f"token {int(wrong.int().argmax()) + 1} of a text it is given is not the likeliest by its own logits"
            return Verdict(names, said, False, self.tokens, positions=self.positions)
        agreement, mean, most = agrees.double().mean().item(), kl.mean().item(), kl.max().item()
        near, said = within(agreement, mean, most, self.positions, "the engine")
        return Verdict(names, said, near, self.tokens, None, agreement, mean, most, self.positions)

    def _witnessed(self, found: Verdict) -> Verdict:
        """The verdict with what the witnesses say: each judges the whole set, but for what fp32 blocks of it."""
        judged = self.twin.judges(found.passes)
        twin = None if is_exact(judged) else self.twin.distance(judged)
        half = self.halves.distance(found.passes, self.text[:STEPS])
        without = ", ".join(name for name in found.passes if name not in judged)
        error = "none in fp32" if twin is None else f"{twin:.1e}{without and f' without {without}'}"
        near = half <= MOST_HALF and (twin is None or twin <= MOST_TWIN)
        wrong = f": more than rounding moves them (at most {MOST_TWIN:g}, {MOST_HALF:g})"
        said = f"{found.verdict}, fp32 twin {error}, half layer {half:.1e}{'' if near else wrong}"
        return replace(found, verdict=said, ok=near, twin_error=_figure(twin), half_error=_figure(half))

    def _distances(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """At each position KL in fp64, whether the likeliest token is the same, and whether it is not the one taken."""
        rows = torch.empty(ROWS, self.engine.c.vocab, device=self.logits.device)
        taken = torch.empty(ROWS, 1, dtype=torch.int64, device=self.logits.device)
        self.engine.prefill(self.prompt)
        scored = self.engine.score(self.text[: self.positions])
        parts = []
        for expected in self.logits.split(ROWS):
            found = rows[: len(expected)]
            for row, token in zip(found, taken, strict=False):
                row.copy_(next(scored))
                token.copy_(self.engine.token)
            wrong = found.gather(1, taken[: len(found)])[:, 0] < found.amax(1)
            parts.append((*divergence(expected, found), wrong))
        kl, agrees, wrongs = zip(*parts, strict=True)
        return torch.cat(kl), torch.cat(agrees), torch.cat(wrongs)


def _figure(error: float | None) -> float | None:
    """What a report can hold."""
    return error if error is not None and math.isfinite(error) else None


def is_exact(names: list[str] | tuple[str, ...]) -> bool:
    """Whether every pass of the set keeps outputs bitwise equal."""
    return all(module.exact for module in base.named(list(names)).values())


def rounding_of(names: list[str] | tuple[str, ...]) -> tuple[str, ...]:
    """Those of the set that change rounding and are not replaced by another one of it."""
    idle = base.replaced(list(names))
    return tuple(name for name in names if not is_exact([name]) and name not in idle)


class Passing(str):
    """A refusal that may be over when it is tried again: not to be kept."""


def refusal(fault: Exception) -> str:
    """Why a set of passes cannot run here, in a sentence; any fault that is not of this kind is raised again."""
    if isinstance(fault, UserError):
        return str(fault)
    name, said = type(fault).__name__, " ".join(str(fault).split())
    sentence = f"the GPU has too little for it ({name}: {said})"
    if isinstance(fault, torch.cuda.OutOfMemoryError):
        return Passing(sentence)
    if name == "OutOfResources" or "out of resource" in said.lower():
        return sentence
    raise fault


def decode(engine: Engine, prompt: list[int], tokens: int, sampling: Sampling = GREEDY) -> list[int]:
    """`tokens` new tokens, whatever they are: also beyond the end of the text."""
    return [engine.prefill(prompt, sampling), *(engine.step() for _ in range(tokens - 1))]

"""Whether passes only round: two looks at them that tell rounding from a fault.

The logits of a deep bf16 model cannot: rounding moves them as far as a missing expert does. A small fp32 model's are
moved by 1e-6 of their size (1e-5 where every operation is off by as much), and by 0.17 to 0.5 where one is left out or
done wrong. Half a layer that is fed the same is moved by 8e-3 in bf16, and by 0.13 to 1 where it is wrong. Figures of
nano, the last two also of 8 layers with 128 experts, by the passes and sabotages of tests/test_gate.py; the bounds lie
between.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from optim import base
from optim.engine import weights
from optim.engine.config import NANO, Config
from optim.engine.generate import Engine

MOST_TWIN = 1e-4
MOST_HALF = 0.05
SEED = 0
CONTEXTS = (5, 300)  # tokens before the twin's first step: each counts in the one, attention is split in the other
TWIN_STEPS = 32
SHORT = 8  # the same of the engine; the other is its prompt
STEPS = 16
BEGINS = ("norm_linears", "moe", "head")  # operations with which a half of a layer begins, or the head


class Twin:
    """A small fp32 model with the engine's architecture, device and kind of kernels.

    Weights and tokens are drawn on the CPU, so that they are the same on every machine: by a seed with which no two
    experts are nearly equal where the router must choose.
    """

    def __init__(self, engine: Engine):
        c, dice = small(engine.c), torch.Generator().manual_seed(SEED)
        w = weights.drawn(c, dice, torch.float32, str(engine.token.device))
        kind = "triton" if engine.has_triton else "naive"
        self.engine = Engine(c, w, max(CONTEXTS) + TWIN_STEPS, kind, engine.use_graph)
        self.tokens = torch.randint(c.vocab, (max(CONTEXTS) + TWIN_STEPS,), generator=dice).tolist()

    def judges(self, names: Iterable[str]) -> list[str]:
        """Those of them that it can have: a pass that only narrows numbers is blocked in fp32."""
        return [name for name, one in base.named(list(names)).items() if one.exact or not one.blocked(self.engine)]

    def distance(self, names: Iterable[str]) -> float:
        """The largest relative error of its centred logits with these passes, at any step."""
        expected = self.logits
        with base.applied(self.engine, list(names)):
            return apart(self._scored(), expected).max().item()

    @cached_property
    def logits(self) -> torch.Tensor:
        """(contexts * steps, vocab) without passes."""
        with base.applied(self.engine, []):
            return self._scored()

    def _scored(self) -> torch.Tensor:
        rows = []
        for context in CONTEXTS:
            self.engine.prefill(self.tokens[:context])
            rows += [row.clone() for row in self.engine.score(self.tokens[context : context + TWIN_STEPS])]
        return centred(torch.stack(rows))


def small(c: Config) -> Config:
    """A nano model with the optional parts that `c` has."""
    q_lora = None if c.q_lora is None else NANO.q_lora
    parts: dict[str, Any] = {"rope_theta": c.rope_theta, "head_gate": c.head_gate, "gate_bound": c.gate_bound}
    return replace(NANO, name=f"{c.name}'s twin", q_lora=q_lora, **parts)


@dataclass
class Course:
    """Some steps of a request. logits: (steps, vocab), centred.

    given: what halves of layers and the head were given, in order: branch and stream, (1, hidden) each.
    """

    given: list[tuple[torch.Tensor, torch.Tensor | None]]
    logits: torch.Tensor

    @property
    def rows(self) -> torch.Tensor:
        """(steps, what is given in each, hidden)."""
        flat = [one for pair in self.given for one in pair if one is not None]
        return torch.stack(flat).view(len(self.logits), -1, flat[0].shape[-1])


def course(engine: Engine, tokens: list[int], fed: Course | None = None) -> Course:
    """Takes the request on by these tokens, kernel by kernel; each half is given what it was in `fed`, if there is one.

    It goes on so until it is captured anew.
    """
    given: list[tuple[torch.Tensor, torch.Tensor | None]] = []

    def watched(begin: Callable[..., Any]) -> Callable[..., Any]:
        def call(x, residual, *rest):
            given.append((x.clone(), None if residual is None else residual.clone()))
            return begin(*(fed.given[len(given) - 1] if fed else (x, residual)), *rest)

        return call

    ops = engine.model.decode_ops
    watches = {name: watched(getattr(ops, name)) for name in BEGINS}
    with base.exchanged(engine, use_graph=False), base.exchanged(ops, **watches):
        engine.capture()
        logits = [row.clone() for row in engine.score(tokens)]
    return Course(given, centred(torch.stack(logits)))


def distance(found: Course, fed: Course) -> float:
    """How far the half that differs most, or the head, lies from where it was: relative, the median over the steps.

    The median, since a router that rounds differently may now and then choose another expert.
    """
    errors = torch.cat([apart(found.rows, fed.rows), apart(found.logits, fed.logits)[:, None]], 1)
    return errors.median(0).values.max().item()


class Halves:
    """The engine's own layers, each half fed what it is fed without passes: early in `prompt`, and after it."""

    def __init__(self, engine: Engine, prompt: list[int]):
        self.engine, self.prompts = engine, (prompt[:SHORT], prompt)
        self.kept: dict[tuple[str, ...], Any] = {}

    def distance(self, names: Iterable[str], tokens: list[int]) -> float:
        """The larger one of both places; steps take `tokens`, whatever the model says."""
        kept: dict[tuple[str, ...], Any] = {}
        found = [self._distance(list(names), prompt, tokens, kept) for prompt in self.prompts]
        return torch.tensor(found, dtype=torch.float64).max().item()  # NaN, if one is

    def _distance(self, names: list[str], prompt: list[int], tokens: list[int], kept: dict[Any, Any]) -> float:
        """Both begin from one state: passes that change weights change a prefill, too."""
        with base.applied(self.engine, [], self.kept):
            self.engine.prefill(prompt)
            saved = self.engine.save()
            fed = course(self.engine, tokens)
        with base.applied(self.engine, names, kept):
            self.engine.restore(saved)
            return distance(course(self.engine, tokens, fed), fed)


def apart(found: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """(..., n) each -> the length of their difference over that of the expected one (...), fp64."""
    found, expected = found.double(), expected.double()
    return (found - expected).norm(dim=-1) / expected.norm(dim=-1).clamp(min=torch.finfo(torch.float64).tiny)


def centred(logits: torch.Tensor) -> torch.Tensor:
    """What of (..., vocab) says anything: without the mean."""
    return logits - logits.mean(-1, keepdim=True)

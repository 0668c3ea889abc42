"""The engine: one request, its prompt in chunks, then one token a step.

A decode step is what serving engines did before they were tuned for one request: the host reads the length back from
the device, refills the metadata kernel by kernel, launches the forward pass, and reads the token back to see whether
to stop.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from ling_prof.errors import UserError
from optim import kernels
from optim.engine.cache import Cache, Metadata
from optim.engine.config import Config
from optim.engine.graph import Edge, Graph
from optim.engine.marks import mark
from optim.engine.model import Model
from optim.engine.sample import GREEDY, Sampling, sample
from optim.kernels.kda.naive import LEAST_DECAY, kda_chunk

CHUNK = 8192  # prompt tokens a forward pass
BLOCK = 16  # the least side of a matrix product in Triton


@dataclass(frozen=True)
class Saved:
    """Where a request stood. The latents before it stay in the cache: later steps only add to them."""

    token: torch.Tensor
    seen: torch.Tensor
    drawn: torch.Tensor
    cache: tuple[torch.Tensor, ...]
    steps: int
    prompt: int


class Engine:
    """Decodes with `weights` (as weights.build makes them) a request of up to `capacity` tokens, prompt included.

    `kind`: the kernels, "naive" or "triton"; default triton on a GPU. `graph`: replay the forward pass as a CUDA graph,
    where there is a GPU and the kernels are Triton's. The head, like the routers, is kept in fp32.

    What may be exchanged from outside: `w`, `model.decode_ops`, `use_graph`, `seam` (how the metadata is refilled),
    `count` (how a step is added to `seen`) and `advance` (how a step is launched and its token learnt); call `capture`
    after a change of what a graph holds.
    """

    def __init__(
        self, c: Config, weights: SimpleNamespace, capacity: int, kind: str | None = None, graph: bool = True
    ) -> None:
        device = weights.embed.device
        kind = kind or ("triton" if device.type == "cuda" else "naive")
        self.c = c
        self.w = SimpleNamespace(**vars(weights) | {"head": weights.head.float()})
        self.cache = Cache(c, capacity, weights.embed.dtype, str(device))
        self.meta = Metadata(self.cache)
        self.model = Model(c, self.w, self.cache, _kernels(c, kind))
        self.token = torch.zeros(1, dtype=torch.int64, device=device)
        self.seen = torch.zeros(1, dtype=torch.int64, device=device)  # tokens whose states the cache holds
        self.logits = torch.zeros(0, device=device)  # (vocab) fp32 of the last step
        self.generator = torch.Generator(device)
        self.sampling = GREEDY
        self.has_triton = kind == "triton"
        self.can_graph = device.type == "cuda" and self.has_triton
        self.use_graph = graph and self.can_graph
        self.seam: Callable[[int], None] = lambda seen: self.meta.refill(self.cache, seen)
        self.advance: Callable[[], int] = self._advance
        self.count: Callable[[], object] = lambda: self.seen.add_(1)
        self._run: Callable[[], None] | None = None
        self.made: dict[str, Any] = {}  # what passes derive from the weights, once
        self.passes = ("cuda_graph",) if self.use_graph else ()
        self.prompt_tokens = 0
        self.prompts = 0
        self.request = 0  # counts prompts and returns to what was saved: steps do not simply go on
        self.steps: int | None = None  # since the prompt; None before the first

    @torch.inference_mode()
    def capture(self) -> None:
        """Prepares the forward pass of a decode step anew: after a change of kernels, weights or sampling."""
        self._run = None
        if not self.use_graph:
            self._run = self._forward
            return
        with self._on_scratch():
            self._run = Graph(self._forward, self.generator)

    @torch.inference_mode()
    def rehearse(self) -> None:
        """Runs the forward pass of a decode step once; a request goes on as if nothing were."""
        with self._on_scratch():
            self._forward()

    @contextmanager
    def _on_scratch(self) -> Iterator[None]:
        """Steps taken inside leave the request as it is, also after an error."""
        token, seen, drawn = self.token.clone(), self.seen.clone(), self.generator.get_state()
        self.meta.park(self.cache)
        try:
            yield
        finally:
            self.meta.leave()
            self.token.copy_(token)
            self.seen.copy_(seen)
            self.generator.set_state(drawn)

    def replay(self) -> None:
        """Runs the forward pass again as it was prepared, whatever the request: for timing it alone."""
        if self._run is None:
            self.capture()
        assert self._run is not None
        self._run()

    @property
    def captured(self) -> bool:
        return isinstance(self._run, Graph)

    def graph_edges(self) -> list[Edge]:
        """Edges of the captured forward pass."""
        assert isinstance(self._run, Graph)
        return self._run.edges()

    def forget(self) -> None:
        """Drops what was captured and the request: nothing of either outlives a change from outside."""
        self._run, self.steps = None, None

    @torch.inference_mode()
    def prefill(self, prompt: list[int], sampling: Sampling = GREEDY) -> int:
        """Starts a request: reads the prompt, forgetting the one before -> its first new token.

        Raises UserError for an empty prompt, ids outside the vocabulary, one that leaves no room to decode, and for
        weights that lead to NaN.
        """
        self._check(prompt)
        self.steps = None
        self._take(sampling)
        self.cache.clear()
        tokens = torch.tensor(prompt, device=self.token.device)
        with mark("prefill_step_0"):
            for first in range(0, len(prompt), CHUNK):
                logits = self.model.prefill(tokens[first : first + CHUNK], first)
            if not logits.isfinite().all():
                raise UserError(f"{self.c.name} gives no finite numbers; its weights hold NaN or infinite ones.")
            self.token.copy_(sample(logits, self.sampling, self.generator))
            self.seen.fill_(len(prompt))
            self.prompt_tokens, self.steps = len(prompt), 0
            self.prompts, self.request = self.prompts + 1, self.request + 1
            return int(self.token)

    @torch.inference_mode()
    def step(self) -> int:
        """Decodes one token -> its id. Raises UserError before the first prompt, and when the cache is full."""
        steps = self._steps_so_far()
        with mark(f"decode_step_{steps + 1}"):
            token = self.advance()
        self.steps = steps + 1
        return token

    def stream(self, prompt: list[int], most: int, sampling: Sampling = GREEDY) -> Iterator[int]:
        """Up to `most` new tokens, one by one; ends after the model's end-of-text token."""
        for number in range(most):
            token = self.step() if number else self.prefill(prompt, sampling)
            yield token
            if token == self.c.eos:
                return

    def save(self) -> Saved:
        """The request as it stands, for `restore`. Raises UserError where there is none, or the device runs ahead."""
        steps = self._steps_in_step()
        state = self.generator.get_state()
        return Saved(self.token.clone(), self.seen.clone(), state, self.cache.saved(), steps, self.prompts)

    @torch.inference_mode()
    def restore(self, saved: Saved) -> None:
        """Goes on from there. Only while the prompt is the same: what it left of latents is not in `saved`.

        Raises UserError for another request's.
        """
        if saved.prompt != self.prompts:
            raise UserError("what was saved belongs to an earlier prompt; save again after this one.")
        self.token.copy_(saved.token)
        self.seen.copy_(saved.seen)
        self.generator.set_state(saved.drawn)
        self.cache.restore(saved.cache)
        self.steps, self.request = saved.steps, self.request + 1

    @torch.inference_mode()
    def score(self, tokens: Iterable[int]) -> Iterator[torch.Tensor]:
        """Decodes these tokens, whatever the model says -> after each the logits (vocab) fp32, valid until the next.

        Raises UserError as `step` does.
        """
        steps = self._steps_in_step()
        for token in tokens:
            self.token.fill_(token)
            self.launch(self.prompt_tokens + steps)
            self.steps = steps = steps + 1
            yield self.logits

    def _steps_in_step(self) -> int:
        """Steps so far, of a device that is no further than the host knows."""
        steps = self._steps_so_far()
        if int(self.seen) != self.prompt_tokens + steps:
            raise UserError("the device is ahead of the host; prompt again, or leave host_run_ahead out.")
        return steps

    def _steps_so_far(self) -> int:
        if self.steps is None:
            raise UserError("there is no request to decode; give a prompt to prefill first.")
        return self.steps

    def _advance(self) -> int:
        """The host in the loop: it reads the length before the launch and the token after it."""
        self.launch(self._read_length())
        return int(self.token)

    def _read_length(self) -> int:
        """Apart, so that stacks in a recording tell this read-back from that of the token."""
        return int(self.seen)

    def launch(self, seen: int) -> None:
        """Enqueues the forward pass for the token after the first `seen`. Raises UserError when the cache is full."""
        if seen >= self.cache.capacity:
            raise UserError(f"the request fills its {self.cache.capacity} tokens; open the engine with more.")
        if self._run is None:
            self.capture()
        with mark("seam"):
            self.seam(seen)
        self.replay()

    def _forward(self) -> None:
        self.logits, best = self.model.decode(self.token, self.meta)
        with mark("sample"):
            if best is not self.token or self.sampling.temperature:
                self.token.copy_(sample(self.logits, self.sampling, self.generator))
            self.count()

    def _take(self, sampling: Sampling) -> None:
        """What is captured depends on the temperature; the seed lives in the generator."""
        self.generator.manual_seed(sampling.seed)
        if sampling.temperature != self.sampling.temperature:
            self._run = None
        self.sampling = sampling

    def _check(self, prompt: list[int]) -> None:
        if not prompt:
            raise UserError("the prompt is empty; give at least one token.")
        if wrong := [t for t in prompt if not 0 <= t < self.c.vocab]:
            raise UserError(f"token {wrong[0]} is not in the vocabulary of {self.c.name} (0 to {self.c.vocab - 1}).")
        if len(prompt) >= self.cache.capacity:
            raise UserError(f"a prompt of {len(prompt)} tokens leaves no room in {self.cache.capacity}.")


def _kernels(c: Config, kind: str) -> SimpleNamespace:
    """The operations for this model. Raises UserError for sizes that Triton's blocks cannot have."""
    ops = kernels.load(kind)
    if kind == "naive":
        return ops
    least = {"kda_dim": BLOCK, "kv_lora": BLOCK, "rope": BLOCK, "experts": 1, "groups": 1}
    sizes = {name: getattr(c, name) for name in least}
    if odd := [f"{name} {size}" for name, size in sizes.items() if size & (size - 1) or size < least[name]]:
        raise UserError(f"{c.name}: the Triton kernels need powers of two, no {', '.join(odd)}; take kind='naive'.")
    if c.gate_bound is None or c.gate_bound < LEAST_DECAY:
        ops.kda_chunk = kda_chunk
    return ops

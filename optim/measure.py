"""The protocol: what a token costs under each combination of passes, on the host's clock and without a profiler.

A request is cut into windows of a few dozen tokens. In each, every combination, in an order drawn anew, decodes the
same tokens from the same saved state; the base engine decodes them last, so that the next window begins from what it
left. What drifts, such as clocks or the length of the context, is thus shared by all combinations of a window.
"""

import gc
import random
import time
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ling_prof.errors import UserError
from optim import base
from optim.engine.generate import Engine, Saved
from optim.engine.graph import Graph
from optim.gate import first_difference, is_exact, refusal

WARM_UP = 4  # steps of a visit that are dropped
AGAIN = -1  # the number of the baseline's second visit to a window: the A/A pair
RESAMPLES = 1000
Passes = tuple[str, ...]
Visit = tuple[float, list[int]] | str  # ns per token and tokens, or why there are none
Progress = Callable[[float], None]


@dataclass
class Window:
    """times: ns per token by the number of the combination, or AGAIN; voids: why another has none, in a sentence."""

    number: int
    times: dict[int, float] = field(default_factory=dict)
    voids: dict[int, str] = field(default_factory=dict)


@dataclass
class Protocol:
    """`count` windows of `steps` tokens of the request that `prompt` starts; combinations[0] is the baseline, ().

    The engine needs room for the prompt and count * steps + WARM_UP + 1 tokens: run-ahead is one step further.
    """

    engine: Engine
    prompt: list[int]
    combinations: Sequence[Passes]
    count: int
    steps: int
    seed: int = 0
    kept: dict[Passes, Any] = field(default_factory=dict)

    def windows(
        self, done: Set[int] = frozenset(), void: Set[int] = frozenset(), progress: Progress = lambda _: None
    ) -> Iterator[Window]:
        """Each window as it ends; in those `done` before only the base engine decodes. progress: the share, 0 to 1.

        A combination that is `void`, or turns out to be, is not measured again: one that cannot be applied, or exact
        passes that decode other tokens. Raises UserError where the base engine itself does the second time.
        """
        with self._base():
            self.engine.prefill(self.prompt)
            saved = self.engine.save()
        for number in range(self.count):
            visits = {} if number in done else self._visits(number, saved, void, progress)
            expected, saved = self._go_on(saved)
            if visits:
                window = self._judged(number, visits, expected)
                void = void | window.voids.keys()
                yield window
            progress((number + 1) / self.count)

    def _base(self) -> AbstractContextManager[Any]:
        return base.applied(self.engine, [], self.kept)

    def _visits(self, number: int, saved: Saved, void: Set[int], progress: Progress) -> dict[int, Visit]:
        order = [AGAIN, *(i for i in range(len(self.combinations)) if i not in void)]
        random.Random(f"{self.seed} {number}").shuffle(order)
        visits = {}
        for done, i in enumerate(order):
            visits[i] = self._visit(saved, self.combinations[max(i, 0)])
            progress((number + done / len(order)) / self.count)
        return visits

    def _visit(self, saved: Saved, passes: Passes) -> Visit:
        """Timed from the arrival of the last warm-up token on the host to that of the last.

        No synchronization at either end: under run-ahead the device is a step further at both, so they cancel.
        """
        try:
            with base.applied(self.engine, list(passes), self.kept), undisturbed():
                self.engine.restore(saved)
                tokens = [self.engine.step() for _ in range(WARM_UP)]
                began = time.perf_counter_ns()
                tokens += [self.engine.step() for _ in range(self.steps)]
                return (time.perf_counter_ns() - began) / self.steps, tokens
        except Exception as fault:
            return refusal(fault)

    def _go_on(self, saved: Saved) -> tuple[list[int], Saved]:
        """The base engine's tokens of a visit, and the state in which the next window begins."""
        with self._base():
            self.engine.restore(saved)
            tokens = [self.engine.step() for _ in range(self.steps)]
            following = self.engine.save()
            return tokens + [self.engine.step() for _ in range(WARM_UP)], following

    def _judged(self, number: int, visits: dict[int, Visit], expected: list[int]) -> Window:
        window = Window(number)
        for i, visit in sorted(visits.items()):
            passes = self.combinations[max(i, 0)]
            fault = self._fault(number, passes, visit, expected)
            if fault and not passes:
                raise UserError(f"the engine without passes does not repeat itself ({fault}); nothing can be measured.")
            if fault or isinstance(visit, str):
                window.voids[i] = fault
            else:
                window.times[i] = visit[0]
        return window

    def _fault(self, number: int, passes: Passes, visit: Visit, expected: list[int]) -> str:
        """Why a visit does not count; empty when it does. The prompt's own token is number 0 of the request."""
        if isinstance(visit, str):
            return visit
        at = first_difference(visit[1], expected) if is_exact(passes) else None
        if at is None:
            return ""
        return f"token {number * self.steps + at + 1} is {visit[1][at]}, without the passes {expected[at]}"


@contextmanager
def undisturbed() -> Iterator[None]:
    """No garbage collection inside."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def cold(
    kernel: Callable[..., Any], weights: Sequence[torch.Tensor], launches: int = 256, rounds: int = 50, seed: int = 0
) -> dict[str, float]:
    """Times kernel(*weights) as a decode step meets it: no weight in the L2 cache, launches queued in a CUDA graph.

    Rotates over copies of `weights` of at least twice the L2 in all -> {median_ns, low_ns, high_ns: its 95 % bootstrap
    interval over the rounds, copies, launches}; ns a launch. Needs a GPU.
    """
    device = weights[0].device
    size = sum(one.numel() * one.element_size() for one in weights)
    copies = 1 + -(-2 * torch.cuda.get_device_properties(device).L2_cache_size // size)
    rotated = [tuple(one.clone() for one in weights) for _ in range(copies)]
    turns = -(-launches // copies)

    def run() -> None:
        for number in range(turns * copies):
            kernel(*rotated[number % copies])

    graph = Graph(run)
    times = np.array([_elapsed(graph) for _ in range(rounds)]) / (turns * copies)
    draws = np.random.default_rng(seed).integers(rounds, size=(RESAMPLES, rounds))
    low, high = np.quantile(np.median(times[draws], axis=1), (0.025, 0.975))
    found = {"median_ns": float(np.median(times)), "low_ns": float(low), "high_ns": float(high)}
    return {**found, "copies": copies, "launches": turns * copies}


def _elapsed(graph: Graph) -> float:
    """ns of one replay, by CUDA events."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    graph()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e6

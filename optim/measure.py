"""The protocol: what a token costs under each combination of passes, on the host's clock and without a profiler.

A request is cut into windows of a few dozen tokens. In each, every combination, in an order drawn anew, decodes the
same tokens from the same saved state; the base engine decodes them last, so that the next window begins from what it
left. What drifts, such as clocks or the length of the context, is thus shared by all combinations of a window.
"""

import gc
import random
import time
from collections.abc import Callable, Container, Iterator, Sequence, Set
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from ling_prof.errors import UserError
from optim import base
from optim.distance import first_difference
from optim.engine.generate import Engine, Saved
from optim.gate import refusal, rounding_of

WARM_UP = 4  # steps of a visit that are dropped
AGAIN, ALL_AGAIN = -1, -2  # numbers of second visits to a window, of the baseline and of all on: the A/A pairs
Passes = tuple[str, ...]
Visit = tuple[float, list[int]] | str  # ns per token and tokens, or why there are none
Progress = Callable[[float], None]


@dataclass
class Window:
    """times: ns per token by the number of the combination or visit; voids: why a combination has none, a sentence."""

    number: int
    times: dict[int, float] = field(default_factory=dict)
    voids: dict[int, str] = field(default_factory=dict)


@dataclass
class Protocol:
    """`count` windows of `steps` tokens of the request that `prompt` starts; combinations from the baseline () to all.

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

        A combination that is `void`, or turns out to be, is not measured again: one that cannot be applied, or that
        decodes other tokens than its `reference`. Raises UserError where the base engine itself does the second time.
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
        last = len(self.combinations) - 1
        twice = [AGAIN, *[ALL_AGAIN] * (last > 0 and last not in void)]
        order = [*twice, *(i for i in range(last + 1) if i not in void)]
        random.Random(f"{self.seed} {number}").shuffle(order)
        visits = {}
        for done, i in enumerate(order):
            visits[i] = self._visit(saved, self.combinations[self._number(i)])
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

    def _number(self, visit: int) -> int:
        """The combination of a visit."""
        return {AGAIN: 0, ALL_AGAIN: len(self.combinations) - 1}.get(visit, visit)

    def _judged(self, number: int, visits: dict[int, Visit], expected: list[int]) -> Window:
        window = Window(number)
        read = {self.combinations[i]: visit[1] for i, visit in visits.items() if i >= 0 and not isinstance(visit, str)}
        for i, visit in sorted(visits.items()):
            passes = self.combinations[self._number(i)]
            fault = visit if isinstance(visit, str) else self._fault(number, passes, visit[1], {**read, (): expected})
            if fault and not passes:
                raise UserError(f"the engine without passes does not repeat itself ({fault}); nothing can be measured.")
            if fault or isinstance(visit, str):
                window.voids[self._number(i)] = fault
            else:
                window.times[i] = visit[0]
        return window

    def _fault(self, number: int, passes: Passes, found: list[int], read: dict[Passes, list[int]]) -> str:
        """Where its tokens are not what they must be, of what was read in this window; empty where they are.

        The prompt's own token is number 0 of the request.
        """
        beside = reference(passes, read)
        at = None if beside is None else first_difference(found, read[beside])
        if beside is None or at is None:
            return ""
        without = f"with {', '.join(beside)} alone" if beside else "without the passes"
        return f"token {number * self.steps + at + 1} is {found[at]}, {without} {read[beside][at]}"


def reference(passes: Passes, combinations: Container[Passes]) -> Passes | None:
    """The combination whose tokens it must repeat: its rounding passes alone; None where that is missing, or itself."""
    rounding = rounding_of(passes)
    return rounding if rounding in combinations and (rounding != passes or not passes) else None


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

"""A trace seen through one device and its steps: what an analysis is given."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd

from ling_prof.errors import UserError
from ling_prof.host import Host
from ling_prof.ops import Ops, devices, select
from ling_prof.steps import FOCUS, WHOLE, Steps, find_steps
from ling_prof.timeline import Pieces, Timeline
from ling_prof.trace import Trace


@dataclass(frozen=True)
class Options:
    """How to look at a trace. Times in ns.

    steps: regular expression over range names; skip: decode steps to leave out at the start; focus: 'prefill' or
    'decode'; unprofiled_tpot: time per output token measured without a profiler; accept_length: tokens a step commits.
    """

    steps: str | None = None
    device: int | None = None
    stream: int | None = None
    skip: int = 0
    focus: str = "decode"
    unprofiled_tpot: int | None = None
    accept_length: float = 1.0

    def __post_init__(self) -> None:
        if self.focus not in FOCUS:
            raise UserError(f"--focus {self.focus!r} is not one of {', '.join(FOCUS)}.")
        if self.skip < 0:
            raise UserError("--skip takes a number of steps, 0 or more.")
        if not (0 < self.accept_length < 1e6):
            raise UserError("--accept-length takes the mean tokens committed a step, above 0.")


@dataclass(frozen=True)
class View:
    """One device of a trace. Everything derived is computed once, when first asked for."""

    trace: Trace
    ops: Ops
    steps: Steps
    options: Options

    @cached_property
    def answers(self) -> dict[str, pd.DataFrame]:
        """What `analyses.run` has found already, by name."""
        return {}

    @cached_property
    def timeline(self) -> Timeline:
        return Timeline(self.ops)

    @cached_property
    def host(self) -> Host:
        return Host(self.trace)

    @cached_property
    def chosen(self) -> pd.DataFrame:
        """The steps of the focus that count in means."""
        return self.steps.focus(self.options.focus)

    @cached_property
    def rounds(self) -> np.ndarray:
        """For each chosen step the number of its token round or prefill, counted from 0."""
        return pd.factorize(self.chosen["round"].to_numpy())[0]

    @property
    def unprofiled_step(self) -> int | None:
        """The unprofiled time of a token round, ns; None where it is not known or no step was found to compare."""
        tpot = self.options.unprofiled_tpot
        if tpot is None or self.options.focus != "decode" or self.steps.source == WHOLE:
            return None
        return max(1, round(tpot * self.options.accept_length))

    @property
    def n_rounds(self) -> int:
        return int(self.rounds.max(initial=-1)) + 1

    @cached_property
    def walls(self) -> pd.Series:
        """The time of each round, ns, by its number."""
        return (self.chosen["end"] - self.chosen["start"]).groupby(self.rounds).sum()

    @cached_property
    def median_round(self) -> int:
        """The number of the round whose wall is the median, of two the shorter; -1 where none counts."""
        order = np.argsort(self.walls.to_numpy(), kind="stable")
        return int(order[(len(order) - 1) // 2]) if len(order) else -1

    @property
    def left_out(self) -> list[str]:
        """The steps of the focus that do not count, by reason."""
        focus = self.steps.table[self.steps.table["phase"].isin(FOCUS[self.options.focus])]
        dropped = focus[~focus.index.isin(self.chosen.index)]
        return [f"{count} step(s): {why}" for why, count in dropped["note"].value_counts().items()]

    def step_of(self, time: np.ndarray, steps: pd.DataFrame | None = None) -> np.ndarray:
        """For each time the position of the step whose window holds it (among `steps`, or the chosen ones); else -1."""
        steps = self.chosen if steps is None else steps
        if not len(steps):
            return np.full(len(time), -1)
        start, end = steps["start"].to_numpy(), steps["end"].to_numpy()
        at = np.searchsorted(start, time, "right") - 1
        return np.where((at >= 0) & (time < end[np.maximum(at, 0)]), at, -1)

    def step_of_call(self, time: np.ndarray, steps: pd.DataFrame) -> np.ndarray:
        """As `step_of`, for times on the host: the last step of the trace lasts until the recording ends."""
        until = steps["end"].where(steps["end"] < self.steps.table["end"].max(), np.iinfo(np.int64).max)
        return self.step_of(time, steps.assign(end=until))

    def pieces_in(self, steps: pd.DataFrame) -> tuple[Pieces, np.ndarray]:
        """The account inside `steps`, cut at their bounds, and the position of the step each piece lies in."""
        pieces = self.timeline.pieces.cut(np.r_[steps["start"].to_numpy(), steps["end"].to_numpy()])
        at = self.step_of(pieces.start, steps)
        return pieces.take(np.flatnonzero(at >= 0)), at[at >= 0]


def view(trace: Trace, options: Options = Options()) -> View:
    """The view of the chosen device, or of the busiest one."""
    ops = select(trace, options.device, options.stream)
    return View(trace, ops, find_steps(ops, options.steps, options.skip), options)


def view_of(trace: Trace, options: Options) -> View:
    """As `view`; an error of it names the recording."""
    try:
        return view(trace, options)
    except UserError as error:
        if str(error).startswith(trace.path):
            raise
        raise UserError(f"{trace.path}: {error}") from None


def require_steps(seen: View) -> None:
    """Raises UserError, naming the recording, where no step of the focus counts."""
    if len(seen.chosen):
        return
    found = ", ".join(f"{n} {phase}" for phase, n in seen.steps.table["phase"].value_counts(sort=False).items())
    why = "; ".join(seen.left_out) or f"the steps found: {found}"
    remedy = "record more steps, or choose others with --steps or --skip"
    raise UserError(f"{seen.trace.path}: no {seen.options.focus} step to look at ({why}); {remedy}.")


def views(trace: Trace, options: Options = Options()) -> list[View]:
    """One view per device that worked, busiest first; only the chosen device when one is chosen."""
    if options.device is not None:
        return [view(trace, options)]
    return [view(trace, replace(options, device=device)) for device in devices(trace)]

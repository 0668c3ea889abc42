"""What a run of the engine is asked for, checked before anything heavy is imported."""

import math
import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ling_prof.errors import UserError
from ling_prof.lock import decoding
from optim.engine.config import LEAST_TEMPERATURE

DTYPES = ("bf16", "fp32")
PASSES = "names of passes with commas between them, such as a,b"
DESIGNS = ("factorial", "ladder", "leave-one-out", "sampled")  # of optim.designs, whose numpy --help does without
RECORDERS = {"torch": (".json.gz", ".json"), "nsys": (".nsys-rep",)}  # the first is the default


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """One decode loop. model: a name or a checkpoint folder; isl: prompt tokens; device: None takes a GPU where one is.

    passes: names such as 'a,b', or 'all'. Raises UserError for values out of range; whether isl and osl fit the model,
    and whether there are such passes, is for the engine to say.
    """

    model: str
    isl: int = 8192
    dtype: str = "bf16"
    device: str | None = None
    eager: bool = False
    passes: str | None = None

    def __post_init__(self) -> None:
        _need(bool(self.model.strip()), "--model", "a model's name or a checkpoint folder")
        _need(self.isl >= 1, "--isl", "a number of tokens, 1 or more")
        _need(self.dtype in DTYPES, "--dtype", f"one of {', '.join(DTYPES)}")
        _need(re.fullmatch(r"cpu|cuda(:\d+)?", self.device or "cpu") is not None, "--device", "cpu, cuda or cuda:1")
        names = [name for player in self.players for name in player]
        _need(all(names), "--passes", PASSES)
        _need(len({*names}) == len(names), "--passes", "each pass once")

    @property
    def players(self) -> list[tuple[str, ...]]:
        """'a,b+c' -> [('a',), ('b', 'c')]: passes joined by a plus are switched together."""
        players = [] if self.passes is None else self.passes.split(",")
        return [tuple(name.strip() for name in player.split("+")) for player in players]

    def names(self, engine: Any) -> list[str]:
        """The passes asked for; 'all' are those neither on, nor blocked here, nor replaced by another.

        Raises UserError, with the list of those there are, for an unknown name.
        """
        from optim import base

        if self.passes != "all":
            return list(base.named([name for player in self.players for name in player]))
        free = [n for n, module in base.passes().items() if n not in engine.passes and not module.blocked(engine)]
        return [name for name in free if name not in base.replaced(free)]

    def _words(self, command: str, *options: tuple[str, object]) -> str:
        """A command line: options that are None or False are left out, those that are True have no value."""
        more = (("--dtype", self.dtype), ("--device", self.device), ("--eager", self.eager), ("--passes", self.passes))
        words = ["ling-prof", command, "--model", self.model, "--isl", self.isl]
        for option, value in (*options, *more):
            words += [option] if value is True else [option, value] * (value is not None and value is not False)
        return shlex.join(map(str, words))


@dataclass(frozen=True, kw_only=True)
class BenchOptions(RunOptions):
    """A benchmark: `runs` requests of `osl` new tokens. temperature 0 is greedy; bandwidth in GB/s (1e9 bytes)."""

    osl: int = 1024
    runs: int = 5
    seed: int = 0
    temperature: float = 0.0
    bandwidth: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _need(self.osl >= 2, "--osl", "a number of tokens, 2 or more: the first one is not decoded")
        _need(self.runs >= 1, "--runs", "a number of runs, 1 or more")
        _need(0 <= self.seed < 2**63, "--seed", "a whole number, 0 or more, below 2**63")
        warm = LEAST_TEMPERATURE <= self.temperature < math.inf
        _need(self.temperature == 0 or warm, "--temperature", f"0 (greedy), or {LEAST_TEMPERATURE:g} or more")
        _need(self.bandwidth is None or 1e-3 <= self.bandwidth <= 1e6, "--bandwidth", "GB/s, from 0.001 to 1000000")

    @property
    def decoding(self) -> str:
        """As the lock records it."""
        return decoding(self.temperature, self.seed)

    @property
    def command(self) -> str:
        """The command line that makes this benchmark again."""
        lengths = (("--osl", self.osl), ("--runs", self.runs), ("--seed", self.seed))
        words = (*lengths, ("--temperature", self.temperature), ("--bandwidth", self.bandwidth))
        return self._words("bench", *words)


@dataclass(frozen=True, kw_only=True)
class AblateOptions(RunOptions):
    """An ablation of `passes`, None for all, over windows of `steps` tokens. design: see optim.designs.

    sample: how many windows are measured, spread evenly over the request; None for all.

    output: the folder for the report, what it resumes from and, unless traces is off, the recordings.
    """

    osl: int = 1024
    design: str = "factorial"
    steps: int = 64
    sample: int | None = None
    seed: int = 0
    traces: bool = True
    output: Path | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _need(self.passes != "all", "--passes", f"{PASSES},c+d; leave it out for all")
        _need(self.design in DESIGNS, "--design", f"one of {', '.join(DESIGNS)}")
        _need(self.steps >= 1, "--steps", "a number of tokens in a window, 1 or more")
        _need(self.windows >= 2, "--osl", f"a number of tokens that holds two windows of --steps {self.steps} or more")
        fits = self.sample is None or 2 <= self.sample <= self.windows
        _need(fits, "--sample", f"a number of windows, from 2 to the {self.windows} there are")
        _need(0 <= self.seed < 2**63, "--seed", "a whole number, 0 or more, below 2**63")

    @property
    def measured(self) -> list[int]:
        """The numbers of the windows that are measured, the first and the last among them."""
        count = self.sample or self.windows
        return [round(i * (self.windows - 1) / (count - 1)) for i in range(count)]

    @property
    def windows(self) -> int:
        """Whole windows in the tokens to generate."""
        return self.osl // self.steps

    @property
    def folder(self) -> Path:
        """Where everything goes."""
        return self.output or Path(f"ablation-{Path(self.model).absolute().name}")

    @property
    def request(self) -> BenchOptions:
        """The request that is measured, for its lock."""
        osl = self.windows * self.steps
        run: dict[str, Any] = {"dtype": self.dtype, "device": self.device, "eager": self.eager, "seed": self.seed}
        return BenchOptions(model=self.model, isl=self.isl, osl=osl, **run)

    @property
    def command(self) -> str:
        """The command line that makes this ablation again."""
        lengths = (("--osl", self.osl), ("--design", self.design), ("--steps", self.steps), ("--seed", self.seed))
        return self._words(
            "ablate", *lengths, ("--sample", self.sample), ("--no-traces", not self.traces), ("--output", self.output)
        )


@dataclass(frozen=True, kw_only=True)
class TraceOptions(RunOptions):
    """A recording of `steps` decode steps with `recorder`, torch (its profiler) or nsys; output None is ./decode.*"""

    steps: int = 12
    recorder: str = "torch"
    stacks: bool = True
    output: Path | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _need(self.steps >= 2, "--steps", "a number of steps, 2 or more: the last one has no visible end")
        _need(self.recorder in RECORDERS, "--with", f"one of {', '.join(RECORDERS)}")
        suffixes = RECORDERS[self.recorder]
        fits = self.path.name.endswith(suffixes) and self.path.name not in suffixes
        _need(fits, "--output", f"a file that ends in {' or '.join(suffixes)} with --with {self.recorder}")

    @property
    def path(self) -> Path:
        """Where the recording goes."""
        return self.output or Path(f"decode{RECORDERS[self.recorder][0]}")


def check_folder(folder: Path) -> None:
    """Raises UserError for one that is something else, or cannot be made or written: ask before a long run."""
    there = next(path for path in (folder, *folder.absolute().parents) if os.path.lexists(path))
    fault = "is no folder" if not os.path.isdir(there) else "is read-only" if not os.access(there, os.W_OK) else ""
    if fault:
        raise UserError(f"{folder} cannot be written: {there} {fault}; give another folder with --output.")


def make_folder(folder: Path) -> None:
    """Raises UserError where it cannot be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder} cannot be made ({error.strerror}); give another folder with --output.") from None


def _need(holds: bool, option: str, what: str) -> None:
    if not holds:
        raise UserError(f"{option} takes {what}.")

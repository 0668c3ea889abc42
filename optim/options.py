"""What a run of the engine is asked for, checked before anything heavy is imported."""

import math
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from ling_prof.errors import UserError
from ling_prof.lock import decoding
from optim.engine.config import LEAST_TEMPERATURE

DTYPES = ("bf16", "fp32")
RECORDERS = {"torch": (".json.gz", ".json"), "nsys": (".nsys-rep",)}  # the first is the default


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """One decode loop. model: a name or a checkpoint folder; isl: prompt tokens; device: None takes a GPU where one is.

    Raises UserError for values out of range; whether isl and osl fit the model is for the engine to say.
    """

    model: str
    isl: int = 8192
    dtype: str = "bf16"
    device: str | None = None
    eager: bool = False

    def __post_init__(self) -> None:
        _need(bool(self.model.strip()), "--model", "a model's name or a checkpoint folder")
        _need(self.isl >= 1, "--isl", "a number of tokens, 1 or more")
        _need(self.dtype in DTYPES, "--dtype", f"one of {', '.join(DTYPES)}")
        _need(re.fullmatch(r"cpu|cuda(:\d+)?", self.device or "cpu") is not None, "--device", "cpu, cuda or cuda:1")


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
        words = ["ling-prof", "bench", "--model", self.model, "--isl", self.isl, "--osl", self.osl, "--runs", self.runs]
        words += ["--seed", self.seed, "--temperature", self.temperature, "--dtype", self.dtype]
        words += ["--device", self.device] * (self.device is not None) + ["--eager"] * self.eager
        words += ["--bandwidth", self.bandwidth] if self.bandwidth is not None else []
        return shlex.join(map(str, words))


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


def _need(holds: bool, option: str, what: str) -> None:
    if not holds:
        raise UserError(f"{option} takes {what}.")

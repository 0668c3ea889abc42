"""Recording the engine's decode steps, and timing the same loop without the profiler just before."""

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from ling_prof import record as recorders
from ling_prof.errors import UserError
from optim import base
from optim.engine.generate import Engine
from optim.options import TraceOptions
from optim.session import device_of, open_engine, prompt_for

REHEARSED = 64  # steps timed without a profiler
SETTLE = 4  # steps before anything is timed or recorded


def record(options: TraceOptions) -> tuple[Path, str]:
    """Writes the recording -> its path, and the unprofiled time of a step such as '2.410000ms'.

    Raises UserError when the profiler is missing or leaves nothing.
    """
    if device_of(options) == "cpu":
        raise UserError("trace needs a CUDA GPU: on a CPU there are no kernels to record.")
    if options.recorder == "nsys":
        return options.path, _under_nsys(options)
    with rehearsed(options) as (engine, tpot):
        record_open(engine, options.path, options.steps, options.stacks)
    return options.path, tpot


def record_open(engine: Engine, path: Path, steps: int, stacks: bool = True) -> None:
    """Records `steps` decode steps of a request that is under way, with torch's profiler. One more is taken before."""
    with torch.profiler.profile(activities=recorders.activities()):
        engine.step()  # a profiler's first step is slow: taken here
    with recorders.profile(path, stacks=stacks):
        _steps(engine, steps)


def _steps(engine: Engine, count: int) -> None:
    """What is recorded: the capture too, since the ranges open there name the layers of the nodes."""
    engine.capture()
    for _ in range(count):
        engine.step()
    torch.cuda.synchronize()


@contextmanager
def rehearsed(options: TraceOptions) -> Iterator[tuple[Engine, str]]:
    """The engine in steady decode, its passes on, and the mean time of its steps so far."""
    engine = open_engine(options, SETTLE + REHEARSED + options.steps + 2)
    with base.applied(engine, options.names(engine)):
        engine.prefill(prompt_for(engine.c, options.isl, 0))
        yield engine, f"{rehearse(engine):.6f}ms"


def rehearse(engine: Engine) -> float:
    """Takes the request into steady decode -> the mean time of its next steps, ms."""
    for _ in range(SETTLE):
        engine.step()
    began = time.perf_counter()
    for _ in range(REHEARSED):
        engine.step()
    return (time.perf_counter() - began) / REHEARSED * 1e3


def _under_nsys(options: TraceOptions) -> str:
    """Runs this module as a program under Nsight Systems; it leaves its step time in a file."""
    with tempfile.TemporaryDirectory() as folder:
        said = Path(folder) / "tpot"
        asked = {**vars(options), "output": None}
        command = [sys.executable, "-m", "optim.trace", json.dumps(asked), str(said)]
        recorders.nsys(command, options.path, profiler_api=True, quiet=True)
        return said.read_text()


def _child(asked: str, said: str) -> None:
    options = TraceOptions(**json.loads(asked))
    with rehearsed(options) as (engine, tpot):
        Path(said).write_text(tpot)
        with torch.cuda.profiler.profile():
            _steps(engine, options.steps)


if __name__ == "__main__":
    try:
        _child(*sys.argv[1:])
    except UserError as error:
        sys.exit(f"ling-prof: {error}")

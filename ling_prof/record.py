"""Recording a decode loop: under Nsight Systems from the command line, or with torch.profiler from Python."""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from ling_prof.errors import UserError
from ling_prof.load.nsys import find_nsys

FLAGS = ("--trace=cuda,nvtx", "--sample=none", "--cpuctxsw=none", "--cuda-graph-trace=node", "--force-overwrite=true")


def nsys(command: list[str], output: Path, nvtx_range: str | None = None, profiler_api: bool = False) -> Path:
    """Runs `command` under nsys profile and returns the .nsys-rep.

    Raises UserError when no nsys is found, nothing is given to run, or the run leaves no recording.
    """
    if not command:
        raise UserError("nothing to record; give a command after --: ling-prof record -- python decode.py.")
    program = find_nsys()
    if not program:
        raise UserError(
            "no nsys on PATH or in a CUDA install; install Nsight Systems, or record from Python with "
            "ling_prof.record.profile."
        )
    output = output.with_suffix(".nsys-rep")
    scope: tuple[str, ...] = ("--capture-range=cudaProfilerApi", "--capture-range-end=stop") if profiler_api else ()
    if nvtx_range:
        scope = (
            "--capture-range=nvtx",
            f"--nvtx-capture={nvtx_range}",
            "--capture-range-end=stop",
            "--env-var=NSYS_NVTX_PROFILER_REGISTER_ONLY=0",
        )
    done = subprocess.run([program, "profile", *FLAGS, *scope, f"--output={output}", *command])
    if not output.exists():
        raise UserError(f"nsys left no recording (exit code {done.returncode}); its own message stands above.")
    return output


@contextmanager
def profile(
    path: str | Path, stacks: bool = True, modules: bool = True
) -> Iterator[Callable[..., AbstractContextManager]]:
    """Records with torch.profiler into `path` (.json or .json.gz) and gives a function that marks a step:

        with profile("decode.json.gz") as step:
            with step("prefill"): ...
            for _ in range(8):
                with step(): ...

    Steps are named 'prefill_step_0', 'decode_step_1', ... as record_function and, on a GPU, as NVTX ranges.
    """
    import torch
    from torch.profiler import ProfilerActivity, record_function

    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * torch.cuda.is_available()
    number = 0

    @contextmanager
    def step(phase: str = "decode") -> Iterator[None]:
        nonlocal number
        name = f"{phase}_step_{number}"
        number += 1
        with record_function(name), torch.cuda.nvtx.range(name) if torch.cuda.is_available() else nullcontext():
            yield

    with torch.profiler.profile(activities=activities, with_stack=stacks, with_modules=modules) as profiler:
        yield step
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    profiler.export_chrome_trace(str(path))

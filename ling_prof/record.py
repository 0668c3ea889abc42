"""Recording a decode loop: under Nsight Systems from the command line, or with torch.profiler from Python."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from ling_prof.errors import UserError
from ling_prof.load.nsys import find_nsys

FLAGS = ("--trace=cuda,nvtx", "--sample=none", "--cpuctxsw=none", "--cuda-graph-trace=node", "--force-overwrite=true")


def nsys(
    command: list[str], output: Path, nvtx_range: str | None = None, profiler_api: bool = False, quiet: bool = False
) -> Path:
    """Runs `command` under nsys profile and returns the .nsys-rep; `quiet` sends what it prints to stderr.

    Raises UserError when no nsys is found, nothing is given to run, the command fails, or no recording is left.
    """
    if not command:
        raise UserError("nothing to record; give a command after --: ling-prof record -- python decode.py.")
    program = find_nsys()
    if not program:
        remedy = "install Nsight Systems, or record from Python with ling_prof.record.profile"
        raise UserError(f"no nsys on PATH or in a CUDA install; {remedy}.")
    output = output if output.suffix == ".nsys-rep" else output.with_name(output.name + ".nsys-rep")
    before = _changed(output)
    arguments = [program, "profile", *FLAGS, *_scope(nvtx_range, profiler_api), f"--output={output}", *command]
    done = subprocess.run(arguments, stdout=sys.stderr if quiet else None)
    if _changed(output) == before:
        raise UserError(f"nsys left no recording (exit code {done.returncode}); its own message stands above.")
    if done.returncode:
        raise UserError(f"the command failed (exit code {done.returncode}); what was recorded lies in {output}.")
    return output


def _changed(path: Path) -> int:
    return path.stat().st_mtime_ns if path.exists() else 0


def _scope(nvtx_range: str | None, profiler_api: bool) -> tuple[str, ...]:
    if nvtx_range:
        names = "--env-var=NSYS_NVTX_PROFILER_REGISTER_ONLY=0"  # else only registered strings start a capture
        return "--capture-range=nvtx", f"--nvtx-capture={nvtx_range}", "--capture-range-end=stop", names
    return ("--capture-range=cudaProfilerApi", "--capture-range-end=stop") if profiler_api else ()


def activities() -> list:
    """What torch.profiler can record here: the CPU, and the GPU where there is one."""
    import torch
    from torch.profiler import ProfilerActivity

    return [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * torch.cuda.is_available()


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
    from torch.profiler import record_function

    if not Path(path).absolute().parent.is_dir():
        raise UserError(f"{path} cannot be written: its folder does not exist.")
    number = 0

    @contextmanager
    def step(phase: str = "decode") -> Iterator[None]:
        nonlocal number
        name = f"{phase}_step_{number}"
        number += 1
        with record_function(name), torch.cuda.nvtx.range(name) if torch.cuda.is_available() else nullcontext():
            yield

    profiler = torch.profiler.profile(activities=activities(), with_stack=stacks, with_modules=modules)
    try:
        with profiler:
            yield step
            if torch.cuda.is_available():
                torch.cuda.synchronize()
    finally:
        profiler.export_chrome_trace(str(path))

"""What `bench` and `trace` share: an engine opened as the options say, a prompt, and the lock of what ran."""

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

import torch

import ling_prof
from ling_prof.errors import UserError
from ling_prof.lock import Lock
from optim.engine import checkpoint, weights
from optim.engine.config import MODELS, Config, named
from optim.engine.generate import Engine
from optim.engine.hf_config import read_config
from optim.options import BenchOptions, RunOptions

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
SMI = ("nvidia-smi", "--format=csv,noheader,nounits")


def device_of(options: RunOptions) -> str:
    """'cuda' where there is a GPU, else 'cpu', unless the options name one."""
    return options.device or ("cuda" if torch.cuda.is_available() else "cpu")


def open_engine(options: RunOptions, new_tokens: int, seed: int = 0) -> Engine:
    """The engine with room for the prompt and `new_tokens`; random weights by `seed` unless the model is a folder.

    Raises UserError for a model that does not exist, does not fit its positions, or does not fit the GPU.
    """
    device, dtype = device_of(options), DTYPES[options.dtype]
    capacity = options.isl + new_tokens
    if options.model in MODELS or not Path(options.model).is_dir():
        c = named(options.model)
        _check_fit(c, capacity, dtype, device)
        w = weights.random(c, seed, dtype, device)
    else:
        folder = Path(options.model)
        _check_fit(read_config(folder), capacity, dtype, device)
        c, w = checkpoint.load(folder, dtype, device)
    return Engine(c, w, capacity, graph=not options.eager)


def _check_fit(c: Config, capacity: int, dtype: torch.dtype, device: str) -> None:
    if capacity > c.max_positions:
        raise UserError(f"{c.name} has {c.max_positions} positions; prompt and new tokens take {capacity}.")
    needed, there = weights.size(c, dtype), _memory(device)
    if needed > there:
        hint = "; take ling-3.0-flash-tp4-rank, one of its four ranks" if c.name == "ling-3.0-flash" else ""
        raise UserError(f"{c.name} needs {needed / 1e9:.1f} GB, {device} has {there / 1e9:.1f} GB{hint}.")


def _memory(device: str) -> int:
    """Bytes: all of a machine, what is free of a GPU."""
    if device == "cpu":
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return torch.cuda.mem_get_info(device)[0]


def prompt_for(c: Config, tokens: int, seed: int) -> list[int]:
    """Random token ids."""
    return torch.randint(c.vocab, (tokens,), generator=torch.Generator().manual_seed(seed)).tolist()


def lock_of(engine: Engine, options: BenchOptions) -> Lock:
    device = engine.token.device
    gpu = device.type == "cuda"
    return Lock(
        hardware=(torch.cuda.get_device_name(device) if gpu else platform.machine(),),
        driver=_smi("driver_version", device.index or 0) if gpu else None,
        cuda=torch.version.cuda if gpu else None,
        torch=torch.__version__,
        triton=_version("triton"),
        python=platform.python_version(),
        model=engine.c.name,
        dtype=options.dtype,
        isl=options.isl,
        osl=options.osl,
        decoding=options.decoding,
        target="engine",
        passes=("-cuda_graph",) if gpu and options.eager else (),
        ling_prof=ling_prof.__version__,
    )


def clocks_of(engine: Engine) -> dict[str, float | None]:
    """The clocks of the GPU now, MHz; None where they cannot be read."""
    device = engine.token.device
    if device.type != "cuda":
        return {"sm_mhz": None, "mem_mhz": None}
    found = (_smi(f"clocks.{kind}", device.index or 0) for kind in ("sm", "mem"))
    sm, mem = (float(value) if value else None for value in found)
    return {"sm_mhz": sm, "mem_mhz": mem}


def _smi(query: str, index: int) -> str | None:
    try:
        done = subprocess.run([*SMI, f"--query-gpu={query}", f"--id={index}"], capture_output=True, text=True)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None

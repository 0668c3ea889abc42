"""What `bench` and `trace` share: an engine opened as the options say, a prompt, and the lock of what ran."""

import hashlib
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
    """'cuda:0' where there is a GPU, else 'cpu', unless the options name one. Raises UserError for one not there."""
    kind, _, number = (options.device or ("cuda" if torch.cuda.is_available() else "cpu")).partition(":")
    if kind == "cpu":
        return kind
    if int(number or 0) >= (there := torch.cuda.device_count()):
        raise UserError(f"--device {options.device}: this machine has {there} GPU(s), counted from cuda:0.")
    return f"cuda:{number or 0}"


def is_checkpoint(options: RunOptions) -> bool:
    """A bundled name means the bundled model; `./name` a folder called so."""
    return options.model not in MODELS and os.path.isdir(options.model)


def open_engine(options: RunOptions, new_tokens: int, seed: int = 0) -> Engine:
    """The engine with room for the prompt and `new_tokens`; random weights by `seed` unless the model is a folder.

    Makes its GPU the current one, where Triton launches. Raises UserError for a model that does not exist, or does not
    fit its positions or the memory.
    """
    device, dtype, folder = device_of(options), DTYPES[options.dtype], Path(options.model)
    c = read_config(folder) if is_checkpoint(options) else named(options.model)
    if device != "cpu":
        torch.cuda.set_device(device)
    _check_fit(c, options.isl + new_tokens, dtype, device)
    w = checkpoint.load(folder, dtype, device)[1] if is_checkpoint(options) else weights.random(c, seed, dtype, device)
    return Engine(c, w, options.isl + new_tokens, graph=not options.eager)


def _check_fit(c: Config, capacity: int, dtype: torch.dtype, device: str) -> None:
    if capacity > c.max_positions:
        raise UserError(
            f"{c.name} has {c.max_positions} positions; prompt and new tokens take {capacity}; lower --isl."
        )
    wide_head = c.vocab * c.hidden * torch.float32.itemsize
    needed, there = weights.size(c, dtype) + wide_head, _memory(device)
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
        hardware=(torch.cuda.get_device_name(device) if gpu else _cpu(),),
        driver=smi("driver_version", device) if gpu else None,
        cuda=torch.version.cuda if gpu else None,
        torch=torch.__version__,
        triton=_version("triton"),
        python=platform.python_version(),
        model=engine.c.name,
        weights=_fingerprint(Path(options.model)) if is_checkpoint(options) else f"random, seed {options.seed}",
        dtype=options.dtype,
        isl=options.isl,
        osl=options.osl,
        decoding=options.decoding,
        target="engine",
        passes=engine.passes,
        ling_prof=ling_prof.__version__,
    )


def _fingerprint(folder: Path) -> str:
    """Tells two checkpoints apart by their configuration and by the size and the end of each of their files."""
    found = hashlib.sha256((folder / "config.json").read_bytes())
    for path in sorted(folder.glob("*.safetensors")):
        size = path.stat().st_size
        with path.open("rb") as file:
            file.seek(max(0, size - 2**20))
            found.update(f"{path.name} {size}".encode() + file.read())
    return f"checkpoint {found.hexdigest()[:12]}"


def _cpu() -> str:
    """The model of the processor; its architecture where the system does not say."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next((line.split(": ", 1)[1] for line in lines if line.startswith("model name")), platform.machine())


def clocks_of(engine: Engine) -> dict[str, float | None]:
    """The clocks of the GPU now, MHz; None where they cannot be read."""
    device = engine.token.device
    found = [smi(f"clocks.{kind}", device) if device.type == "cuda" else None for kind in ("sm", "mem")]
    sm, mem = (float(value) if value else None for value in found)
    return {"sm_mhz": sm, "mem_mhz": mem}


def smi(query: str, device: torch.device) -> str | None:
    """What nvidia-smi answers to --query-gpu for this device; None without an answer."""
    uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"  # its number there need not be torch's
    try:
        done = subprocess.run([*SMI, f"--query-gpu={query}", f"--id={uuid}"], capture_output=True, text=True)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None

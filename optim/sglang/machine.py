"""What stands behind a server on this machine: GPUs, driver, clocks, and the packages that a launched one runs on."""

import os
import platform
import subprocess
from importlib import import_module, metadata
from typing import Any

from ling_prof.server_info import world

SMI = ("nvidia-smi", "--format=csv,noheader,nounits")


def gpus(info: dict[str, Any]) -> dict[str, Any]:
    """hardware and driver for a lock, of the GPUs a server on this machine uses; nothing where that is not sure."""
    rows, count, first = _smi("name,driver_version"), world(info), int(info.get("base_gpu_id") or 0)
    used = rows[first : first + count]
    alike = len({tuple(row) for row in rows}) == 1  # else which of them it uses is a guess
    if len(used) < count or not alike:
        return {}
    return {"hardware": tuple(name for name, _ in used), "driver": used[0][1]}


def clocks() -> dict[str, float | None]:
    """The clocks of the first GPU now, MHz; None where they cannot be read."""
    row = next(iter(_smi("clocks.sm,clocks.mem")), [])
    sm, mem = (float(value) if value.replace(".", "").isdigit() else None for value in (row or ["", ""]))
    return {"sm_mhz": sm, "mem_mhz": mem}


def packages() -> dict[str, str | None]:
    """torch, cuda, triton and python for a lock: what a server that this interpreter launched runs on."""
    torch = import_module("torch")
    triton = next((d.version for d in metadata.distributions(name="triton")), None)
    return {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "triton": triton,
        "python": platform.python_version(),
    }


def _smi(query: str) -> list[list[str]]:
    """A row of answers a visible GPU; none where nvidia-smi does not answer."""
    chosen = [f"--id={os.environ['CUDA_VISIBLE_DEVICES']}"] if os.environ.get("CUDA_VISIBLE_DEVICES") else []
    try:
        done = subprocess.run([*SMI, f"--query-gpu={query}", *chosen], capture_output=True, text=True)
    except OSError:
        return []
    rows = done.stdout.splitlines() if done.returncode == 0 else []
    return [[value.strip() for value in row.split(",")] for row in rows]

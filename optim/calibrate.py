"""What launches cost on the GPU at hand: empty kernels, chains of weight reads, copies, and the host's calls."""

import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np
import torch
import triton
import triton.language as tl

import ling_prof
from ling_prof.errors import UserError
from ling_prof.record import profile
from ling_prof.whatif.calibration import SCHEMA, Calibration, Chained, GraphLaunch, Modes, Product
from optim.base import exchanged
from optim.engine.graph import Graph
from optim.kernels import launch
from optim.kernels.launch import chain
from optim.kernels.linear import naive
from optim.kernels.linear.gemv import linear
from optim.session import smi
from optim.timer import cold, copy_gb_s, device_ns

FEW, MANY = 100, 300  # launches: what both cost alike drops out
ROUNDS = 30
MATRICES = ((1536, 512), (1536, 2048), (9216, 1536))  # bf16, of Ling-3.0-tiny
PRODUCTS = ((16, 1536), (128, 1536), (256, 1536), (1536, 512), (576, 1536), (1024, 1536), (1536, 2048), *MATRICES[2:])
LARGE = (157184, 1536)
ASLEEP = 60_000_000  # cycles of the device, longer than the host takes for MANY launches


def run(command: str) -> Calibration:
    """Measures on the current CUDA device; takes about 20 s. Raises UserError without one."""
    if not torch.cuda.is_available():
        raise UserError("calibrate needs a CUDA GPU, and torch finds none here.")
    read = _cold_ns(LARGE)
    return {
        "schema": SCHEMA,
        "command": command,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "gpu": torch.cuda.get_device_name(),
        "driver": smi("driver_version", torch.device("cuda", torch.cuda.current_device())),
        "cuda": torch.version.cuda,
        "torch": torch.__version__,
        "period_ns": _modes(_period),
        "gap_ns": _modes(lambda mode: _recorded(mode)[0]),
        "empty_ns": _recorded("graph")[1],
        "chained": [_chained(shape) for shape in MATRICES],
        "products": [_product(shape) for shape in PRODUCTS],
        "graph_launch": _graph_launch(),
        "launch_call_ns": _launch_call(),
        "read_back_ns": _read_back(),
        "read_gb_s": 2 * LARGE[0] * LARGE[1] / read,
        "copy_gb_s": copy_gb_s(),
    }


@triton.jit
def empty_kernel(PDL: tl.constexpr):
    chain(PDL)


def _modes(measure: Callable[[str], float]) -> Modes:
    return {"eager": measure("eager"), "graph": measure("graph"), "pdl": measure("pdl")}


def _empty(count: int) -> None:
    for _ in range(count):
        launch.launch(empty_kernel, (1,))(num_warps=1)


def _chain(mode: str) -> int:
    return launch.WAITS if mode == "pdl" else 0


def _period(mode: str) -> float:
    """Start to start of empty kernels that were queued before the first began, ns."""
    few, many = (_queued(mode, count) for count in (FEW, MANY))
    return (many - few) / (MANY - FEW)


def _queued(mode: str, count: int) -> float:
    """The device's time for `count` of them, ns."""
    with exchanged(launch, chained=_chain(mode)):
        launched = partial(_empty, count) if mode == "eager" else Graph(partial(_empty, count))
        return statistics.median(device_ns(launched, ASLEEP) for _ in range(ROUNDS))


def _recorded(mode: str) -> tuple[float, float]:
    """Medians of a recording, ns: from one empty kernel's end to the next one's start, and their duration."""
    with exchanged(launch, chained=_chain(mode)), tempfile.TemporaryDirectory() as folder:
        launched = partial(_empty, MANY) if mode == "eager" else Graph(partial(_empty, MANY))
        path = Path(folder) / "empty.json"
        with profile(path, stacks=False, modules=False):
            device_ns(launched, ASLEEP)
        gpu = ling_prof.load(path).gpu
    gpu = gpu[gpu["name"].astype(str).str.contains("empty_kernel")].sort_values("start")
    start, end = gpu["start"].to_numpy(), gpu["end"].to_numpy()
    return float(np.median(start[1:] - end[:-1])), float(np.median(end - start))


def _chained(shape: tuple[int, int]) -> Chained:
    graph = _cold_ns(shape)
    with exchanged(launch, chained=launch.WAITS):
        return {"bytes": 2 * shape[0] * shape[1], "graph_ns": graph, "pdl_ns": _cold_ns(shape)}


def _product(shape: tuple[int, int]) -> Product:
    return {
        "bytes": 2 * shape[0] * shape[1],
        "gemm_ns": _cold_ns(shape, naive.linear),
        "gemv_ns": _cold_ns(shape),
    }


def _cold_ns(shape: tuple[int, int], multiply: Callable[..., torch.Tensor] = linear) -> float:
    """One token times a matrix whose weights no cache holds, ns a launch."""
    x = torch.ones(1, shape[1], dtype=torch.bfloat16, device="cuda")
    matrix = torch.ones(shape, dtype=torch.bfloat16, device="cuda")
    return cold(partial(multiply, x), [matrix])["median_ns"]


def _graph_launch() -> GraphLaunch:
    took = []
    for count in (FEW, MANY):
        graph = Graph(partial(_empty, count))
        took.append(statistics.median(_host_ns(graph) for _ in range(ROUNDS)))
    node = (took[1] - took[0]) / (MANY - FEW)
    return {"base_ns": took[0] - FEW * node, "node_ns": node}


def _launch_call() -> float:
    x = torch.zeros(1, device="cuda")
    return statistics.median(_host_ns(lambda: [x.add_(1) for _ in range(FEW)]) for _ in range(ROUNDS)) / FEW


def _read_back() -> float:
    x = torch.zeros(1, dtype=torch.int64, device="cuda")
    return statistics.median(_host_ns(lambda: int(x)) for _ in range(ROUNDS))


def _host_ns(call: Callable[[], object]) -> float:
    """The host's time in the call, of a device that is idle when it begins."""
    torch.cuda.synchronize()
    began = time.perf_counter_ns()
    call()
    return time.perf_counter_ns() - began

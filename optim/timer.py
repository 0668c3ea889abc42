"""The device's own time for a piece of work, by CUDA events: it sleeps until all is queued, so no launch is inside."""

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from optim.engine.graph import Graph

ASLEEP = 2_000_000  # cycles of the device, about 1 ms: longer than the launch of a graph
LONGEST = 2**30
RESAMPLES = 1000
COPIED = 2**31  # bytes: far more than any cache holds
COPIES = 20


def device_ns(work: Callable[[], object], asleep: int = ASLEEP) -> float:
    """The device's time for what `work` launches, ns.

    Where it woke before all was queued, after `asleep` cycles, the work is done again behind a longer sleep. Raises
    RuntimeError for work that waits for the device.
    """
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    while asleep <= LONGEST:
        torch.cuda._sleep(asleep)
        start.record()
        work()
        end.record()
        late = start.query()
        end.synchronize()
        if not late:
            return 1e6 * start.elapsed_time(end)
        asleep *= 8
    raise RuntimeError("the device never slept until all was queued: what is timed waits for it")


def cold(
    kernel: Callable[..., Any], weights: Sequence[torch.Tensor], launches: int = 256, rounds: int = 50, seed: int = 0
) -> dict[str, float]:
    """Times kernel(*weights) as a decode step meets it: no weight in the L2 cache, launches queued in a CUDA graph.

    Rotates over copies of `weights` of at least twice the L2 in all -> {median_ns, low_ns, high_ns: its 95 % bootstrap
    interval over the rounds, copies, launches}; ns a launch. Needs a GPU.
    """
    device = weights[0].device
    size = sum(one.numel() * one.element_size() for one in weights)
    copies = 1 + -(-2 * torch.cuda.get_device_properties(device).L2_cache_size // size)
    rotated = [tuple(one.clone() for one in weights) for _ in range(copies)]
    turns = -(-launches // copies)

    def run() -> None:
        for number in range(turns * copies):
            kernel(*rotated[number % copies])

    graph = Graph(run)
    times = np.array([device_ns(graph) for _ in range(rounds)]) / (turns * copies)
    draws = np.random.default_rng(seed).integers(rounds, size=(RESAMPLES, rounds))
    low, high = np.quantile(np.median(times[draws], axis=1), (0.025, 0.975))
    found = {"median_ns": float(np.median(times)), "low_ns": float(low), "high_ns": float(high)}
    return {**found, "copies": copies, "launches": turns * copies}


def copy_gb_s() -> float:
    """Bytes read plus written by a copy within the current device's memory, GB/s."""
    source = torch.empty(COPIED, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    return 2 * COPIED / statistics.median(device_ns(lambda: target.copy_(source)) for _ in range(COPIES))

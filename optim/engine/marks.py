"""Named ranges that profilers see: NVTX for Nsight Systems, record_function for the torch profiler."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch.autograd import profiler

GPU = torch.cuda.is_available()


@contextmanager
def mark(name: str) -> Iterator[None]:
    """Opens `name` in both; ranges that are open while a graph is captured name its nodes.

    Without a profiler it must cost next to nothing: a step opens two while the device waits for the host.
    """
    if GPU:
        torch.cuda.nvtx.range_push(name)
    with profiler.record_function(name) if profiler._is_profiler_enabled else nullcontext():
        try:
            yield
        finally:
            if GPU:
                torch.cuda.nvtx.range_pop()

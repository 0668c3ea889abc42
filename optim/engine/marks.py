"""Named ranges that profilers see: NVTX for Nsight Systems, record_function for the torch profiler."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.profiler import record_function


@contextmanager
def mark(name: str) -> Iterator[None]:
    """Opens `name` in both; ranges that are open while a graph is captured name its nodes."""
    with record_function(name):
        if not torch.cuda.is_available():
            yield
            return
        torch.cuda.nvtx.range_push(name)
        try:
            yield
        finally:
            torch.cuda.nvtx.range_pop()

"""Projections of one token by a matrix-vector kernel instead of cuBLAS, whose tiles leave much of the device idle."""

from collections.abc import Iterator
from contextlib import contextmanager

import pandas as pd

from optim.base import NotOn, exchanged
from optim.sites import kernels

removes = "the bandwidth that tiles for many tokens waste on one"
exact = False


def find(trace) -> pd.DataFrame:
    return kernels(trace, "dtype", role="dense_gemm")


def blocked(engine) -> str:
    return "" if engine.has_triton else "its kernel is Triton's, and the engine runs the naive ones"


@contextmanager
def apply(engine) -> Iterator[None]:
    from optim.kernels.linear.gemv import linear

    with exchanged(engine.model.decode_ops, linear=linear):
        yield


def took_effect(engine) -> str:
    used = engine.model.decode_ops.linear.__module__
    if used != "optim.kernels.linear.gemv":
        raise NotOn(f"linear is that of {used}")
    return "linear is that of optim/kernels/linear/gemv.py"

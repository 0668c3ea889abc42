"""Projections of one token by a matrix-vector kernel instead of cuBLAS, whose tiles leave much of the device idle."""

import pandas as pd

from optim.base import operation
from optim.sites import kernels

removes = "the bandwidth that tiles for many tokens waste on one"
rung = 9
exact = False
blocked, apply, took_effect = operation("linear", "optim.kernels.linear.gemv")


def find(trace) -> pd.DataFrame:
    return kernels(trace, "scale", role="dense_gemm")

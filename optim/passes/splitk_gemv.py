"""Projections of one token by matrix-vector kernels, split-K for few rows: cuBLAS leaves much of the device idle."""

import pandas as pd

from ling_prof.whatif.edits import drop, named, shorten
from optim.base import operation
from optim.sites import kernels

removes = "the bandwidth that tiles for many tokens waste on one"
lowers = "dense_gemm"
rung = 9
exact = False
MATRICES = "^(?!.*gemv)(nvjet|.*(cublas|cutlass|wgmma|(?<!i)gemm|splitK))"  # products not made for one token
blocked, apply, took_effect = operation("linear", "optim.kernels.linear.gemv")


def find(trace) -> pd.DataFrame:
    return kernels(trace, "shorten", name=MATRICES, role="dense_gemm")


def predict(graph, costs):
    graph = drop(graph, named(graph, "splitKreduce|reduce_1Block"))
    return shorten(graph, named(graph, MATRICES, role="dense_gemm"), costs.gemm, costs, early=True)

"""MLA's decode in four launches: norms, rotation, storing, both halves of kv_b and the gate lie inside them."""

import pandas as pd

from optim.base import operation
from optim.sites import kernels

removes = "eight launches of an MLA layer, and idle processors while it attends"
rung = 14
exact = False
blocked, apply, took_effect = operation("mla_core", "optim.kernels.mla.fused")


def find(trace) -> pd.DataFrame:
    return kernels(trace, "fuse", layer="layer N mla")

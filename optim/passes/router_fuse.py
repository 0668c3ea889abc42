"""Norm, router, top-k and the shared expert's first half in one launch."""

import pandas as pd

from optim.base import operation
from optim.sites import kernels

removes = "six of the launches before the experts, and the wait for one program's top-k"
rung = 13
exact = False
blocked, apply, took_effect = operation("moe_front", "optim.kernels.moe.front")


def find(trace) -> pd.DataFrame:
    return kernels(trace, "fuse", name="rms_norm|router_topk|swiglu|direct_copy", layer="layer N moe")

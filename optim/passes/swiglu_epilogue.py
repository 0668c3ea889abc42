"""Activates in the epilogue of the experts' up-projection."""

import numpy as np
import pandas as pd

from ling_prof.whatif.edits import drop, named, runs
from optim.base import operation
from optim.sites import kernels

removes = "the activation kernel of the routed experts and its round trip through memory"
lowers = "small_kernels"
rung = 6
exact = True
blocked, apply, took_effect = operation("experts_up", "optim.kernels.moe.epilogue")


def find(trace) -> pd.DataFrame:
    return kernels(trace, "fuse", name="fused_moe|swiglu", layer="layer N moe")


def predict(graph, costs):
    """The activation between the two products of the routed experts goes."""
    between = runs(graph, named(graph, "fused_moe|act_and_mul|swiglu", role="moe_gemm|small"))
    wide = np.isin(between, between[named(graph, "fused_moe") & (between >= 0)])
    return drop(graph, named(graph, "act_and_mul|swiglu") & wide)

"""An MoE layer of one token in three launches: who reads the experts ranks them, from the router's logits."""

import pandas as pd

from ling_prof.whatif.edits import fuse, named, runs
from optim.base import operation
from optim.sites import kernels

removes = "every launch of an MoE layer but three, and the wait for one program's top-k"
lowers = "small_kernels"
rung = 14
replaces = ("moe_align_pairs", "moe_direct", "swiglu_epilogue")
exact = False
blocked, apply, took_effect = operation("moe", "optim.kernels.moe.fused")


def find(trace) -> pd.DataFrame:
    return kernels(trace, "fuse", name="^(?!moe_front|experts_(up|down)_kernel)", layer="layer N moe")


def predict(graph, costs):
    return fuse(graph, runs(graph, named(graph, layer="moe")), costs, into=3, early=True)

"""The experts of one token by two matrix-vector kernels, without sorting pairs or padding rows."""

import pandas as pd

from ling_prof.whatif.edits import behind, drop, named, shorten
from optim.base import operation
from optim.sites import kernels

removes = "alignment, padding and the separate sum of the experts"
lowers = "small_kernels"
rung = 10
replaces = ("moe_align_pairs", "swiglu_epilogue")
exact = False
blocked, apply, took_effect = operation("experts", "optim.kernels.moe.direct")


def find(trace) -> pd.DataFrame:
    return kernels(trace, "drop", name="moe_(?!front)", layer="layer N moe")


def predict(graph, costs):
    """No alignment, activation or sum of its own; the experts' products ask for weights early."""
    activations = behind(graph, named(graph, "swiglu|act_and_mul"), named(graph, "fused_moe"))
    graph = drop(drop(graph, activations), named(graph, "moe_align|combine|moe_sum", layer="moe"))
    return shorten(graph, named(graph, "fused_moe"), 0.0, costs, early=True)

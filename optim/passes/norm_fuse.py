"""Residual and RMSNorm inside the projection that reads them."""

import pandas as pd

from ling_prof.whatif.edits import merge, named
from optim.base import operation
from optim.sites import kernels

removes = "the launch of every norm, and its round trip through memory"
lowers = "small_kernels"
rung = 12
exact = False
blocked, apply, took_effect = operation("norm_linears", "optim.kernels.linear.normed")


def find(trace) -> pd.DataFrame:
    return kernels(trace, "merge", name="^rms_norm")


def predict(graph, costs):
    """The norm with which a half of a layer, or the head, begins becomes part of what follows."""
    norms = named(graph, "rms_?norm(?!.*gated)", role="small")
    opens = graph.layer.codes[norms] != graph.layer.codes[graph.before[norms]]
    return merge(graph, norms[opens], costs)

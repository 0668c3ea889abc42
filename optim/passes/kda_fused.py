"""Convolution, gate and delta rule of a KDA layer in one launch instead of three."""

import pandas as pd

from ling_prof.whatif.edits import merge, named
from optim.base import operation
from optim.sites import kernels

removes = "two of the launches of KDA between its projections, and their round trips"
lowers = "kda"
rung = 7
exact = True
blocked, apply, took_effect = operation("kda_core", "optim.kernels.kda.fused")


def find(trace) -> pd.DataFrame:
    return kernels(trace, "merge", name="^kda_(conv_update|gate|step)_kernel")


def predict(graph, costs):
    """Convolution and gate become part of the step."""
    return merge(graph, named(graph, "^kda_(conv_update|gate)_"), costs)

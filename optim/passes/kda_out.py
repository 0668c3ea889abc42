"""KDA's gated norm split between its step and its output projection: neither computes more than it must."""

import pandas as pd

from ling_prof.whatif.edits import merge, named
from optim.base import operation
from optim.passes import kda_fused
from optim.sites import kernels

removes = "the launch of KDA's gated norm, and its round trip through memory"
lowers = "kernels"
rung = 13
replaces = ("kda_fused",)
exact = False
blocked, apply, took_effect = operation("kda", "optim.kernels.kda.fused")


def find(trace) -> pd.DataFrame:
    return kernels(trace, "merge", name="^kda_gated_norm")


def predict(graph, costs):
    """As kda_fused, which it replaces; the gated norm becomes part of the product behind it too."""
    return merge(kda_fused.predict(graph, costs), named(graph, "^kda_gated_norm"), costs)

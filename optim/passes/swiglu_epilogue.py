"""Activates in the epilogue of the experts' up-projection."""

import pandas as pd

from ling_prof.whatif.edits import behind, merge, named
from optim.base import operation
from optim.sites import kernels

removes = "the activation kernel of the routed experts and its round trip through memory"
lowers = "small_kernels"
rung = 6
exact = True
blocked, apply, took_effect = operation("experts_up", "optim.kernels.moe.epilogue")


def find(trace) -> pd.DataFrame:
    return kernels(trace, "merge", name="fused_moe|swiglu", layer="layer N moe")


def predict(graph, costs):
    """The activation behind the experts' first product becomes part of what follows."""
    activations = behind(graph, named(graph, "act_and_mul|swiglu"), named(graph, "fused_moe"))
    return merge(graph, activations, costs)

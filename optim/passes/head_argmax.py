"""The last norm and the argmax inside the head, which writes the token itself."""

from functools import partial

import pandas as pd

from ling_prof.whatif.edits import fuse, named, runs
from optim.base import operation
from optim.sites import kernels

removes = "the launches around the head: norm, argmax and the copy of the token"
lowers = "small_kernels"
rung = 16
exact = False
blocked, apply, took_effect = operation(
    "head", "optim.kernels.linear.head", lambda engine, module: partial(module.head, token=engine.token)
)


def find(trace) -> pd.DataFrame:
    return kernels(trace, "fuse", name="reduce_kernel|direct_copy|rms_norm", layer="head|sample")


def predict(graph, costs):
    """Two launches: the head with its norm, and the best of its parts."""
    return fuse(graph, runs(graph, named(graph, layer="^(head|sample)$"), across=True), costs, into=2, early=True)

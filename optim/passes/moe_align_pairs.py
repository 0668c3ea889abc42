"""Sorts the pairs of token and expert in one launch, comparing each with each in registers."""

import pandas as pd

from ling_prof.whatif.edits import fuse, named, runs
from optim.base import operation
from optim.sites import kernels

removes = "one of the two launches of the alignment"
lowers = "small_kernels"
rung = 5
exact = True
ALIGN = "moe_align|count_and_sort_expert_tokens"  # SGLang's two, too
blocked, apply, took_effect = operation("moe_align", "optim.kernels.moe.pairs")


def find(trace) -> pd.DataFrame:
    return kernels(trace, "fuse", name=ALIGN)


def predict(graph, costs):
    return fuse(graph, runs(graph, named(graph, ALIGN)), costs, moves=False)

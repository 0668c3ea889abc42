"""The metadata refill as part of the forward pass: its first launch, which reads the embedding, does both."""

from collections.abc import Iterator
from contextlib import contextmanager

import pandas as pd

from ling_prof.whatif.edits import fuse, named, runs
from optim.base import exchanged, operation
from optim.sites import kernels

removes = "the seam between two forward passes: its kernels, its gaps and a graph launch"
lowers = "small_kernels"
rung = 17
replaces = ("seam_graph",)
exact = True


def _bind(engine, module):
    return lambda tokens, table: module.begin(tokens, table, engine.seen, engine.cache, engine.meta)


blocked, exchange, took_effect = operation("embed", "optim.kernels.embed.seam", _bind)


def find(trace) -> pd.DataFrame:
    return kernels(trace, "fuse", layer="seam")


def predict(graph, costs):
    """One launch with the embedding's, in the graph of the forward pass."""
    return fuse(graph, runs(graph, named(graph, layer="^(seam|embed)$"), across=True), costs, moves=False)


@contextmanager
def apply(engine) -> Iterator[None]:
    with exchange(engine), exchanged(engine, seam=lambda seen: None, count=lambda: None):
        yield

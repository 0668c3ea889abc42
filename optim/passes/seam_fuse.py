"""The metadata refill as part of the forward pass: its first launch, which reads the embedding, does both."""

from collections.abc import Iterator
from contextlib import contextmanager

import pandas as pd

from optim.base import Counted, NotOn, exchanged, operation
from optim.sites import kernels

removes = "the seam between two forward passes: its kernels, its gaps and a graph launch"
rung = 17
replaces = ("seam_graph",)
exact = True
blocked, _, _ = operation("embed", "optim.kernels.embed.seam")


def find(trace) -> pd.DataFrame:
    return kernels(trace, "fuse", layer="seam")


@contextmanager
def apply(engine) -> Iterator[None]:
    from optim.kernels.embed.seam import begin

    def embed(tokens, table):
        return begin(tokens, table, engine.seen, engine.cache, engine.meta)

    with (
        exchanged(engine.model.decode_ops, embed=Counted(embed)),
        exchanged(engine, seam=lambda seen: None, count=lambda: None),
    ):
        yield


def took_effect(engine) -> str:
    used = engine.model.decode_ops.embed
    if not isinstance(used, Counted) or not used.calls:
        raise NotOn("the metadata is refilled apart from the forward pass.")
    return f"the first launch refills the metadata, called {used.calls} times while the step was prepared"

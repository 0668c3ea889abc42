"""Refills the metadata between two forward passes by one small captured graph, from the length on the device."""

from collections.abc import Iterator
from contextlib import contextmanager

import pandas as pd

from ling_prof.whatif.edits import named, to_graph
from optim.base import NotOn, exchanged, once
from optim.sites import idle

removes = "the launches of the metadata seam, and the host's part in it"
lowers = "launches"
rung = 3
exact = True


def find(trace) -> pd.DataFrame:
    return idle(trace, "to_graph", "host_bound", layer="seam")


def predict(graph, costs):
    return to_graph(graph, named(graph, layer="^seam$"), costs)


def blocked(engine) -> str:
    return "" if engine.can_graph else "a CUDA graph needs a GPU and the Triton kernels"


@contextmanager
def apply(engine) -> Iterator[None]:
    from optim.engine.graph import Graph

    graph = once(engine, "seam_graph", lambda: Graph(lambda: engine.meta.refill_on_device(engine.cache, engine.seen)))
    with exchanged(engine, seam=graph):
        yield


def took_effect(engine) -> str:
    from optim.engine.graph import Graph

    if not isinstance(engine.seam, Graph):
        raise NotOn("the seam is refilled eagerly.")
    return f"the seam is a captured CUDA graph of {len(engine.seam.edges())} edges"

"""Replays a decode step's forward pass as one CUDA graph instead of launching every kernel."""

from collections.abc import Iterator
from contextlib import contextmanager

import pandas as pd

from ling_prof.whatif.edits import named, to_graph
from optim.base import NotOn, exchanged
from optim.sites import launches

removes = "the host's launch of every kernel"
lowers = "launches"
rung = 1
exact = True


def find(trace) -> pd.DataFrame:
    return launches(trace, "to_graph")


def predict(graph, costs):
    return to_graph(graph, named(graph), costs)


def blocked(engine) -> str:
    return "" if engine.can_graph else "a CUDA graph needs a GPU and the Triton kernels"


@contextmanager
def apply(engine) -> Iterator[None]:
    with exchanged(engine, use_graph=True):
        yield


def took_effect(engine) -> str:
    if not engine.captured:
        raise NotOn("the forward pass is not captured.")
    return "the forward pass is a captured CUDA graph"

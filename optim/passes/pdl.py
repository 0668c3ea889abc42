"""Chains the Triton kernels by programmatic dependent launch: each begins while the one before it ends."""

from collections.abc import Iterator
from contextlib import contextmanager

import pandas as pd

from ling_prof.whatif.edits import chain
from optim.base import NotOn, exchanged
from optim.sites import idle

removes = "launch gaps between the kernels of a graph"
lowers = "graph_dependency"
rung = 4
exact = True
predicted_last = True  # it acts on the kernels that the others leave


def find(trace) -> pd.DataFrame:
    return idle(trace, "chain", "graph_dependency", "dependency")


def predict(graph, costs):
    return chain(graph, costs)


def blocked(engine) -> str:
    import torch

    if not engine.can_graph:
        return "programmatic dependent launch needs a GPU and the Triton kernels"
    if not engine.use_graph:
        return "its edges can be counted only in a graph; apply cuda_graph first"
    return "" if torch.cuda.get_device_capability(engine.token.device)[0] >= 9 else "the GPU is older than Hopper"


@contextmanager
def apply(engine) -> Iterator[None]:
    from optim.kernels import launch

    with exchanged(launch, chained=launch.WAITS):
        yield


def took_effect(engine) -> str:
    if not engine.captured:
        raise NotOn("the forward pass is not captured, so its edges cannot be counted.")
    edges, programmatic = engine.graph_edges()
    if not programmatic:
        raise NotOn(f"none of {edges} edges of the captured graph is programmatic.")
    return f"{programmatic} of {edges} edges of the captured graph are programmatic"

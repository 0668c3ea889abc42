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
    """Other kernels lie between ours, but where two of ours follow each other the edge must be programmatic."""
    from optim.kernels.launch import names

    if not engine.captured:
        raise NotOn("the forward pass is not captured, so its edges cannot be counted.")
    edges, ours = engine.graph_edges(), names()
    own = [edge for edge in edges if edge.before in ours and edge.after in ours]
    if full := [edge for edge in own if not edge.programmatic]:
        raise NotOn(f"{len(full)} of {len(own)} edges are full, such as {full[0].before} to {full[0].after}.")
    if not own:
        raise NotOn(f"none of {len(edges)} edges of the captured graph lies between two chained kernels.")
    programmatic = sum(edge.programmatic for edge in edges)
    said = f"all {len(own)} between two chained kernels"
    return f"{programmatic} of {len(edges)} edges of the captured graph are programmatic, {said} among them"

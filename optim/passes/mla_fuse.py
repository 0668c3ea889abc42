"""MLA's decode between its first and last projections in four launches, five where queries have no low rank."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pandas as pd

from ling_prof.whatif.edits import fuse, named, runs
from optim.base import once, operation
from optim.sites import kernels

removes = "eight launches of an MLA layer, and idle processors while it attends"
lowers = "mla"
rung = 15
exact = False
OWN = "norm_gemv|gemv|mla_(query|absorb|split|join|values)_"
blocked, exchange, took_effect = operation("mla_core", "optim.kernels.mla.fused")


def find(trace) -> pd.DataFrame:
    return kernels(trace, "fuse", name=f"^(?!{OWN})", layer="layer N mla")


def predict(graph, costs):
    """Six launches: the projections, query, split, join, values, and the product out."""
    return fuse(graph, runs(graph, named(graph, layer="mla")), costs, into=6, early=True)


@contextmanager
def apply(engine) -> Iterator[None]:
    with ExitStack() as stack:
        for layer, matrix in once(engine, "mla_fuse", lambda: _absorbed(engine)):
            vars(layer)["q_absorbed"] = matrix
            stack.callback(vars(layer).pop, "q_absorbed")
        stack.enter_context(exchange(engine))
        yield


def _absorbed(engine) -> list:
    """Every MLA layer whose queries have a low rank, with W_uk multiplied into them."""
    from optim.kernels.mla.fused import absorbed

    c = engine.c
    if c.q_lora is None:
        return []
    return [(w, absorbed(w, c)) for i, w in enumerate(engine.w.layers) if c.is_mla(i)]

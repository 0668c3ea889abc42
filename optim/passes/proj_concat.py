"""Projections that read the same input as one matrix: one launch reads what lies side by side."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pandas as pd

from ling_prof.whatif.edits import fuse, named, runs
from optim.base import NotOn, exchanged, once
from optim.sites import kernels

removes = "three launches of a KDA layer and two of an MLA layer"
lowers = "dense_gemm"
rung = 11
exact = False


def find(trace) -> pd.DataFrame:
    return kernels(trace, "fuse", name="^(?!norm_gemv)", role="dense_gemm", layer="layer N (kda|mla)")


def predict(graph, costs):
    return fuse(graph, runs(graph, named(graph, layer="kda|mla", role="dense_gemm")), costs, early=True)


def blocked(engine) -> str:
    return ""


@contextmanager
def apply(engine) -> Iterator[None]:
    from optim.kernels.linear.concat import linears

    moved = once(engine, "proj_concat", lambda: [_moved(engine, i) for i in range(engine.c.layers)])
    with ExitStack() as stack:
        for layer, fields in zip(engine.w.layers, moved, strict=True):
            stack.enter_context(exchanged(layer, **fields))
        stack.enter_context(exchanged(engine.model.decode_ops, linears=linears))
        yield


def _moved(engine, layer: int) -> dict:
    """The layer's projections of one input, field by field, one behind the other."""
    from optim.engine import kda, mla
    from optim.kernels.linear.concat import adjacent

    c, w = engine.c, engine.w.layers[layer]
    matrices = mla.projections(w, c) if c.is_mla(layer) else kda.projections(w)
    names = [name for matrix in matrices for name, tensor in vars(w).items() if tensor is matrix]
    return dict(zip(names, adjacent(matrices), strict=True))


def took_effect(engine) -> str:
    from optim.engine import kda, mla
    from optim.kernels.linear.concat import joined, linears

    c, layers = engine.c, engine.w.layers
    shared = [mla.projections(w, c) if c.is_mla(i) else kda.projections(w) for i, w in enumerate(layers)]
    if engine.model.decode_ops.linears is not linears or any(joined(m) is None for m in shared):
        raise NotOn("projections of one input lie apart.")
    return f"{sum(map(len, shared))} projections of one input lie in {len(shared)} matrices"

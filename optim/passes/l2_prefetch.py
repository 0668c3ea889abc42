"""Asks for the next layer's first matrix in the L2 cache while the router is at work and the memory idle."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pandas as pd

from optim.base import NotOn
from optim.sites import kernels

removes = "the memory's idle time around the router"
rung = 17
exact = True


def find(trace) -> pd.DataFrame:
    return kernels(trace, "scale", name="moe_front|router_topk")


def blocked(engine) -> str:
    used = engine.model.decode_ops.moe
    fused = getattr(used, "function", used).__module__ == "optim.kernels.moe.fused"
    return "" if fused else "it rides on a launch of moe_fuse; apply that first"


@contextmanager
def apply(engine) -> Iterator[None]:
    with ExitStack() as stack:
        for layer, matrix in zip(engine.w.layers, _following(engine), strict=True):
            vars(layer)["ahead"] = matrix
            stack.callback(vars(layer).pop, "ahead")
        yield


def _following(engine) -> list:
    """What each layer's successor reads first."""
    from optim.engine import kda, mla
    from optim.kernels.linear.concat import joined

    firsts = []
    for i, w in enumerate(engine.w.layers):
        matrices = mla.projections(w, engine.c) if engine.c.is_mla(i) else kda.projections(w)
        whole = joined(matrices)
        firsts.append(matrices[0] if whole is None else whole)
    return [*firsts[1:], engine.w.head]


def took_effect(engine) -> str:
    ahead = [layer.ahead for layer in engine.w.layers if hasattr(layer, "ahead")]
    if not ahead:
        raise NotOn("no layer asks for what comes next.")
    return f"{len(ahead)} layers ask for up to {max(matrix.nbytes for matrix in ahead) / 1e6:.1f} MB of what comes next"

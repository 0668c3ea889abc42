"""The router and the shared expert's first matrix as one: both read the same norm, so one launch reads both."""

from collections.abc import Iterator
from contextlib import contextmanager

import pandas as pd

from ling_prof.whatif.edits import drop, named
from optim.base import NotOn, exchanged, once
from optim.sites import kernels

removes = "the router's own product, with the cast before it and the sum behind it"
lowers = "dense_gemm"
rung = 18
replaces = ("bf16_gate",)
exact = False
ROUTER = "dot_kernel|reduce_1Block|direct_copy"  # how cuBLAS multiplies one token by an fp32 matrix, and the cast


def find(trace) -> pd.DataFrame:
    return kernels(trace, "drop", name=ROUTER, layer="layer N moe")


def predict(graph, costs):
    """Its bytes move to the other product: a tenth of a microsecond, which is neglected."""
    return drop(graph, named(graph, ROUTER, layer="moe"))


def blocked(engine) -> str:
    return ""


@contextmanager
def apply(engine) -> Iterator[None]:
    matrices = once(
        engine, "router_concat", lambda: {id(w): joined(w) for w in engine.w.layers if hasattr(w, "router")}
    )
    with exchanged(engine.model.decode_ops, moe=Moe(matrices)):
        yield


def joined(w):
    """(experts + 2 I, hidden): the router's rows, then those of the shared expert."""
    import torch

    return torch.cat([w.router.to(w.shared_gate_up.dtype), w.shared_gate_up])


class Moe:
    """As optim.engine.compose.moe, with one product in place of two. matrices: by the id of a layer's weights."""

    def __init__(self, matrices):
        self.matrices, self.calls = matrices, 0

    def __call__(self, x, residual, w, c, limits, ops):
        from optim.engine.compose import join

        self.calls += 1
        x, residual = join(x, residual, w.mlp_norm, c.eps, ops)
        logits, shared = ops.linear(x, self.matrices[id(w)]).split([c.experts, len(w.shared_gate_up)], -1)
        weights, chosen = ops.route(logits.float(), w.bias, c.groups, c.kept_groups, c.top_k, c.routed_scaling)
        shared = ops.swiglu(shared, limits[0])
        return ops.experts(x, w, weights, chosen, shared, limits[1], ops), residual


def took_effect(engine) -> str:
    used = engine.model.decode_ops.moe
    if not isinstance(used, Moe) or not used.calls:
        raise NotOn("no MoE layer multiplies by a joined matrix.")
    return f"{len(used.matrices)} MoE layers multiply by one matrix; {used.calls} calls while the step was prepared"

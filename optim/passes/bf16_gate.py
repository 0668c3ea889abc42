"""Keeps the routers in the model dtype instead of fp32; scores and top-k stay in fp32."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pandas as pd

from ling_prof.whatif.edits import named, scale
from optim.base import NotOn, exchanged, once
from optim.sites import kernels

removes = "half the bytes of the routers, and the cast of their input"
lowers = "dense_gemm"
rung = 8
exact = False
LAYER, FP32 = "moe", r"<float, 128, |gemv.*float, float"  # cuBLAS, where one token meets an fp32 matrix


def find(trace) -> pd.DataFrame:
    return kernels(trace, "scale", name="cublasDot|cublasGemv|gemv|direct_copy", layer="layer N moe")


def predict(graph, costs):
    """The product stays as short as a kernel can be; the cast of its input goes, one of its output comes."""
    graph = scale(graph, named(graph, FP32, layer=LAYER), 0.5, costs)
    casts = named(graph, "direct_copy", layer=LAYER)
    return scale(graph, casts, 0.0, costs)


def blocked(engine) -> str:
    return "" if engine.w.embed.itemsize < 4 else "the model itself is in fp32"


@contextmanager
def apply(engine) -> Iterator[None]:
    layers, dtype = _routed(engine), engine.w.embed.dtype
    narrow = once(engine, "bf16_gate", lambda: [layer.router.to(dtype) for layer in layers])
    with ExitStack() as stack:
        for layer, router in zip(layers, narrow, strict=True):
            stack.enter_context(exchanged(layer, router=router))
        yield


def took_effect(engine) -> str:
    dtypes = {layer.router.dtype for layer in _routed(engine)}
    if dtypes != {engine.w.embed.dtype}:
        raise NotOn(f"routers are {dtypes}.")
    return f"{len(_routed(engine))} routers are {engine.w.embed.dtype}"


def _routed(engine) -> list:
    return [layer for layer in engine.w.layers if hasattr(layer, "router")]

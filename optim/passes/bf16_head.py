"""Keeps the output head in the model dtype instead of fp32."""

from collections.abc import Iterator
from contextlib import contextmanager

import pandas as pd

from ling_prof.whatif.edits import named, scale
from optim.base import NotOn, exchanged, once
from optim.sites import kernels

removes = "half the bytes of the output head"
lowers = "dense_gemm"
rung = 8
exact = False
FP32 = "gemv.*float, float|sgemm"


def find(trace) -> pd.DataFrame:
    return kernels(trace, "scale", name=FP32, layer="head")


def predict(graph, costs):
    casts = named(graph, "direct_copy", layer="head")
    return scale(scale(graph, casts, 0.0, costs), named(graph, FP32, layer="head"), 0.5, costs)


def blocked(engine) -> str:
    return "" if engine.w.embed.itemsize < 4 else "the model itself is in fp32"


@contextmanager
def apply(engine) -> Iterator[None]:
    narrow = once(engine, "bf16_head", lambda: engine.w.head.to(engine.w.embed.dtype))
    with exchanged(engine.w, head=narrow):
        yield


def took_effect(engine) -> str:
    if engine.w.head.dtype != engine.w.embed.dtype:
        raise NotOn(f"the head is {engine.w.head.dtype}.")
    return f"the head is {engine.w.head.dtype}"

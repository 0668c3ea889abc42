"""Activates in the epilogue of the experts' up-projection."""

from collections.abc import Iterator
from contextlib import contextmanager

import pandas as pd

from optim.base import NotOn, exchanged
from optim.sites import kernels

removes = "the activation kernel of the routed experts and its round trip through memory"
exact = True


def find(trace) -> pd.DataFrame:
    return kernels(trace, "fuse", name="fused_moe|swiglu", layer="layer N moe")


def blocked(engine) -> str:
    return "" if engine.has_triton else "its kernel is Triton's, and the engine runs the naive ones"


@contextmanager
def apply(engine) -> Iterator[None]:
    from optim.kernels.moe.epilogue import experts_up

    with exchanged(engine.model.decode_ops, experts_up=experts_up):
        yield


def took_effect(engine) -> str:
    used = engine.model.decode_ops.experts_up.__module__
    if used != "optim.kernels.moe.epilogue":
        raise NotOn(f"experts_up is that of {used}")
    return "experts_up is that of optim/kernels/moe/epilogue.py"

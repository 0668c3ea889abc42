"""The routed experts of one token by two matrix-vector kernels, without sorting pairs or padding rows."""

from collections.abc import Iterator
from contextlib import contextmanager

import pandas as pd

from optim.base import NotOn, exchanged
from optim.sites import kernels

removes = "alignment, padding and the separate sum of the routed experts"
exact = False


def find(trace) -> pd.DataFrame:
    return kernels(trace, "fuse", name="moe_|swiglu", layer="layer N moe")


def blocked(engine) -> str:
    return "" if engine.has_triton else "its kernel is Triton's, and the engine runs the naive ones"


@contextmanager
def apply(engine) -> Iterator[None]:
    from optim.kernels.moe.direct import routed

    with exchanged(engine.model.decode_ops, routed=routed):
        yield


def took_effect(engine) -> str:
    used = engine.model.decode_ops.routed.__module__
    if used != "optim.kernels.moe.direct":
        raise NotOn(f"routed is that of {used}")
    return "routed is that of optim/kernels/moe/direct.py"

"""Convolution, gate and delta rule of a KDA layer in one launch instead of three."""

from collections.abc import Iterator
from contextlib import contextmanager

import pandas as pd

from optim.base import NotOn, exchanged
from optim.sites import kernels

removes = "two of KDA's launches between its projections, and their round trips"
exact = True


def find(trace) -> pd.DataFrame:
    return kernels(trace, "fuse", name="^kda_")


def blocked(engine) -> str:
    return "" if engine.has_triton else "its kernel is Triton's, and the engine runs the naive ones"


@contextmanager
def apply(engine) -> Iterator[None]:
    from optim.kernels.kda.fused import kda_decode

    with exchanged(engine.model.decode_ops, kda_decode=kda_decode):
        yield


def took_effect(engine) -> str:
    used = engine.model.decode_ops.kda_decode.__module__
    if used != "optim.kernels.kda.fused":
        raise NotOn(f"kda_decode is that of {used}")
    return "kda_decode is that of optim/kernels/kda/fused.py"

"""Sorts the pairs of token and expert in one launch, comparing each with each in registers."""

from collections.abc import Iterator
from contextlib import contextmanager

import pandas as pd

from optim.base import NotOn, exchanged
from optim.sites import kernels

removes = "one of the two launches of the alignment"
exact = True


def find(trace) -> pd.DataFrame:
    return kernels(trace, "fuse", name="moe_align")


def blocked(engine) -> str:
    return "" if engine.has_triton else "its kernel is Triton's, and the engine runs the naive ones"


@contextmanager
def apply(engine) -> Iterator[None]:
    from optim.kernels.moe.pairs import moe_align

    with exchanged(engine.model.decode_ops, moe_align=moe_align):
        yield


def took_effect(engine) -> str:
    used = engine.model.decode_ops.moe_align.__module__
    if used != "optim.kernels.moe.pairs":
        raise NotOn(f"moe_align is that of {used}")
    return "moe_align is that of optim/kernels/moe/pairs.py"

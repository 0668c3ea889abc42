"""The last norm and the argmax inside the head, which writes the token itself."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pandas as pd

from optim.base import Counted, NotOn, exchanged, operation
from optim.sites import kernels

removes = "the launches around the head: norm, argmax and the copy of the token"
rung = 16
exact = False
MODULE = "optim.kernels.linear.head"
blocked, _, _ = operation("head", MODULE)


def find(trace) -> pd.DataFrame:
    return kernels(trace, "fuse", name="reduce_kernel|direct_copy|rms_norm", layer="sample")


@contextmanager
def apply(engine) -> Iterator[None]:
    from optim.kernels.linear.head import head

    with exchanged(engine.model.decode_ops, head=Counted(partial(head, token=engine.token))):
        yield


def took_effect(engine) -> str:
    used = engine.model.decode_ops.head
    if not isinstance(used, Counted) or not used.calls:
        raise NotOn("the head leaves the argmax to another launch.")
    return f"the head writes the token, called {used.calls} times while the step was prepared"

"""Residual and RMSNorm inside the projection that reads them, and KDA's gated norm inside its output projection."""

from collections.abc import Iterator
from contextlib import contextmanager

import pandas as pd

from optim.base import operation
from optim.sites import kernels

removes = "the launch of every norm, and its round trip through memory"
rung = 12
exact = False
MODULE = "optim.kernels.linear.normed"
PARTS = [operation(name, MODULE) for name in ("norm_linears", "gated_norm_linear")]
blocked = PARTS[0][0]


def find(trace) -> pd.DataFrame:
    return kernels(trace, "fuse", name="rms_norm|gated_norm")


@contextmanager
def apply(engine) -> Iterator[None]:
    with PARTS[0][1](engine), PARTS[1][1](engine):
        yield


def took_effect(engine) -> str:
    return "; ".join(proof(engine) for *_, proof in PARTS)

"""Cuts the context of latent attention into fewer parts, so that joining them again does not outlast the reading.

SGLang cuts it into as many parts as there are processors; each head then joins them one after the other.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from optim.sglang.patch import exchanged
from optim.sglang.registry import State

removes = "most steps of the loop that joins the parts of a context"
exact = False
default = False
PARTS = 64  # at most; joining 256, one after the other, took 23 us a layer on an H200, reading them 20


@contextmanager
def change() -> Iterator[None]:
    def fewer(cap):
        return lambda *args, **more: min(cap(*args, **more), PARTS)

    with exchanged("sglang.srt.layers.attention.triton_backend:_mla_decode_kv_splits_cap", fewer):
        yield


def took_effect(rank) -> State:
    parts = getattr(rank.attention, "max_kv_splits", None)
    if parts is None or not getattr(rank.attention, "use_mla", False):
        return State(None, "latent attention does not run on the Triton backend")
    return State(parts <= PARTS, f"a context is cut into at most {parts} parts")

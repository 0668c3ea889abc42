"""Lets latent attention cut a context into 64 parts at most, as many as the loop that joins them goes over.

SGLang allows as many parts as there are processors, and each head's loop goes over all of them, also the empty ones.
Below about 16,000 tokens of context it cuts into fewer than 64 anyway: there nothing is rounded in another way.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from optim.sglang.patch import exchanged
from optim.sglang.registry import State

removes = "steps of the loop that joins the parts of a context, most of them empty"
exact = False
default = False
PARTS = 64  # at 8192 tokens a loop over 256 took 23 us a layer on an H200, one over 64 took 15


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

"""Launches the next step before the host knows how long the sequences are.

One backend that needs the lengths on the host makes the scheduler read them back, blocking, every speculative step.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from optim.sglang.inside import PLAIN
from optim.sglang.patch import exchanged
from optim.sglang.registry import State

removes = "the wait of the host for the sequence lengths, every speculative step"
exact = True
default = True
speculative = True


@contextmanager
def change() -> Iterator[None]:
    target = "sglang.srt.layers.attention.linear.kda_backend:KDAAttnBackend.needs_cpu_seq_lens"
    with exchanged(target, lambda _: True):
        yield


def took_effect(rank) -> State:
    if rank.speculator is None:
        return State(None, f"{PLAIN}: no lengths are read back")
    waits = rank.scheduler.future_map.needs_cpu_seq_lens
    kda = rank.linear_attention.needs_cpu_seq_lens
    return State(not waits, f"future_map.needs_cpu_seq_lens is {waits}, that of the KDA backend {kda}")

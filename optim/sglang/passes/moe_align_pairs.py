"""Sorts the pairs of token and expert of a small batch in one launch instead of two."""

from collections.abc import Iterator
from contextlib import contextmanager

from optim.sglang.patch import exchanged
from optim.sglang.registry import State

removes = "one launch a layer, and the pass over all experts"
exact = True
default = True
ONE, TWO = "_moe_align_small_numel_kernel", "count_and_sort_expert_tokens"


@contextmanager
def change() -> Iterator[None]:
    target = "sglang.srt.layers.moe.moe_runner.triton_utils.moe_align_block_size:SMALL_NUMEL_LIMIT"
    with exchanged(target, lambda _: 0):
        yield


def took_effect(rank) -> State:
    one, two = rank.launches(ONE), rank.launches(TWO)
    if not one and not two:
        return State(None, f"the captured graphs launch neither {ONE} nor {TWO}")
    return State(not two, f"the captured graphs launch {ONE} {one} times, {TWO} {two} times")

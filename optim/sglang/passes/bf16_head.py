"""Keeps the head in bf16 instead of fp32; logits are sampled in fp32 either way."""

from collections.abc import Iterator
from contextlib import contextmanager

from optim.sglang.patch import exchanged
from optim.sglang.registry import State

removes = "half the bytes of the head"
exact = False
default = True


@contextmanager
def change() -> Iterator[None]:
    import torch

    def wide(head):
        return lambda *args, **more: head(*args, **{**more, "params_dtype": torch.float32})

    with exchanged("sglang.srt.models.bailing_moe_v3:ParallelLMHead", wide):
        yield


def took_effect(rank) -> State:
    dtype = str(rank.runner.model.lm_head.weight.dtype)
    return State(dtype == "torch.bfloat16", f"the head is {dtype}")

"""Keeps the routers in bf16 instead of the fp32 of the checkpoint; scores and top-k stay in fp32."""

from collections.abc import Iterator
from contextlib import contextmanager

from optim.sglang.patch import exchanged
from optim.sglang.registry import State

removes = "half the bytes of the routers"
exact = False
default = True


@contextmanager
def change() -> Iterator[None]:
    import torch

    def wide(init):
        return lambda self, *args, **more: init(self, *args, **{**more, "params_dtype": torch.float32})

    with exchanged("sglang.srt.models.bailing_moe_v3:BailingMoEGate.__init__", wide):
        yield


def took_effect(rank) -> State:
    gates = rank.modules("BailingMoEGate")
    if not gates:
        return State(None, "this model has no BailingMoEGate")
    dtypes = sorted({str(gate.weight.dtype) for gate in gates})
    return State(dtypes == ["torch.bfloat16"], f"{len(gates)} routers are {' and '.join(dtypes)}")

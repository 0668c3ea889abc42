"""Projects a single token by the pack's matrix-vector kernels, chained where SGLang chains its own."""

from collections.abc import Iterator
from contextlib import contextmanager

from optim.sglang.patch import exchanged, owner
from optim.sglang.registry import State

removes = "the bandwidth that tiles for many tokens waste on one"
exact = False
default = False
TARGET = "sglang.srt.layers.quantization.unquant:UnquantizedLinearMethod.apply"
CHAINS = "sglang.kernels.jit.utils.arch:is_arch_support_pdl"
DEVICE = "cuda"


@contextmanager
def change() -> Iterator[None]:
    owner(CHAINS)
    with exchanged(TARGET, _by_rows):
        yield


def _by_rows(usual):
    def apply(self, layer, x, bias=None):
        if bias is None and _is_one_token(x, layer.weight):
            return _product(x, layer.weight)
        return usual(self, layer, x, bias)

    return apply


def _is_one_token(x, weight) -> bool:
    """x (..., K) with a single row, weight (N, K), both in bf16 on a GPU and without holes."""
    import torch

    plain = all(one.device.type == DEVICE and one.dtype == torch.bfloat16 for one in (x, weight))
    dense = x.is_contiguous() and weight.is_contiguous()
    return plain and dense and weight.ndim == 2 and x.shape[-1] == weight.shape[1] == x.numel()


def _product(x, weight):
    """(..., K) and (N, K) -> (..., N)."""
    from optim.kernels import launch
    from optim.kernels.linear import gemv

    holder, name = owner(CHAINS)
    launch.chained = launch.WAITS if getattr(holder, name)() else 0
    return gemv.linear(x.view(1, -1), weight).view(*x.shape[:-1], -1)


def took_effect(rank) -> State:
    ours = rank.launches("gemv_kernel") + rank.launches("gemv_split_kernel")
    return State(ours > 0, f"the captured graphs launch {ours} products by rows, {rank.launches('nvjet')} of cuBLAS")

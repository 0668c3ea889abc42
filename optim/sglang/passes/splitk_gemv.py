"""Projects a single token by the pack's matrix-vector kernels.

They are chained where SGLang chains its own: before they wait they read weights only, which no kernel writes.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from optim.sglang.passes.pdl import LIBRARY
from optim.sglang.patch import exchanged, owner
from optim.sglang.registry import State

removes = "the bandwidth that tiles for many tokens waste on one"
exact = False
default = False
TARGET = "sglang.srt.layers.quantization.unquant:UnquantizedLinearMethod.apply"
CHAINS = "sglang.kernels.jit.utils.arch:is_arch_support_pdl"
DEVICE = "cuda"
DEEPEST = 8192  # columns; a row is held in registers


@contextmanager
def change() -> Iterator[None]:
    from optim.kernels import launch

    before, chains = launch.chained, owner(CHAINS)
    try:
        with exchanged(TARGET, lambda usual: _by_rows(usual, *chains)):
            yield
    finally:
        launch.chained = before


def _by_rows(usual, arch, chains):
    """SGLang's product, but for a single token; arch.`chains`() says whether SGLang chains kernels."""
    import torch

    from optim.kernels import launch
    from optim.kernels.linear import gemv

    def apply(self, layer, x, bias=None):
        weight = layer.weight
        if bias is not None or torch.compiler.is_compiling() or not _is_one_token(x, weight):
            return usual(self, layer, x, bias)
        launch.chained = launch.WAITS if getattr(arch, chains)() else 0
        return gemv.linear(x.view(1, -1), weight).view(*x.shape[:-1], -1)

    return apply


def _is_one_token(x, weight) -> bool:
    """x (..., K) with a single row, weight (N, K), both plain bf16 tensors on a GPU and without holes."""
    import torch

    if type(weight.data) is not torch.Tensor or weight.ndim != 2:
        return False
    plain = all(
        one.device.type == DEVICE and one.dtype == torch.bfloat16 and one.is_contiguous() for one in (x, weight)
    )
    return plain and x.shape[-1] == weight.shape[1] == x.numel() <= DEEPEST


def took_effect(rank) -> State:
    ours = rank.launches("gemv_kernel") + rank.launches("gemv_split_kernel")
    theirs = sum(times for of in rank.kernels.values() for name, times in of.items() if LIBRARY.search(name))
    return State(
        ours > 0, f"the captured graphs launch {ours} products by rows, {theirs} kernels of vendors' libraries"
    )

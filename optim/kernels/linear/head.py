"""The head of one token in one launch: norm, logits and the likeliest token.

Each program offers its best logit to one number in memory by an atomic maximum; the last to finish reads it.
"""

import torch
import triton
import triton.language as tl

from optim.engine import compose
from optim.kernels.launch import chain, launch
from optim.kernels.linear.gemv import block, rows_of, tiles
from optim.kernels.linear.normed import gains_of, norm_of
from optim.kernels.moe.front import order_of
from optim.kernels.tiles import tile

__all__ = ["head"]

LEAST = 1 - 2**63


def head(x, residual, weight, matrix, eps, ops, token: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    """As in compose; writes the likeliest token into `token` (1) int64 and gives it back."""
    if len(x) > 1 or residual is None:
        return compose.head(x, residual, weight, matrix, eps, ops)
    n, depth = matrix.shape
    logits = torch.empty(1, n, dtype=torch.float32, device=x.device)
    best, counter = scratch(x.device)
    chosen = tile("head_argmax", (n, depth), tiles(n))
    launch(head_argmax_kernel, (triton.cdiv(n, chosen["BN"]),))(
        *(x, residual, weight, matrix, best, counter, logits, token, n, eps, depth), BK=block(depth), **chosen
    )
    return logits, token


state: dict[torch.device, tuple[torch.Tensor, torch.Tensor]] = {}


def scratch(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """The best so far, as `order_of` has it, and how many programs have finished; the last one sets both back."""
    if device not in state:
        best = torch.full((1,), LEAST, dtype=torch.int64, device=device)
        state[device] = best, torch.zeros(1, dtype=torch.int32, device=device)
    return state[device]


@triton.jit
def head_argmax_kernel(
    x, residual, weight, matrix, best, counter, logits, token, n, eps,
    depth: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * BN + tl.arange(0, BN)
    tiles = rows_of(matrix, row, n, depth, BK)
    gains = gains_of(weight, depth, BK)
    chain(PDL)
    values = norm_of(x, residual, gains, x, 0, eps, depth, True, BK)
    products = tl.zeros((BN, BK), tl.float32)
    for i in tl.static_range(len(tiles)):
        products += tiles[i].to(tl.float32) * values[i].to(tl.float32)[None, :]
    found = tl.sum(products, 1)
    tl.store(logits + row, found, row < n)
    order = tl.where(row < n, order_of(found, row, 0x7FFFFFFF), -0x7FFFFFFFFFFFFFFF)
    tl.atomic_max(best, tl.max(order))
    tl.debug_barrier()
    if tl.atomic_add(counter, 1) == tl.cdiv(n, BN) - 1:
        top = tl.atomic_max(best, -0x7FFFFFFFFFFFFFFF)
        tl.store(token, (0x7FFFFFFE - (top & 0x7FFFFFFF)).to(tl.int64))
        tl.store(best, -0x7FFFFFFFFFFFFFFF)
        tl.store(counter, 0)

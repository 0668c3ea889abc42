"""The head of one token in two launches: norm, logits and the best of a few rows; then the best of those, the token."""

import torch
import triton
import triton.language as tl

from optim.engine import compose
from optim.kernels.launch import chain, launch
from optim.kernels.linear.gemv import block, product, programs, rows_of, shape, tiles, vector_of
from optim.kernels.linear.normed import gained, scale_of, summed
from optim.kernels.tiles import tile

__all__ = ["head"]

FOUND = 8192  # bests a turn


def head(x, residual, weight, matrix, eps, ops, token: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    """As in compose: x, residual (T, K), weight (K), matrix (vocab, K) -> logits (T, vocab) fp32, and `token`.

    Of one token the likeliest next is written into `token` (1) int64; otherwise None is given in its place.
    """
    if len(x) > 1 or residual is None:
        return compose.head(x, residual, weight, matrix, eps, ops)
    n, depth = matrix.shape
    chosen = tile("head_argmax", (n, depth), tiles(n), matrix.dtype)
    count = programs(n, chosen)
    logits = torch.empty(1, n, dtype=torch.float32, device=x.device)
    bests = torch.empty(count, dtype=torch.int64, device=x.device)
    launch(head_argmax_kernel, (count,))(
        x, residual, weight, matrix, bests, logits, n, eps, depth, BK=block(matrix), **shape(chosen)
    )
    launch(head_token_kernel, (1,))(bests, token, count, BLOCK=FOUND, num_warps=16)
    return logits, token


@triton.jit
def order_of(x):
    """An int32 that sorts as the fp32 x does."""
    bits = x.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def place_of(x, i):
    """An int64 that sorts as x does, of equals the lowest i last; its low half says which i."""
    return (order_of(x).to(tl.int64) << 32) | (0x7FFFFFFF - i).to(tl.int64)


@triton.jit
def head_argmax_kernel(
    x, residual, weight, matrix, bests, logits, n, eps,
    depth: tl.constexpr, W: tl.constexpr, R: tl.constexpr, BK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0) * W * R
    tiles = rows_of(matrix, first, n, depth, W, R, BK)
    gains = vector_of(weight, depth, W, BK)
    chain(PDL)
    parts = summed(x, residual, depth, True, W, BK)
    scale, values = scale_of(parts, eps, depth, W, BK), gained(parts, gains)
    best = tl.full((W,), -0x7FFFFFFFFFFFFFFF, tl.int64)
    for r in tl.static_range(R):
        row = first + r * W + tl.arange(0, W)
        found = product(tiles, values, r, W, BK) * scale
        tl.store(logits + row, found, row < n)
        best = tl.maximum(best, tl.where(row < n, place_of(found, row), -0x7FFFFFFFFFFFFFFF))
    tl.store(bests + tl.program_id(0), tl.max(best))


@triton.jit
def head_token_kernel(bests, token, count, BLOCK: tl.constexpr, PDL: tl.constexpr):
    chain(PDL)
    i = tl.arange(0, BLOCK)
    best = tl.full((BLOCK,), -0x7FFFFFFFFFFFFFFF, tl.int64)
    for first in range(0, count, BLOCK):
        best = tl.maximum(best, tl.load(bests + first + i, first + i < count, -0x7FFFFFFFFFFFFFFF))
    tl.store(token, 0x7FFFFFFF - (tl.max(best) & 0x7FFFFFFF))

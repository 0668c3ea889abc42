"""Norms inside the projection that reads them: every warp norms the one row anew, which costs less than a launch."""

import torch
import triton
import triton.language as tl

from optim.engine import compose
from optim.kernels.launch import chain, launch
from optim.kernels.linear.concat import joined
from optim.kernels.linear.gemv import block, product, programs, rows_of, shape, tiles, vector_of
from optim.kernels.tiles import tile

__all__ = ["norm_linears"]


def norm_linears(x, residual, weight, matrices, eps, ops):
    """As in compose: x, residual (T, K), weight (K), matrices (N, K) -> ((T, N) each, the sum (T, K)).

    The kernel is for T = 1; matrices that lie one behind the other are read in one launch.
    """
    if len(x) > 1:
        return compose.norm_linears(x, residual, weight, matrices, eps, ops)
    whole = joined(matrices)
    if whole is None:
        outs, totals = zip(*(normed(x, residual, weight, matrix, eps) for matrix in matrices), strict=True)
        return outs, totals[0]
    out, total = normed(x, residual, weight, whole, eps)
    return out.split([len(matrix) for matrix in matrices], 1), total


def normed(x, residual, weight, matrix, eps) -> tuple[torch.Tensor, torch.Tensor]:
    """x, residual (1, K), matrix (N, K) -> (the norm of the sum times matrix, (1, N), the sum)."""
    n, depth = matrix.shape
    out = torch.empty(1, n, dtype=x.dtype, device=x.device)
    total = x if residual is None else torch.empty_like(x)
    chosen = tile("norm_gemv", (n, depth), tiles(n), matrix.dtype)
    launch(norm_gemv_kernel, (programs(n, chosen),))(
        *(x, residual, weight, matrix, out, total, n, eps, depth),
        ADD=residual is not None,
        BK=block(matrix),
        **shape(chosen),
    )
    return out, total


@triton.jit
def summed(x, residual, depth: tl.constexpr, ADD: tl.constexpr, W: tl.constexpr, BK: tl.constexpr):
    """The row x (+ residual) as vector_of has it."""
    parts = vector_of(x, depth, W, BK)
    if ADD:
        others = vector_of(residual, depth, W, BK)
        sums = ()
        for i in tl.static_range(len(parts)):
            sums += (parts[i] + others[i],)
        parts = sums
    return parts


@triton.jit
def keep(total, parts, depth: tl.constexpr, W: tl.constexpr, BK: tl.constexpr):
    """The first program's first warp stores the row."""
    for i in tl.static_range(len(parts)):
        k, warp = i * BK + tl.arange(0, BK)[None, :], tl.arange(0, W)[:, None]
        tl.store(total + k + warp * 0, parts[i], (k < depth) & (tl.program_id(0) * W + warp == 0))


@triton.jit
def scale_of(parts, eps, depth: tl.constexpr, W: tl.constexpr, BK: tl.constexpr):
    """The norm's factor, a copy for every warp (W,); it may follow the product, which so need not wait for it."""
    squares = tl.zeros((W, BK), tl.float32)
    for i in tl.static_range(len(parts)):
        squares += parts[i].to(tl.float32) * parts[i].to(tl.float32)
    return 1.0 / tl.sqrt(tl.sum(squares, 1) / depth + eps)


@triton.jit
def gained(parts, gains):
    """Parts times gains, fp32."""
    out = ()
    for i in tl.static_range(len(parts)):
        out += (parts[i].to(tl.float32) * gains[i].to(tl.float32),)
    return out


@triton.jit
def norm_gemv_kernel(
    x, residual, weight, matrix, out, total, n, eps,
    depth: tl.constexpr, ADD: tl.constexpr, W: tl.constexpr, R: tl.constexpr, BK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0) * W * R
    tiles = rows_of(matrix, first, n, depth, W, R, BK)
    gains = vector_of(weight, depth, W, BK)
    chain(PDL)
    parts = summed(x, residual, depth, ADD, W, BK)
    if ADD:
        keep(total, parts, depth, W, BK)
    scale, values = scale_of(parts, eps, depth, W, BK), gained(parts, gains)
    for r in tl.static_range(R):
        row = first + r * W + tl.arange(0, W)
        tl.store(out + row, product(tiles, values, r, W, BK) * scale, row < n)

"""Norms inside the projection that reads them: every program norms the one row anew, which costs less than a launch."""

import torch
import triton
import triton.language as tl

from optim.engine import compose
from optim.kernels.launch import chain, launch
from optim.kernels.linear.concat import joined
from optim.kernels.linear.gemv import block, rows_of, tiles
from optim.kernels.tiles import tile

__all__ = ["gated_norm_linear", "norm_linears"]


def norm_linears(x, residual, weight, matrices, eps, ops):
    """As in compose; matrices that lie one behind the other are read in one launch."""
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
    chosen = tile("norm_gemv", (n, depth), tiles(n))
    launch(norm_gemv_kernel, (triton.cdiv(n, chosen["BN"]),))(
        *(x, residual, weight, matrix, out, total, n, eps, depth),
        ADD=residual is not None,
        BK=block(depth),
        **chosen,
    )
    return out, total


def gated_norm_linear(o, gate, weight, matrix, eps, ops) -> torch.Tensor:
    if len(o) > 1:
        return compose.gated_norm_linear(o, gate, weight, matrix, eps, ops)
    n, d = len(matrix), len(weight)
    heads = o.shape[1] // d
    out = torch.empty(1, n, dtype=o.dtype, device=o.device)
    chosen = tile("gated_norm_gemv", tuple(matrix.shape), tiles(n))
    launch(gated_norm_gemv_kernel, (triton.cdiv(n, chosen["BN"]),))(
        o, gate, weight, matrix, out, n, eps, heads, H=triton.next_power_of_2(heads), D=d, **chosen
    )
    return out


@triton.jit
def norm_of(x, residual, gains, total, kept, eps, depth: tl.constexpr, ADD: tl.constexpr, BK: tl.constexpr):
    """The row x (+ residual), as a tuple of (BK,) parts: normed, times gains, rounded; the first `kept` numbers of the sum go to total."""
    k = tl.arange(0, BK)
    parts = ()
    squares = tl.zeros((BK,), tl.float32)
    for first in tl.static_range(0, depth, BK):
        inside = first + k < depth
        part = tl.load(x + first + k, inside, 0.0)
        if ADD:
            part += tl.load(residual + first + k, inside, 0.0)
            tl.store(total + first + k, part, first + k < kept)
        parts += (part,)
        squares += part.to(tl.float32) * part.to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(squares) / depth + eps)
    out = ()
    for i in tl.static_range(len(parts)):
        out += ((parts[i].to(tl.float32) * scale * gains[i]).to(parts[i].dtype),)
    return out


@triton.jit
def gains_of(weight, depth: tl.constexpr, BK: tl.constexpr):
    """A norm's weights as a tuple of (BK,) fp32 parts."""
    k = tl.arange(0, BK)
    parts = ()
    for first in tl.static_range(0, depth, BK):
        parts += (tl.load(weight + first + k, first + k < depth, 0.0).to(tl.float32),)
    return parts


@triton.jit
def norm_gemv_kernel(
    x, residual, weight, matrix, out, total, n, eps,
    depth: tl.constexpr, ADD: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    row = program * BN + tl.arange(0, BN)
    tiles = rows_of(matrix, row, n, depth, BK)
    gains = gains_of(weight, depth, BK)
    chain(PDL)
    kept = tl.where(program == 0, depth, 0)
    values = norm_of(x, residual, gains, total, kept, eps, depth, ADD, BK)
    products = tl.zeros((BN, BK), tl.float32)
    for i in tl.static_range(len(tiles)):
        products += tiles[i].to(tl.float32) * values[i].to(tl.float32)[None, :]
    tl.store(out + row, tl.sum(products, 1), row < n)


@triton.jit
def gated_norm_gemv_kernel(
    o, gate, weight, matrix, out, n, eps, heads,
    H: tl.constexpr, D: tl.constexpr, BN: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * BN + tl.arange(0, BN)
    k, head, d = tl.arange(0, H * D), tl.arange(0, H), tl.arange(0, D)
    depth = heads * D
    at = matrix + row[:, None].to(tl.int64) * depth + k[None, :]
    products = tl.load(at, (row < n)[:, None] & (k < depth)[None, :], 0.0, eviction_policy="evict_first")
    gain = tl.load(weight + d).to(tl.float32)
    chain(PDL)
    own = head[:, None] * D + d[None, :]
    value = tl.load(o + own, (head < heads)[:, None], 0.0).to(tl.float32)
    opening = tl.sigmoid(tl.load(gate + own, (head < heads)[:, None], 0.0).to(tl.float32))
    scale = 1.0 / tl.sqrt(tl.sum(value * value, 1) / D + eps)
    value = (value * scale[:, None] * gain[None, :] * opening).to(out.dtype.element_ty)
    value = tl.reshape(value, (H * D,)).to(tl.float32)
    tl.store(out + row, tl.sum(products.to(tl.float32) * value[None, :], 1), row < n)

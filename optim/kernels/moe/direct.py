"""The experts of one token without sorting: every program reads rows of the experts that the router chose.

For one token each expert has one row, and matrix tiles of sixteen waste what a sort made of it. The shared expert's
second half is one more row of the sum.
"""

import torch
import triton
import triton.language as tl

from optim.engine import compose
from optim.kernels.launch import chain, launch
from optim.kernels.linear.gemv import block, product, programs, rows_of, shape, vector_of
from optim.kernels.moe.triton import activated
from optim.kernels.tiles import tile

__all__ = ["experts"]

UP = [{"R": rows, "num_warps": warps} for rows, warps in ((1, 4), (2, 4), (1, 8), (1, 2), (2, 2), (4, 2), (4, 1))]
UP += [{"R": 2, "num_warps": warps, "maxnreg": most} for warps in (2, 4, 1) for most in (128, 112)]
TIGHT = [{"R": 1, "num_warps": 2, "maxnreg": most} for most in (112, 96)]  # all programs fit beside the kernel before
DOWN = [*({"R": 1, "num_warps": warps} for warps in (4, 2, 8, 1)), *TIGHT]


def experts(x, w, weights, chosen, shared, limit, ops) -> torch.Tensor:
    """As in compose: x (T, hidden), weights and chosen (T, k), shared (T, I) -> (T, hidden); the kernels for T = 1.

    w: w13 (E, 2 I, hidden), w2 (E, hidden, I), shared_down (hidden, I of the shared expert).
    """
    if len(x) > 1:
        return compose.experts(x, w, weights, chosen, shared, limit, ops)
    k, (half, hidden) = chosen.shape[1], (w.w13.shape[1] // 2, w.w13.shape[2])
    active = torch.empty(k, half, dtype=x.dtype, device=x.device)
    sizes = tile("experts_up_direct", (half, hidden), UP, w.w13.dtype)
    launch(experts_up_direct_kernel, (programs(half, sizes), k))(
        *(x, w.w13, chosen, active, half, limit or 0.0, hidden),
        LIMITED=limit is not None,
        BK=block(w.w13),
        **shape(sizes),
    )
    out = torch.empty_like(x)
    sizes = tile("experts_down_direct", (hidden, half), DOWN, w.w2.dtype)
    launch(experts_down_direct_kernel, (programs(hidden, sizes),))(
        *(active, w.w2, chosen, weights, shared, w.shared_down, out, hidden, half, shared.shape[1]),
        K=k,
        BI=block(w.w2),
        BS=block(w.shared_down),
        **shape(sizes),
    )
    return out


@triton.jit
def one_expert(
    own, values, out, first, half, limit,
    depth: tl.constexpr, LIMITED: tl.constexpr, W: tl.constexpr, R: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Some rows of one expert's first half, whose matrix begins at `own`."""
    gates = rows_of(own, first, half, depth, W, R, BK)
    ups = rows_of(own + half * depth, first, half, depth, W, R, BK)
    for r in tl.static_range(R):
        row = first + r * W + tl.arange(0, W)
        found = activated(product(gates, values, r, W, BK), product(ups, values, r, W, BK), limit, LIMITED)
        tl.store(out + row, found, row < half)


@triton.jit
def mixed(
    active, tiles, shares, shared, own, out, first, hidden,
    half: tl.constexpr, inner: tl.constexpr, K: tl.constexpr, BI: tl.constexpr, BS: tl.constexpr,
    W: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """Some rows of the experts' second halves, each by its share, and of the shared expert's."""
    vector = vector_of(shared, inner, W, BS)
    vectors = ()
    for j in tl.static_range(K):
        vectors += (vector_of(active + j * half, half, W, BI),)
    for r in tl.static_range(R):
        products = tl.zeros((W, BI), tl.float32)
        for j in tl.static_range(K):
            share = tl.broadcast_to(shares[j], (W,))[:, None]
            for i in tl.static_range(len(vectors[j])):
                tile = tiles[j][r * len(vectors[j]) + i].to(tl.float32)
                products += tile * (vectors[j][i].to(tl.float32) * share)
        row = first + r * W + tl.arange(0, W)
        tl.store(out + row, tl.sum(products, 1) + product(own, vector, r, W, BS), row < hidden)


@triton.jit
def experts_up_direct_kernel(
    x, weight, chosen, out, half, limit,
    depth: tl.constexpr, LIMITED: tl.constexpr, W: tl.constexpr, R: tl.constexpr, BK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    first, j = tl.program_id(0) * W * R, tl.program_id(1)
    chain(PDL)
    own = weight + tl.load(chosen + j).to(tl.int64) * 2 * half * depth
    values = vector_of(x, depth, W, BK)
    one_expert(own, values, out + j * half, first, half, limit, depth, LIMITED, W, R, BK)


@triton.jit
def experts_down_direct_kernel(
    active, weight, chosen, weights, shared, shared_down, out, hidden,
    half: tl.constexpr, inner: tl.constexpr, K: tl.constexpr, BI: tl.constexpr, BS: tl.constexpr,
    W: tl.constexpr, R: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The router spoke two launches ago or earlier: which weights to read is known before the wait."""
    first = tl.program_id(0) * W * R
    own = rows_of(shared_down, first, hidden, inner, W, R, BS)
    tiles, shares = (), ()
    for j in tl.static_range(K):
        expert = weight + tl.load(chosen + j, cache_modifier=".cg").to(tl.int64) * hidden * half
        tiles += (rows_of(expert, first, hidden, half, W, R, BI),)
        shares += (tl.load(weights + j, cache_modifier=".cg"),)
    chain(PDL)
    mixed(active, tiles, shares, shared, own, out, first, hidden, half, inner, K, BI, BS, W, R)

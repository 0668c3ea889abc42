"""The experts of one token without sorting: every program reads rows of the experts that the router chose.

For one token each expert has one row, and matrix tiles of sixteen waste what a sort made of it. The shared expert's
second half is one more row of the sum.
"""

import torch
import triton
import triton.language as tl

from optim.engine import compose
from optim.kernels.launch import chain, launch
from optim.kernels.linear.gemv import block
from optim.kernels.tiles import tile

__all__ = ["experts"]

UP = [{"BN": rows, "num_warps": warps} for rows in (8, 4, 16, 2) for warps in (4, 8, 2)]
DOWN = [{"BN": rows, "num_warps": warps} for rows in (2, 4, 1, 8) for warps in (2, 4, 8)]


def experts(x, w, weights, chosen, shared, limit, ops) -> torch.Tensor:
    if len(x) > 1:
        return compose.experts(x, w, weights, chosen, shared, limit, ops)
    k, (half, hidden) = chosen.shape[1], (w.w13.shape[1] // 2, w.w13.shape[2])
    active = torch.empty(k, half, dtype=x.dtype, device=x.device)
    sizes = tile("experts_up_direct", (half, hidden), UP)
    launch(experts_up_direct_kernel, (triton.cdiv(half, sizes["BN"]), k))(
        x, w.w13, chosen, active, half, limit or 0.0, hidden, LIMITED=limit is not None, BK=block(hidden), **sizes
    )
    out = torch.empty_like(x)
    inner = shared.shape[1]
    sizes = tile("experts_down_direct", (hidden, half), DOWN)
    launch(experts_down_direct_kernel, (triton.cdiv(hidden, sizes["BN"]),))(
        *(active, w.w2, chosen, weights, shared, w.shared_down, out, hidden, half, inner),
        K=k,
        BI=triton.next_power_of_2(half),
        BS=triton.next_power_of_2(inner),
        **sizes,
    )
    return out


@triton.jit
def experts_up_direct_kernel(
    x, weight, chosen, out, half, limit,
    depth: tl.constexpr, LIMITED: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row, j, k = tl.program_id(0) * BN + tl.arange(0, BN), tl.program_id(1), tl.arange(0, BK)
    chain(PDL)
    own = weight + tl.load(chosen + j).to(tl.int64) * 2 * half * depth
    at = own + row[:, None].to(tl.int64) * depth + k[None, :]
    gates, ups = tl.zeros((BN, BK), tl.float32), tl.zeros((BN, BK), tl.float32)
    for first in tl.static_range(0, depth, BK):
        inside = (row < half)[:, None] & (first + k < depth)[None, :]
        value = tl.load(x + first + k, first + k < depth, 0.0).to(tl.float32)[None, :]
        gates += tl.load(at + first, inside, 0.0, eviction_policy="evict_first").to(tl.float32) * value
        ups += tl.load(at + half * depth + first, inside, 0.0, eviction_policy="evict_first").to(tl.float32) * value
    gate, up = tl.sum(gates, 1), tl.sum(ups, 1)
    gate = gate * tl.sigmoid(gate)
    if LIMITED:
        gate = tl.minimum(gate, limit)
        up = tl.minimum(tl.maximum(up, -limit), limit)
    tl.store(out + j * half + row, gate * up, row < half)


@triton.jit
def experts_down_direct_kernel(
    active, weight, chosen, weights, shared, shared_down, out, hidden, half, inner,
    K: tl.constexpr, BN: tl.constexpr, BI: tl.constexpr, BS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The router spoke two launches ago or earlier: which weights to read is known before the wait."""
    row, i, s = tl.program_id(0) * BN + tl.arange(0, BN), tl.arange(0, BI), tl.arange(0, BS)
    real = (row < hidden)[:, None]
    own = tl.load(
        shared_down + row[:, None] * inner + s[None, :], real & (s < inner)[None, :], 0.0, eviction_policy="evict_first"
    )
    tiles, shares = (), ()
    for j in tl.static_range(K):
        expert = weight + tl.load(chosen + j, cache_modifier=".cg").to(tl.int64) * hidden * half
        at = expert + row[:, None] * half + i[None, :]
        tiles += (tl.load(at, real & (i < half)[None, :], 0.0, eviction_policy="evict_first"),)
        shares += (tl.load(weights + j, cache_modifier=".cg"),)
    chain(PDL)
    total = tl.zeros((BN, BI), tl.float32)
    for j in tl.static_range(K):
        value = tl.load(active + j * half + i, i < half, 0.0).to(tl.float32) * shares[j]
        total += tiles[j].to(tl.float32) * value[None, :]
    value = tl.load(shared + s, s < inner, 0.0).to(tl.float32)
    tl.store(out + row, tl.sum(total, 1) + tl.sum(own.to(tl.float32) * value[None, :], 1), row < hidden)

"""The routed experts of one token without sorting: every program reads rows of an expert that the router chose.

For one token each expert has one row, and matrix tiles of sixteen waste what a sort made of it.
"""

import torch
import triton
import triton.language as tl

from optim.engine import moe
from optim.kernels.launch import chain, launch

__all__ = ["routed"]

DEPTH = 512  # columns a turn
UP, DOWN = 8, 4  # rows a program


def routed(x, w, weights, experts, shared, limit, ops) -> torch.Tensor:
    """As optim.engine.moe.routed; several tokens take that one."""
    if len(x) > 1:
        return moe.routed(x, w, weights, experts, shared, limit, ops)
    k, (half, hidden) = experts.shape[1], (w.w13.shape[1] // 2, w.w13.shape[2])
    active = torch.empty(k, half, dtype=x.dtype, device=x.device)
    block = min(DEPTH, triton.next_power_of_2(hidden))
    launch(experts_up_direct_kernel, (triton.cdiv(half, UP), k))(
        *(x, w.w13, experts, active, half, limit or 0.0),
        hidden,
        LIMITED=limit is not None,
        BN=UP,
        BK=block,
        num_warps=4,
    )
    out = torch.empty_like(shared)
    launch(experts_down_direct_kernel, (triton.cdiv(hidden, DOWN),))(
        *(active, w.w2, experts, weights, shared, out, hidden),
        half,
        K=k,
        BN=DOWN,
        BK=triton.next_power_of_2(half),
        num_warps=2,
    )
    return out


@triton.jit
def experts_up_direct_kernel(
    x, weight, experts, out, half, limit,
    depth: tl.constexpr, LIMITED: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row, j, k = tl.program_id(0) * BN + tl.arange(0, BN), tl.program_id(1), tl.arange(0, BK)
    chain(PDL)
    own = weight + tl.load(experts + j).to(tl.int64) * 2 * half * depth
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
    active, weight, experts, weights, shared, out, hidden,
    half: tl.constexpr, K: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row, i = tl.program_id(0) * BN + tl.arange(0, BN), tl.arange(0, BK)
    inside = (row < hidden)[:, None] & (i < half)[None, :]
    chain(PDL)
    total = tl.zeros((BN, BK), tl.float32)
    for j in tl.static_range(K):
        at = weight + tl.load(experts + j).to(tl.int64) * hidden * half + row[:, None] * half + i[None, :]
        value = tl.load(active + j * half + i, i < half, 0.0).to(tl.float32) * tl.load(weights + j)
        total += tl.load(at, inside, 0.0, eviction_policy="evict_first").to(tl.float32) * value[None, :]
    tl.store(out + row, tl.sum(total, 1) + tl.load(shared + row, row < hidden, 0.0).to(tl.float32), row < hidden)

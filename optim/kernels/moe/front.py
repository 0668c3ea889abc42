"""moe_front of one token in one launch: norm, router, top-k, and the shared expert's first half.

The first programs take a few routers each, and all programs a few columns of the shared expert. Of the routers'
programs the last to finish (a counter in memory tells) ranks the experts, while the others still read weights.
"""

import torch
import triton
import triton.language as tl

from optim.engine import compose
from optim.kernels.launch import chain, launch
from optim.kernels.linear.gemv import block, rows_of
from optim.kernels.linear.normed import gains_of, norm_of
from optim.kernels.router.naive import TINY
from optim.kernels.tiles import tile

__all__ = ["moe_front"]

TILES = [{"BN": rows, "num_warps": warps} for rows in (2, 1, 4, 8) for warps in (4, 2, 8)]

counters: dict[torch.device, torch.Tensor] = {}  # zero between launches: the last program sets it back


def moe_front(x, residual, w, c, limit, ops):
    if len(x) > 1 or residual is None:
        return compose.moe_front(x, residual, w, c, limit, ops)
    experts, width, depth = len(w.router), len(w.shared_gate_up) // 2, x.shape[1]
    normed, total = torch.empty_like(x), torch.empty_like(x)
    logits = torch.empty(experts, dtype=torch.float32, device=x.device)
    weights = torch.empty(1, c.top_k, dtype=torch.float32, device=x.device)
    chosen = torch.empty(1, c.top_k, dtype=torch.int32, device=x.device)
    shared = torch.empty(1, width, dtype=x.dtype, device=x.device)
    if x.device not in counters:
        counters[x.device] = torch.zeros(1, dtype=torch.int32, device=x.device)
    sizes = tile("moe_front", (experts, width, depth), TILES)
    programs = triton.cdiv(max(experts, width), sizes["BN"])
    launch(moe_front_kernel, (programs,))(
        *(x, residual, w.mlp_norm, w.router, w.bias, w.shared_gate_up, counters[x.device]),
        *(normed, total, logits, weights, chosen, shared, width, c.eps, c.routed_scaling, limit or 0.0, depth),
        LIMITED=limit is not None,
        E=experts,
        G=c.groups,
        KEPT=c.kept_groups,
        K=c.top_k,
        TINY=TINY,
        BK=block(depth),
        **sizes,
    )
    return normed, total, weights, chosen, shared


@triton.jit
def order_of(x, e, E: tl.constexpr):
    """A number per x that sorts as x does, and of equals the lowest index e first: int64."""
    bits = x.to(tl.int32, bitcast=True)
    bits = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return (bits.to(tl.int64) << 32) | (E - 1 - e).to(tl.int64)


@triton.jit
def best_experts(logits, bias, E: tl.constexpr, G: tl.constexpr, KEPT: tl.constexpr, K: tl.constexpr, BK: tl.constexpr):
    """The K best experts of the KEPT best groups, best first; past the cache of this processor, which may be stale."""
    e, group, slot, member = tl.arange(0, E), tl.arange(0, G), tl.arange(0, BK), tl.arange(0, E // G)
    choice = tl.sigmoid(tl.load(logits + e, cache_modifier=".cg")) + tl.load(bias + e)
    by_group = tl.reshape(choice, (G, E // G))
    best = tl.max(by_group, 1)
    if E // G > 1:
        first = tl.argmax(by_group, 1, tie_break_left=True)
        best += tl.max(tl.where(member[None, :] == first[:, None], float("-inf"), by_group), 1)
    ahead = (best[None, :] > best[:, None]) | ((best[None, :] == best[:, None]) & (group[None, :] < group[:, None]))
    kept = tl.sum(ahead.to(tl.int32), 1) < KEPT
    choice = tl.reshape(tl.where(kept[:, None], by_group, float("-inf")), (E,))
    order = order_of(choice, e, E)
    chosen = tl.zeros((BK,), tl.int32)
    for i in tl.static_range(K):
        top = tl.max(order)
        chosen = tl.where(slot == i, E - 1 - (top & 0x7FFFFFFF).to(tl.int32), chosen)
        order = tl.where(order == top, -0x7FFFFFFFFFFFFFFF, order)
    return chosen


@triton.jit
def moe_front_kernel(
    x, residual, norm, router, bias, gate_up, counter, normed, total, logits, weights, chosen, shared,
    width, eps, scaling, limit,
    depth: tl.constexpr, LIMITED: tl.constexpr, E: tl.constexpr, G: tl.constexpr, KEPT: tl.constexpr, K: tl.constexpr,
    TINY: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    program, k, slot = tl.program_id(0), tl.arange(0, BK), tl.arange(0, triton.next_power_of_2(K))
    row = program * BN + tl.arange(0, BN)
    routers = rows_of(router, row, E, depth, BK)
    gates = rows_of(gate_up, row, width, depth, BK)
    ups = rows_of(gate_up + width * depth, row, width, depth, BK)
    gains = gains_of(norm, depth, BK)
    chain(PDL)
    kept = tl.where(program == 0, depth, 0)
    values = norm_of(x, residual, gains, total, kept, eps, depth, True, BK)
    scores, gate, up = (tl.zeros((BN, BK), tl.float32),) * 3
    for i in tl.static_range(len(values)):
        tl.store(normed + i * BK + k, values[i], i * BK + k < kept)
        value = values[i].to(tl.float32)[None, :]
        scores += routers[i].to(tl.float32) * value
        gate += gates[i].to(tl.float32) * value
        up += ups[i].to(tl.float32) * value
    arrived = 0
    if program * BN < E:
        tl.store(logits + row, tl.sum(scores, 1), row < E)
        tl.debug_barrier()
        arrived = tl.atomic_add(counter, 1) + 1
    gate, up = tl.sum(gate, 1), tl.sum(up, 1)
    gate = gate * tl.sigmoid(gate)
    if LIMITED:
        gate = tl.minimum(gate, limit)
        up = tl.minimum(tl.maximum(up, -limit), limit)
    tl.store(shared + row, gate * up, row < width)
    if arrived == tl.cdiv(E, BN):
        best = best_experts(logits, bias, E, G, KEPT, K, triton.next_power_of_2(K))
        score = tl.where(slot < K, tl.sigmoid(tl.load(logits + best, cache_modifier=".cg")), 0.0)
        tl.store(chosen + slot, best, slot < K)
        tl.store(weights + slot, score / (tl.sum(score) + TINY) * scaling, slot < K)
        tl.store(counter, 0)

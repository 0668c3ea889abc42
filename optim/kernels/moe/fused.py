"""An MoE layer of one token in three launches.

moe_front    norm, router logits, and the shared expert's first half
experts_up   the experts' first half
experts_down their second half, with the shared expert's: the layer's output

Nobody waits for a top-k: every warp that reads an expert ranks them all by itself, from the logits. The last launch
does so before its wait, since the logits are two launches old, and reads its weights there too.
"""

import torch
import triton
import triton.language as tl

from optim.engine import compose
from optim.kernels.launch import chain, launch
from optim.kernels.linear.gemv import block, product, programs, rows_of, shape, vector_of
from optim.kernels.linear.head import order_of
from optim.kernels.linear.normed import gained, keep, scale_of, summed
from optim.kernels.moe.direct import DOWN, UP, mixed, one_expert
from optim.kernels.moe.triton import activated
from optim.kernels.router.naive import TINY
from optim.kernels.tiles import tile

__all__ = ["moe"]

FRONT = [{"R": rows, "num_warps": warps} for rows, warps in ((1, 4), (1, 2), (1, 8), (2, 4), (2, 2))]


def moe(x, residual, w, c, limits, ops):
    """As in compose: x, residual (T, hidden) -> (branch, the sum), (T, hidden) each; the kernels for T = 1.

    w: mlp_norm (hidden), router (E, hidden), bias (E), shared_gate_up (2 I, hidden), shared_down (hidden, I), and w13
    (E, 2 J, hidden), w2 (E, hidden, J) of the routed experts. limits: of SwiGLU (shared, routed), None for none.
    """
    if len(x) > 1 or residual is None:
        return compose.moe(x, residual, w, c, limits, ops)
    normed, total, logits, shared = front(x, residual, w, c, limits[0])
    routing = {"E": c.experts, "G": c.groups, "KEPT": c.kept_groups, "K": c.top_k}
    active = up(normed, logits, w, limits[1], routing)
    return down(active, shared, logits, w, c, routing), total


def front(x, residual, w, c, limit) -> tuple[torch.Tensor, ...]:
    """-> the norm of the sum, the sum (1, hidden), logits (E) fp32, the shared expert's activation (1, I)."""
    experts, width, depth = len(w.router), len(w.shared_gate_up) // 2, x.shape[1]
    normed, total = torch.empty_like(x), torch.empty_like(x)
    logits = torch.empty(experts, dtype=torch.float32, device=x.device)
    shared = torch.empty(1, width, dtype=x.dtype, device=x.device)
    chosen = tile("moe_front", (experts, width, depth), FRONT, w.router.dtype, w.shared_gate_up.dtype)
    launch(moe_front_kernel, (programs(max(experts, width), chosen),))(
        *(x, residual, w.mlp_norm, w.router, w.shared_gate_up, normed, total, logits, shared),
        *(experts, width, c.eps, limit or 0.0, depth),
        LIMITED=limit is not None,
        BK=block(w.shared_gate_up),
        **shape(chosen),
    )
    return normed, total, logits, shared


def up(x, logits, w, limit, routing) -> torch.Tensor:
    """-> the activations of the experts taken, best first, (k, I)."""
    half, hidden = w.w13.shape[1] // 2, w.w13.shape[2]
    active = torch.empty(routing["K"], half, dtype=x.dtype, device=x.device)
    chosen = tile("experts_up", (half, hidden), UP, w.w13.dtype)
    launch(experts_up_kernel, (programs(half, chosen), routing["K"]))(
        *(x, w.w13, logits, w.bias, active, half, limit or 0.0, hidden),
        LIMITED=limit is not None,
        BK=block(w.w13),
        **routing,
        **shape(chosen),
    )
    return active


def down(active, shared, logits, w, c, routing) -> torch.Tensor:
    """-> the layer's output (1, hidden)."""
    hidden, half = w.w2.shape[1:]
    out = torch.empty(1, hidden, dtype=active.dtype, device=active.device)
    chosen = tile("experts_down", (hidden, half), DOWN, w.w2.dtype)
    launch(experts_down_kernel, (programs(hidden, chosen),))(
        *(active, w.w2, logits, w.bias, shared, w.shared_down, out, hidden, c.routed_scaling, half, shared.shape[1]),
        TINY=TINY,
        BI=block(w.w2),
        BS=block(w.shared_down),
        **routing,
        **shape(chosen),
    )
    return out


@triton.jit
def moe_front_kernel(
    x, residual, norm, router, gate_up, normed, total, logits, shared, experts, width, eps, limit,
    depth: tl.constexpr, LIMITED: tl.constexpr, W: tl.constexpr, R: tl.constexpr, BK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The first programs take some routers too."""
    first = tl.program_id(0) * W * R
    routers = rows_of(router, first, experts, depth, W, R, BK)
    gates = rows_of(gate_up, first, width, depth, W, R, BK)
    ups = rows_of(gate_up + width * depth, first, width, depth, W, R, BK)
    gains = vector_of(norm, depth, W, BK)
    chain(PDL)
    parts = summed(x, residual, depth, True, W, BK)
    scale, values = scale_of(parts, eps, depth, W, BK), gained(parts, gains)
    for r in tl.static_range(R):
        row = first + r * W + tl.arange(0, W)
        tl.store(logits + row, product(routers, values, r, W, BK) * scale, row < experts)
        gate, up = product(gates, values, r, W, BK) * scale, product(ups, values, r, W, BK) * scale
        tl.store(shared + row, activated(gate, up, limit, LIMITED), row < width)
    rounded = ()
    for i in tl.static_range(len(values)):
        rounded += (values[i] * scale[:, None],)
    keep(total, parts, depth, W, BK)
    keep(normed, rounded, depth, W, BK)


@triton.jit
def largest(order, i):
    """Of each row the largest number, of equals the first: its i, (rows,). Of integers: one instruction a warp."""
    return tl.min(tl.where(order == tl.max(order, 1)[:, None], i, 0x7FFFFFFF), 1)


@triton.jit
def scores_of(logits, E: tl.constexpr, W: tl.constexpr):
    """(W, E), every warp its own copy, past the cache of this processor, which may be stale."""
    e = tl.arange(0, E)[None, :] + tl.arange(0, W)[:, None] * 0
    return tl.sigmoid(tl.load(logits + e, cache_modifier=".cg"))


@triton.jit
def rivals(score, bias, E: tl.constexpr, G: tl.constexpr, KEPT: tl.constexpr, W: tl.constexpr):
    """(W, E) int32 that sorts as the choice between experts does; those outside the KEPT best groups come last."""
    e = tl.arange(0, E)[None, :] + tl.arange(0, W)[:, None] * 0
    choice = score + tl.load(bias + e)
    grouped = tl.reshape(choice, (W, G, E // G))
    member = tl.arange(0, E // G)[None, None, :]
    top = tl.max(grouped, 2)
    if E // G > 1:
        first = tl.min(tl.where(grouped == top[:, :, None], member, E), 2)
        top += tl.max(tl.where(member == first[:, :, None], float("-inf"), grouped), 2)
    group = order_of(tl.reshape(tl.broadcast_to(top[:, :, None], (W, G, E // G)), (W, E)))
    order = tl.full((W, E), -0x80000000, tl.int32)
    for _ in tl.static_range(KEPT):
        kept = e // (E // G) == (largest(group, e) // (E // G))[:, None]
        order = tl.where(kept, order_of(choice), order)
        group = tl.where(kept, -0x80000000, group)
    return order


@triton.jit
def without(order, taken, E: tl.constexpr):
    return tl.where(tl.arange(0, E)[None, :] == taken[:, None], -0x80000000, order)


@triton.jit
def experts_up_kernel(
    x, weight, logits, bias, out, half, limit,
    depth: tl.constexpr, LIMITED: tl.constexpr, E: tl.constexpr, G: tl.constexpr, KEPT: tl.constexpr, K: tl.constexpr,
    W: tl.constexpr, R: tl.constexpr, BK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    first, j = tl.program_id(0) * W * R, tl.program_id(1)
    chain(PDL)
    values = vector_of(x, depth, W, BK)
    e = tl.arange(0, E)[None, :] + tl.arange(0, W)[:, None] * 0
    order = rivals(scores_of(logits, E, W), bias, E, G, KEPT, W)
    for _ in range(j):  # the best expert's programs go ahead
        order = without(order, largest(order, e), E)
    expert = largest(order, e)
    own = weight + expert.to(tl.int64)[:, None] * 2 * half * depth
    one_expert(own, values, out + j * half, first, half, limit, depth, LIMITED, W, R, BK)


@triton.jit
def experts_down_kernel(
    active, weight, logits, bias, shared, shared_down, out, hidden, scaling,
    half: tl.constexpr, inner: tl.constexpr, TINY: tl.constexpr,
    E: tl.constexpr, G: tl.constexpr, KEPT: tl.constexpr, K: tl.constexpr,
    BI: tl.constexpr, BS: tl.constexpr, W: tl.constexpr, R: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0) * W * R
    own = rows_of(shared_down, first, hidden, inner, W, R, BS)
    score = scores_of(logits, E, W)
    order = rivals(score, bias, E, G, KEPT, W)
    e = tl.arange(0, E)[None, :] + tl.arange(0, W)[:, None] * 0
    tiles, shares, total = (), (), tl.full((W,), TINY, tl.float32)
    for _ in tl.static_range(K):
        best = largest(order, e)
        order = without(order, best, E)
        tiles += (rows_of(weight + best.to(tl.int64)[:, None] * hidden * half, first, hidden, half, W, R, BI),)
        share = tl.sum(tl.where(e == best[:, None], score, 0.0), 1)
        shares += (share,)
        total += share
    scaled = ()
    for j in tl.static_range(K):
        scaled += (shares[j] / total * scaling,)
    chain(PDL)
    mixed(active, tiles, scaled, shared, own, out, first, hidden, half, inner, K, BI, BS, W, R)

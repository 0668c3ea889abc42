"""Convolution, gate and delta rule of one token in one launch: a program takes some value channels of a head.

The gated norm needs all of a head. `kda_core` leaves it to the next launch as it is, which keeps every bit. `kda`
splits it: the step applies gain and gate and leaves sums of squares, and the output projection divides by their root.

Where two products are added, `fma` says which one is rounded: left to itself, the compiler chose differently here and
there. In fp32, where no rounding to bf16 lies between, it still may.
"""

import torch
import triton
import triton.language as tl

from optim.kernels.kda.naive import L2_EPS
from optim.kernels.kda.triton import unit, updated
from optim.kernels.launch import chain, launch
from optim.kernels.linear.gemv import product, programs, rows_of, shape, tiles, vector_of
from optim.kernels.tiles import tile

__all__ = ["kda", "kda_core"]

VALUES = (32, 16, 8, 64, 128)  # channels a program; any of them gives the same numbers


def kda_core(qkv, f, b, w, ring, state, meta, bound, ops) -> torch.Tensor:
    """As in compose: qkv (1, 3 h d), f (1, h d), b (1, h) -> (1, h d).

    Updates ring (rows, 3 h d, width) and state (rows, h, d, d) fp32 in row meta.row. w: conv (3 h d, width), a_log (h),
    dt_bias (h d), fp32. bound: of the log decay, None for none.
    """
    return step(qkv, f, None, b, w, ring, state, meta, bound)[0]


def kda(qkv, f, g, b, w, ring, state, meta, c, ops) -> torch.Tensor:
    """As in compose: kda_core's inputs, and the output gate g (1, h d) -> (1, hidden).

    w: also o_norm (d), o (hidden, h d).
    """
    o, squares = step(qkv, f, g, b, w, ring, state, meta, c.gate_bound)
    n, depth = w.o.shape
    out = torch.empty(1, n, dtype=o.dtype, device=o.device)
    chosen = tile("kda_out", (n, depth), tiles(n), w.o.dtype)
    launch(kda_out_kernel, (programs(n, chosen),))(
        o, squares, w.o, out, n, c.eps, depth, D=c.kda_dim, T=squares.shape[1], **shape(chosen)
    )
    return out


def step(qkv, f, g, b, w, ring, state, meta, bound) -> tuple[torch.Tensor, torch.Tensor]:
    """-> o (1, h d), with g (1, h d) times gain and gate; then also its sums of squares before, (h, tiles) fp32."""
    heads, d = state.shape[1], state.shape[3]
    out = torch.empty_like(f)
    sizes = [{"BV": values} for values in VALUES if values <= d]
    chosen = tile("kda_step_fused" if g is None else "kda_step_gated", (heads, d), sizes, f.dtype)
    squares = torch.empty(heads, d // chosen["BV"], dtype=torch.float32, device=f.device)
    launch(kda_step_fused_kernel, (heads, d // chosen["BV"]))(
        *(qkv, f, b, w.conv, w.a_log, w.dt_bias, ring, state, meta.row, meta.position, out),
        *(out if g is None else g, w.conv if g is None else w.o_norm, squares, heads, d**-0.5, bound or 0.0),
        D=d,
        WIDTH=w.conv.shape[1],
        EPS=L2_EPS,
        BOUNDED=bound is not None,
        GATED=g is not None,
        num_warps=4,  # as the separate step: sums over a head's channels then add up in the same order
        **chosen,
    )
    return out, squares


@triton.jit
def window_of(ring, weight, channel, now, WIDTH: tl.constexpr):
    """Of each channel the earlier inputs, and the weights of all."""
    inputs, weights = (), (tl.load(weight + channel * WIDTH + WIDTH - 1),)
    for i in tl.static_range(WIDTH - 1):
        earlier = tl.load(ring + channel * WIDTH + (now + 1 + i) % WIDTH, cache_modifier=".cg")
        inputs += (earlier.to(tl.float32),)
        weights += (tl.load(weight + channel * WIDTH + i),)
    return inputs, weights


@triton.jit
def convolved(new, inputs, weights):
    """silu of the window's weighted sum, rounded as the separate kernel does."""
    total = new.to(tl.float32) * weights[0]
    for i in tl.static_range(len(inputs)):
        total = tl.fma(inputs[i], weights[i + 1], total)
    return (total * tl.sigmoid(total)).to(new.dtype).to(tl.float32)


@triton.jit
def kda_step_fused_kernel(
    qkv, f, b, conv_weight, a_log, dt_bias, ring, state, index, position, out, gate, gain, squares, heads, scale, bound,
    D: tl.constexpr, BV: tl.constexpr, WIDTH: tl.constexpr, EPS: tl.constexpr, BOUNDED: tl.constexpr,
    GATED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Metadata, the ring's earlier inputs and the state are older than the kernel before: read before the wait."""
    head, key = tl.program_id(0), tl.arange(0, D)
    value = tl.program_id(1) * BV + tl.arange(0, BV)
    q_at, k_at, v_at = head * D + key, (heads + head) * D + key, (2 * heads + head) * D + value
    request, now = tl.load(index, cache_modifier=".cg").to(tl.int64), tl.load(position, cache_modifier=".cg")
    at = state + (request * heads + head) * D * D + value[:, None] * D + key[None, :]
    s = tl.load(at, cache_modifier=".cg")
    row = ring + request * 3 * heads * D * WIDTH
    q_seen, q_weights = window_of(row, conv_weight, q_at, now, WIDTH)
    k_seen, k_weights = window_of(row, conv_weight, k_at, now, WIDTH)
    v_seen, v_weights = window_of(row, conv_weight, v_at, now, WIDTH)
    rate, bias = tl.exp(tl.load(a_log + head)), tl.load(dt_bias + q_at)
    gain_of = tl.load(gain + value).to(tl.float32) if GATED else 1.0
    chain(PDL)
    q_new, k_new, v_new = tl.load(qkv + q_at), tl.load(qkv + k_at), tl.load(qkv + v_at)
    x = tl.load(f + q_at).to(tl.float32) + bias
    beta = tl.sigmoid(tl.load(b + head).to(tl.float32))
    opening = 1.0
    if GATED:
        opening = gain_of * tl.sigmoid(tl.load(gate + head * D + value).to(tl.float32))
    tl.store(row + q_at * WIDTH + now % WIDTH, q_new)
    tl.store(row + k_at * WIDTH + now % WIDTH, k_new)
    tl.store(row + v_at * WIDTH + now % WIDTH, v_new)
    q = convolved(q_new, q_seen, q_weights)
    k = convolved(k_new, k_seen, k_weights)
    v = convolved(v_new, v_seen, v_weights)
    if BOUNDED:
        g = bound * tl.sigmoid(rate * x)
    else:
        g = -rate * tl.where(x > 20.0, x, tl.log(1.0 + tl.exp(x)))
    q = unit(q, EPS) * scale
    k = unit(k, EPS)
    s *= tl.exp(g)[None, :]
    u = beta * (v - tl.sum(s * k[None, :], 1))
    s = updated(s, u, k)
    tl.store(at, s)
    o, o_at = tl.sum(s * q[None, :], 1), head * D + value
    if GATED:
        tl.store(squares + head * (D // BV) + tl.program_id(1), tl.sum(o * o))
        o *= opening
    tl.store(out + o_at, o)


@triton.jit
def kda_out_kernel(
    o, squares, matrix, out, n, eps,
    depth: tl.constexpr, D: tl.constexpr, T: tl.constexpr, W: tl.constexpr, R: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Each head divided by its root mean square, then the projection."""
    first = tl.program_id(0) * W * R
    tiles = rows_of(matrix, first, n, depth, W, R, D)
    chain(PDL)
    parts, values = vector_of(o, depth, W, D), ()
    for head in tl.static_range(len(parts)):
        total = 0.0
        for t in tl.static_range(T):
            total += tl.load(squares + head * T + t)
        values += (parts[head].to(tl.float32) / tl.sqrt(total / D + eps),)
    for r in tl.static_range(R):
        row = first + r * W + tl.arange(0, W)
        tl.store(out + row, product(tiles, values, r, W, D), row < n)

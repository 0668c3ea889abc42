"""kda_decode in two launches: convolution, gate and delta rule of a head in one program, then the gated norm.

The norm stays apart: summed in the order that this program's registers suggest it would round differently.
"""

from types import SimpleNamespace

import torch
import triton
import triton.language as tl

from optim.kernels.kda.naive import L2_EPS
from optim.kernels.launch import chain, launch
from optim.kernels.norm.triton import gated_rms_norm

__all__ = ["kda_decode"]


def kda_decode(
    qkv: torch.Tensor,
    f: torch.Tensor,
    b: torch.Tensor,
    gate: torch.Tensor,
    w: SimpleNamespace,
    conv: torch.Tensor,
    state: torch.Tensor,
    index: torch.Tensor,
    bound: float | None,
    eps: float,
) -> torch.Tensor:
    heads, d = state.shape[1], state.shape[3]
    out = torch.empty_like(f)
    sizes = {"D": d, "WIDTH": w.conv.shape[1], "EPS": L2_EPS, "BOUNDED": bound is not None}
    launch(kda_step_fused_kernel, (heads,))(
        *(qkv, f, b, w.conv, w.a_log, w.dt_bias, conv, state, index, out, heads, d**-0.5, bound or 0.0),
        **sizes,
        num_warps=max(1, min(4, d // 32)),  # a channel a thread: else two would share one, and race for its window
    )
    return gated_rms_norm(out.view(1, heads, d), gate.view(1, heads, d), w.o_norm, eps).view(1, -1)


@triton.jit
def convolve(x, weight, row, channel, WIDTH: tl.constexpr):
    """One channel vector: silu of the window's weighted sum, rounded; the window moves on."""
    new = tl.load(x + channel)
    total = new.to(tl.float32) * tl.load(weight + channel * WIDTH + WIDTH - 1)
    for i in tl.static_range(WIDTH - 1):
        old = tl.load(row + channel * (WIDTH - 1) + i)
        total += old.to(tl.float32) * tl.load(weight + channel * WIDTH + i)
        if i > 0:
            tl.store(row + channel * (WIDTH - 1) + i - 1, old)
    tl.store(row + channel * (WIDTH - 1) + WIDTH - 2, new)
    return (total * tl.sigmoid(total)).to(new.dtype).to(tl.float32)


@triton.jit
def kda_step_fused_kernel(
    qkv, f, b, conv_weight, a_log, dt_bias, conv, state, index, out, heads, scale, bound,
    D: tl.constexpr, WIDTH: tl.constexpr, EPS: tl.constexpr, BOUNDED: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    chain(PDL)
    head = tl.program_id(0)
    key = tl.arange(0, D)
    at_head = head * D + key
    request = tl.load(index).to(tl.int64)
    at = state + (request * heads + head) * D * D + key[:, None] * D + key[None, :]
    s = tl.load(at)  # (values, keys)
    row = conv + request * 3 * heads * D * (WIDTH - 1)
    q = convolve(qkv, conv_weight, row, at_head, WIDTH)
    k = convolve(qkv, conv_weight, row, heads * D + at_head, WIDTH)
    v = convolve(qkv, conv_weight, row, 2 * heads * D + at_head, WIDTH)
    x = tl.load(f + at_head).to(tl.float32) + tl.load(dt_bias + at_head)
    rate = tl.exp(tl.load(a_log + head))
    if BOUNDED:
        g = bound * tl.sigmoid(rate * x)
    else:
        g = -rate * tl.where(x > 20.0, x, tl.log(1.0 + tl.exp(x)))
    q = q / tl.sqrt(tl.sum(q * q) + EPS) * scale
    k = k / tl.sqrt(tl.sum(k * k) + EPS)
    s *= tl.exp(g)[None, :]
    u = tl.sigmoid(tl.load(b + head).to(tl.float32)) * (v - tl.sum(s * k[None, :], 1))
    s += u[:, None] * k[None, :]
    tl.store(at, s)
    tl.store(out + at_head, tl.sum(s * q[None, :], 1))

"""Rotary position encoding, one program a token."""

import torch
import triton
import triton.language as tl

from optim.kernels.launch import chain, launch

__all__ = ["rope"]


def rope(x: torch.Tensor, positions: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    tokens, heads, r = x.shape
    out = torch.empty(tokens, heads, r, dtype=x.dtype, device=x.device)
    sizes = {"HEADS": triton.next_power_of_2(heads), "HALF": r // 2, "num_warps": 1}
    launch(rope_kernel, (tokens,))(x, positions, table, out, x.stride(0), x.stride(1), heads, **sizes)
    return out


@triton.jit
def rope_kernel(
    x,
    positions,
    table,
    out,
    token_stride,
    head_stride,
    heads,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    PDL: tl.constexpr,
):
    chain(PDL)
    token = tl.program_id(0).to(tl.int64)
    head, plane = tl.arange(0, HEADS)[:, None], tl.arange(0, HALF)[None, :]
    inside = (head < heads) & (plane < HALF)
    row = table + tl.load(positions + token).to(tl.int64) * 2 * HALF
    cos, sin = tl.load(row + plane), tl.load(row + HALF + plane)
    source = x + token * token_stride + head * head_stride + 2 * plane
    even = tl.load(source, inside, 0.0).to(tl.float32)
    odd = tl.load(source + 1, inside, 0.0).to(tl.float32)
    to = out + (token * heads + head) * 2 * HALF + 2 * plane
    tl.store(to, even * cos - odd * sin, inside)
    tl.store(to + 1, even * sin + odd * cos, inside)

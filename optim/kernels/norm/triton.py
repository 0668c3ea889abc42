"""Norms, one program a row (or a head)."""

import torch
import triton
import triton.language as tl

from optim.kernels.launch import chain, launch

__all__ = ["add_rms_norm", "gated_rms_norm", "rms_norm"]


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    out = torch.empty_like(x)
    launch(rms_norm_kernel, (len(x),))(
        x, x, weight, out, out, x.stride(0), x.shape[1], eps, ADD=False, **_shape(x.shape[1])
    )
    return out


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    out, total = torch.empty_like(residual), torch.empty_like(residual)
    launch(rms_norm_kernel, (len(x),))(
        x, residual, weight, out, total, x.stride(0), x.shape[1], eps, ADD=True, **_shape(x.shape[1])
    )
    return out, total


def gated_rms_norm(x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    tokens, heads, d = x.shape
    out = torch.empty_like(x)
    launch(kda_gated_norm_kernel, (tokens * heads,))(x, gate, weight, out, d, eps, **_shape(d))
    return out


def _shape(width: int) -> dict[str, int]:
    block = triton.next_power_of_2(width)
    return {"BLOCK": block, "num_warps": min(8, max(1, block // 256))}


@triton.jit
def rms_norm_kernel(
    x, residual, weight, out, total, stride, width, eps, ADD: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr
):
    chain(PDL)
    row = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, BLOCK)
    inside = col < width
    value = tl.load(x + row * stride + col, inside, 0.0)
    if ADD:
        value += tl.load(residual + row * width + col, inside, 0.0)
        tl.store(total + row * width + col, value, inside)
    value = value.to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(value * value) / width + eps)
    normed = value * scale * tl.load(weight + col, inside, 0.0).to(tl.float32)
    tl.store(out + row * width + col, normed, inside)


@triton.jit
def kda_gated_norm_kernel(x, gate, weight, out, width, eps, BLOCK: tl.constexpr, PDL: tl.constexpr):
    chain(PDL)
    row = tl.program_id(0).to(tl.int64) * width
    col = tl.arange(0, BLOCK)
    inside = col < width
    value = tl.load(x + row + col, inside, 0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(value * value) / width + eps)
    sigmoid = tl.sigmoid(tl.load(gate + row + col, inside, 0.0).to(tl.float32))
    normed = value * scale * tl.load(weight + col, inside, 0.0).to(tl.float32) * sigmoid
    tl.store(out + row + col, normed, inside)

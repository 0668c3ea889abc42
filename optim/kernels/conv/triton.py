"""The short convolution, one program a block of channels (and of tokens)."""

import torch
import triton
import triton.language as tl

from optim.kernels.conv.naive import slots
from optim.kernels.launch import chain, launch

__all__ = ["conv_prefill", "conv_update"]

CHANNELS = 256
TOKENS = 16


def conv_update(
    x: torch.Tensor, weight: torch.Tensor, ring: torch.Tensor, index: torch.Tensor, position: torch.Tensor
) -> torch.Tensor:
    out = torch.empty_like(x)
    channels, width = weight.shape
    grid = (triton.cdiv(channels, CHANNELS),)
    launch(kda_conv_update_kernel, grid)(
        x, weight, ring, index, position, out, channels, WIDTH=width, BLOCK=CHANNELS, num_warps=2
    )
    return out


def conv_prefill(
    x: torch.Tensor, weight: torch.Tensor, ring: torch.Tensor, index: torch.Tensor, seen: int
) -> torch.Tensor:
    tokens, (channels, width) = len(x), weight.shape
    row = ring[index].squeeze(0)
    inputs = torch.cat([row[:, slots(seen - width + 1, seen, width)].T.to(x.dtype), x])
    out = torch.empty_like(x)
    grid = (triton.cdiv(channels, CHANNELS), triton.cdiv(tokens, TOKENS))
    kda_conv_prefill_kernel[grid](
        inputs, weight, out, tokens, channels, WIDTH=width, BLOCK=CHANNELS, TOKENS=TOKENS, num_warps=4
    )
    row[:, slots(seen + tokens - width, seen + tokens, width)] = inputs[-width:].T
    ring[index] = row.unsqueeze(0)
    return out


@triton.jit
def kda_conv_update_kernel(
    x, weight, ring, index, position, out, channels, WIDTH: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr
):
    chain(PDL)
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < channels
    row = ring + tl.load(index).to(tl.int64) * channels * WIDTH + channel * WIDTH
    now = tl.load(position)
    new = tl.load(x + channel, inside, 0.0)
    total = new.to(tl.float32) * tl.load(weight + channel * WIDTH + WIDTH - 1, inside, 0.0)
    for i in tl.static_range(WIDTH - 1):
        old = tl.load(row + (now + 1 + i) % WIDTH, inside, 0.0)
        total = tl.fma(old.to(tl.float32), tl.load(weight + channel * WIDTH + i, inside, 0.0), total)
    tl.store(row + now % WIDTH, new, inside)
    tl.store(out + channel, total * tl.sigmoid(total), inside)


@triton.jit
def kda_conv_prefill_kernel(
    seen, weight, out, tokens, channels, WIDTH: tl.constexpr, BLOCK: tl.constexpr, TOKENS: tl.constexpr
):
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[None, :]
    token = (tl.program_id(1) * TOKENS + tl.arange(0, TOKENS)[:, None]).to(tl.int64)
    in_channels = channel < channels
    inside = in_channels & (token < tokens)
    total = tl.zeros((TOKENS, BLOCK), tl.float32)
    for i in tl.static_range(WIDTH):
        value = tl.load(seen + (token + i) * channels + channel, inside, 0.0).to(tl.float32)
        total += value * tl.load(weight + channel * WIDTH + i, in_channels, 0.0)
    tl.store(out + token * channels + channel, total * tl.sigmoid(total), inside)

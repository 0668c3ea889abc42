"""The short convolution, one program a block of channels (and of tokens)."""

import torch
import triton
import triton.language as tl

from optim.kernels.launch import chain, launch

__all__ = ["conv_prefill", "conv_update"]

CHANNELS = 256
TOKENS = 16


def conv_update(x: torch.Tensor, weight: torch.Tensor, state: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    channels, width = weight.shape
    grid = (triton.cdiv(channels, CHANNELS),)
    launch(kda_conv_update_kernel, grid)(
        x, weight, state, index, out, channels, WIDTH=width, BLOCK=CHANNELS, num_warps=2
    )
    return out


def conv_prefill(x: torch.Tensor, weight: torch.Tensor, state: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    tokens, (channels, width) = len(x), weight.shape
    before = state[index].squeeze(0).T.to(x.dtype)
    seen = torch.cat([before, x])
    out = torch.empty_like(x)
    grid = (triton.cdiv(channels, CHANNELS), triton.cdiv(tokens, TOKENS))
    kda_conv_prefill_kernel[grid](
        seen, weight, out, tokens, channels, WIDTH=width, BLOCK=CHANNELS, TOKENS=TOKENS, num_warps=4
    )
    state[index] = seen[tokens:].T.unsqueeze(0)
    return out


@triton.jit
def kda_conv_update_kernel(
    x, weight, state, index, out, channels, WIDTH: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr
):
    chain(PDL)
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < channels
    row = state + tl.load(index).to(tl.int64) * channels * (WIDTH - 1) + channel * (WIDTH - 1)
    new = tl.load(x + channel, inside, 0.0)
    total = new.to(tl.float32) * tl.load(weight + channel * WIDTH + WIDTH - 1, inside, 0.0)
    for i in tl.static_range(WIDTH - 1):
        old = tl.load(row + i, inside, 0.0)
        total += old.to(tl.float32) * tl.load(weight + channel * WIDTH + i, inside, 0.0)
        if i > 0:
            tl.store(row + i - 1, old, inside)
    tl.store(row + WIDTH - 2, new, inside)
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

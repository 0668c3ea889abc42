"""KDA's short convolution: each channel sees its last few inputs.

ring (rows, D, width) holds them; row `index[0]` is this request's, and the input at position p lies in slot p % width.
So a step never writes what it reads: the inputs of width - 1 positions before it, beside its own.
"""

import torch
import torch.nn.functional as F  # noqa: N812

__all__ = ["conv_prefill", "conv_update"]


def conv_update(
    x: torch.Tensor, weight: torch.Tensor, ring: torch.Tensor, index: torch.Tensor, position: torch.Tensor
) -> torch.Tensor:
    """x (1, D), weight (D, width), position (1) -> silu(sum_i weight[i] x[t - width + 1 + i]) in fp32, (1, D)."""
    return conv_prefill(x, weight, ring, index, int(position))


def conv_prefill(
    x: torch.Tensor, weight: torch.Tensor, ring: torch.Tensor, index: torch.Tensor, seen: int
) -> torch.Tensor:
    """The same for x (T, D), T >= 1, from position `seen` on."""
    row, width, total = ring[index[0]], weight.shape[1], seen + len(x)
    inputs = torch.cat([row[:, slots(seen - width + 1, seen, width)].T.to(x.dtype), x])
    y = F.conv1d(inputs.T.float(), weight.float().unsqueeze(1), groups=x.shape[1]).T.contiguous()
    row[:, slots(total - width, total, width)] = inputs[-width:].T
    return F.silu(y).to(x.dtype)


def slots(first: int, end: int, width: int) -> list[int]:
    """Where the inputs of positions first to end - 1 lie."""
    return [position % width for position in range(first, end)]

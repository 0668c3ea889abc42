"""Rotary position encoding, interleaved: channels 2i and 2i + 1 are one plane."""

import torch

__all__ = ["rope"]


def rope(x: torch.Tensor, positions: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """x (T, n, r), positions (T), table (positions, r) fp32, cosines then sines -> x rotated in fp32, (T, n, r)."""
    cos, sin = table[positions][:, None].chunk(2, -1)
    even, odd = x.float()[..., ::2], x.float()[..., 1::2]
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2).to(x.dtype)

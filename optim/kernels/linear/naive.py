"""A projection."""

import torch
import torch.nn.functional as F  # noqa: N812

__all__ = ["linear"]


def linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x (T, K), weight (N, K) -> x weight^T, (T, N)."""
    return F.linear(x, weight)

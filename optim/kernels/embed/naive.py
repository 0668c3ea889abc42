"""The first operation of a forward pass."""

import torch
import torch.nn.functional as F  # noqa: N812

__all__ = ["embed"]


def embed(tokens: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """tokens (T) int64, table (vocab, hidden) -> their rows, (T, hidden)."""
    return F.embedding(tokens, table)

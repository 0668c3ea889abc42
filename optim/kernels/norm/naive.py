"""Root-mean-square norms, computed in fp32 and rounded once."""

import torch

__all__ = ["add_rms_norm", "gated_rms_norm", "rms_norm"]


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x (T, D), weight (D) -> x / sqrt(mean(x^2) + eps) * weight, (T, D)."""
    return (_normed(x, eps) * weight.float()).to(x.dtype)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """x, residual (T, D) -> (rms_norm(x + residual), x + residual); the sum is rounded to the dtype of x first."""
    total = x + residual
    return rms_norm(total, weight, eps), total


def gated_rms_norm(x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x, gate (T, h, d), weight (d) -> rms_norm of each head, times sigmoid(gate); rounded once, (T, h, d)."""
    return (_normed(x, eps) * weight.float() * torch.sigmoid(gate.float())).to(x.dtype)


def _normed(x: torch.Tensor, eps: float) -> torch.Tensor:
    x = x.float()
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)

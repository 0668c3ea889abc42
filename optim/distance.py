"""How far logits lie apart, and how far rounding passes may move them: the same bounds for the engine and a server.

Importing it imports no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

MOST_KL_MEAN = 0.1  # nats. Random weights have nearly flat logits: bf16 moved them by 4.6e-3 on an H200,
LEAST_TOP1 = 0.5  # where 80 % of the likeliest tokens stayed
NOT_FINITE = "the logits are not finite"


def divergence(expected: torch.Tensor, found: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits (N, vocab) fp32 each -> KL(expected || found) (N) fp64, and whether the largest is the same one (N)."""
    p, q = (logits.double().log_softmax(-1) for logits in (expected, found))
    return (p.exp() * (p - q)).sum(-1).clamp(min=0), expected.argmax(-1) == found.argmax(-1)


def within(agreement: float, kl_mean: float, positions: int, what: str) -> tuple[bool, str]:
    """Whether rounding passes keep within the bounds, and a phrase that says it; what: runs them, such as the engine.

    agreement: share of `positions` with the same likeliest token; kl_mean: nats a position.
    """
    near = agreement >= LEAST_TOP1 and kl_mean <= MOST_KL_MEAN
    said = f"top-1 equal at {100 * agreement:.2f} % of {positions} positions, KL {kl_mean:.1e}"
    bounds = f"too far from {what} without passes (at least {100 * LEAST_TOP1:g} %, at most {MOST_KL_MEAN:g})"
    return near, f"rounding, declared: {said}" if near else f"{said}: {bounds}"

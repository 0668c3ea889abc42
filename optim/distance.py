"""How far logits lie apart, and how far rounding passes may move them: the same bounds for the engine and a server.

Importing it imports no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

MOST_KL_MEAN = 0.1  # nats. Random weights have nearly flat logits: bf16 moved them by 4.6e-3 on an H200,
MOST_KL_MAX = 0.5  # nats, of one position: there by 2.6e-2 at most,
LEAST_TOP1 = 0.5  # and 80 % of the likeliest tokens stayed
NOT_FINITE = "the logits are not finite"


def divergence(expected: torch.Tensor, found: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits (N, vocab) fp32 each -> KL(expected || found) (N) fp64, and whether the largest is the same one (N)."""
    p, q = (logits.double().log_softmax(-1) for logits in (expected, found))
    return (p.exp() * (p - q)).sum(-1).clamp(min=0), expected.argmax(-1) == found.argmax(-1)


def within(agreement: float, kl_mean: float, kl_max: float, positions: int, what: str) -> tuple[bool, str]:
    """Whether rounding passes keep within the bounds, and a phrase that says it; what: runs them, such as the engine.

    agreement: share of `positions` with the same likeliest token; kl_mean, kl_max: nats a position.
    """
    said = f"top-1 equal at {100 * agreement:.2f} % of {positions} positions, KL {kl_mean:.1e}"
    bounds = f"at least {100 * LEAST_TOP1:g} %, at most {MOST_KL_MEAN:g}"
    is_near_everywhere = kl_max <= MOST_KL_MAX
    if is_near_everywhere and agreement >= LEAST_TOP1 and kl_mean <= MOST_KL_MEAN:
        return True, f"rounding, declared: {said}"
    if not is_near_everywhere:
        said, bounds = f"{said}, {kl_max:.1e} at one of them", f"{bounds}, {MOST_KL_MAX:g} at one"
    return False, f"{said}: too far from {what} without passes ({bounds})"


def first_difference(found: list[int], expected: list[int]) -> int | None:
    """The first index at which they differ, up to the shorter one's end."""
    return next((i for i, (x, y) in enumerate(zip(found, expected, strict=False)) if x != y), None)

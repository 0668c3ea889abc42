"""Which experts a token goes to: sigmoid scores, groups of experts first, then the best experts in the kept groups."""

import torch

__all__ = ["route"]

TINY = 1e-20  # scores may all vanish


def route(
    logits: torch.Tensor, bias: torch.Tensor, groups: int, kept: int, top_k: int, scaling: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """logits (T, E) fp32, bias (E) -> (weights (T, k) fp32, experts (T, k) int32), best first.

    Selection looks at sigmoid(logits) + bias; a group's score is the sum of its two best. Weights are the scores
    without bias, normalised over the selection, times scaling. Of equals the lowest id comes first.
    """
    scores = torch.sigmoid(logits)
    choice = (scores + bias).view(len(logits), groups, -1)
    best = choice.topk(min(2, choice.shape[-1]), -1).values.sum(-1)
    dropped = torch.ones_like(best, dtype=torch.bool).scatter_(1, _best(best, kept), False)
    experts = _best(choice.masked_fill(dropped[..., None], float("-inf")).flatten(1), top_k)
    weights = scores.gather(1, experts)
    return weights / (weights.sum(-1, keepdim=True) + TINY) * scaling, experts.int()


def _best(x: torch.Tensor, k: int) -> torch.Tensor:
    """Columns of the k largest of each row; torch.topk does not say which of equals it takes, a stable sort does."""
    return x.sort(dim=-1, descending=True, stable=True).indices[:, :k]

"""From logits to the next token."""

from dataclasses import dataclass

import torch

from ling_prof.errors import UserError
from optim.engine.config import LEAST_TEMPERATURE


@dataclass(frozen=True)
class Sampling:
    """temperature 0 takes the likeliest token; above, tokens are drawn from softmax(logits / temperature) by `seed`."""

    temperature: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.temperature and not LEAST_TEMPERATURE <= self.temperature < float("inf"):
            raise UserError(f"temperature {self.temperature} is neither 0 nor a number from {LEAST_TEMPERATURE:g} on.")


GREEDY = Sampling()


def sample(logits: torch.Tensor, sampling: Sampling, generator: torch.Generator) -> torch.Tensor:
    """logits (vocab) fp32 -> token () int64. Drawing by the Gumbel-max trick needs no sort and can be captured."""
    if not sampling.temperature:
        return logits.argmax()
    noise = torch.empty_like(logits).exponential_(generator=generator).log_()
    return (logits / sampling.temperature - noise).argmax()

"""Attention over MLA's latent cache: all heads share one key per token, whose first `lora` channels are also its value.

cache (slots, lora + rope); slots[:length] says where the request's tokens lie, in order.
"""

import torch

__all__ = ["head_gate", "mla_decode", "mla_store"]

MAX_SPLITS = 64


def mla_store(latent: torch.Tensor, k_rope: torch.Tensor, cache: torch.Tensor, slot: torch.Tensor) -> None:
    """Writes latent (T, lora) beside k_rope (T, rope) into cache[slot], slot (T)."""
    cache[slot.long()] = torch.cat([latent, k_rope], -1)


def mla_decode(
    q_latent: torch.Tensor,
    q_rope: torch.Tensor,
    cache: torch.Tensor,
    slots: torch.Tensor,
    length: torch.Tensor,
    splits: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """One token: q_latent (h, lora), q_rope (h, rope), length (1), splits (1) -> (h, lora).

    softmax(scale * q . k) v, in fp32. `splits`, at most MAX_SPLITS, is in how many parts a parallel kernel cuts the
    context; it changes the rounding only.
    """
    keys = cache[slots[: int(length)].long()].float()
    q = torch.cat([q_latent, q_rope], -1).float()
    weights = torch.softmax(q @ keys.T * scale, -1)
    return (weights @ keys[:, : q_latent.shape[1]]).to(q_latent.dtype)


def head_gate(o: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """o (T, h, d) in any strides, gate (T, h) -> o * sigmoid(gate) in fp32, rounded once, (T, h, d) contiguous."""
    return (o.float() * torch.sigmoid(gate.float())[..., None]).to(o.dtype).contiguous()

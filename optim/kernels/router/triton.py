"""Grouped top-k, one program a token: everything stays in registers."""

import torch
import triton
import triton.language as tl

from optim.kernels.launch import chain, launch
from optim.kernels.router.naive import TINY

__all__ = ["route"]


def route(
    logits: torch.Tensor, bias: torch.Tensor, groups: int, kept: int, top_k: int, scaling: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """As the naive one; the experts, the groups and the experts a group are powers of two."""
    tokens, count = logits.shape
    weights = torch.empty(tokens, top_k, dtype=torch.float32, device=logits.device)
    experts = torch.empty(tokens, top_k, dtype=torch.int32, device=logits.device)
    sizes = {"E": count, "G": groups, "KEPT": kept, "K": top_k, "BK": triton.next_power_of_2(top_k), "TINY": TINY}
    launch(router_topk_kernel, (tokens,))(logits, bias, weights, experts, scaling, **sizes, num_warps=1)
    return weights, experts


@triton.jit
def router_topk_kernel(
    logits, bias, weights, experts, scaling,
    E: tl.constexpr, G: tl.constexpr, KEPT: tl.constexpr, K: tl.constexpr, BK: tl.constexpr, TINY: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    chain(PDL)
    token = tl.program_id(0).to(tl.int64)
    e, group, slot = tl.arange(0, E), tl.arange(0, G), tl.arange(0, BK)
    score = tl.sigmoid(tl.load(logits + token * E + e))
    choice = score + tl.load(bias + e)
    by_group = tl.reshape(choice, (G, E // G))
    member = tl.arange(0, E // G)
    best = tl.max(by_group, 1)
    if E // G > 1:
        first = tl.argmax(by_group, 1, tie_break_left=True)
        best += tl.max(tl.where(member[None, :] == first[:, None], float("-inf"), by_group), 1)
    keep = tl.zeros((G,), tl.int32)
    for _ in tl.static_range(KEPT):
        at = tl.argmax(best, 0, tie_break_left=True)
        keep = tl.where(group == at, 1, keep)
        best = tl.where(group == at, float("-inf"), best)
    choice = tl.reshape(tl.where(keep[:, None] == 1, by_group, float("-inf")), (E,))
    chosen, taken, total = tl.zeros((BK,), tl.int32), tl.zeros((BK,), tl.float32), 0.0
    for i in tl.static_range(K):
        at = tl.argmax(choice, 0, tie_break_left=True)
        own = tl.sum(tl.where(e == at, score, 0.0))
        chosen = tl.where(slot == i, at, chosen)
        taken = tl.where(slot == i, own, taken)
        total += own
        choice = tl.where(e == at, float("-inf"), choice)
    tl.store(weights + token * K + slot, taken / (total + TINY) * scaling, slot < K)
    tl.store(experts + token * K + slot, chosen, slot < K)

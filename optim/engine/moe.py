"""The feed-forward half of a layer: a plain SwiGLU MLP in the first layers, else routed experts and a shared one."""

import torch
import torch.nn.functional as F  # noqa: N812

from optim.engine.config import Config


def mlp(x: torch.Tensor, w, ops) -> torch.Tensor:
    """x (T, hidden) -> (T, hidden)."""
    return F.linear(ops.swiglu(F.linear(x, w.gate_up), None), w.down)


def moe(x: torch.Tensor, w, layer: int, c: Config, ops) -> torch.Tensor:
    """x (T, hidden) -> (T, hidden): the router's weighted experts plus the shared one."""
    logits = F.linear(x.to(w.router.dtype), w.router).float()
    weights, experts = ops.route(logits, w.bias, c.groups, c.kept_groups, c.top_k, c.routed_scaling)
    order = ops.moe_align(experts, c.experts, block_rows(len(x) * c.top_k, c.experts))
    up = ops.grouped_gemm(x, w.w13, *order, c.top_k)
    down = ops.grouped_gemm(ops.swiglu(up, _limit(c.expert_limits, layer)), w.w2, *order, 1)
    shared = ops.swiglu(F.linear(x, w.shared_gate_up), _limit(c.shared_limits, layer))
    return ops.combine(down, weights, F.linear(shared, w.shared_down))


def block_rows(pairs: int, experts: int) -> int:
    """Rows a block of the grouped product has: about what an expert gets, within what the hardware multiplies well."""
    mean = pairs / experts
    return 16 if mean <= 16 else 64 if mean <= 64 else 128


def _limit(limits: tuple[float | None, ...], layer: int) -> float | None:
    return limits[layer] if layer < len(limits) else None

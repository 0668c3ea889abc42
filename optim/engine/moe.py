"""The feed-forward half of a layer: a plain SwiGLU MLP in the first layers, else routed experts and a shared one."""

import torch

from optim.engine.config import Config


def mlp(x: torch.Tensor, w, ops) -> torch.Tensor:
    """x (T, hidden) -> (T, hidden)."""
    return ops.linear(ops.swiglu(ops.linear(x, w.gate_up), None), w.down)


def moe(x: torch.Tensor, w, layer: int, c: Config, ops) -> torch.Tensor:
    """x (T, hidden) -> (T, hidden): the router's weighted experts plus the shared one."""
    logits = ops.linear(x.to(w.router.dtype), w.router).float()
    weights, experts = ops.route(logits, w.bias, c.groups, c.kept_groups, c.top_k, c.routed_scaling)
    shared = ops.swiglu(ops.linear(x, w.shared_gate_up), _limit(c.shared_limits, layer))
    shared = ops.linear(shared, w.shared_down)
    return ops.routed(x, w, weights, experts, shared, _limit(c.expert_limits, layer), ops)


def routed(x: torch.Tensor, w, weights: torch.Tensor, experts: torch.Tensor, shared: torch.Tensor, limit, ops):
    """x (T, hidden), weights and experts (T, k) -> their weighted sum on top of shared (T, hidden)."""
    order = ops.moe_align(experts, len(w.w13))
    active = ops.experts_up(x, w.w13, *order, experts.shape[1], limit)
    return ops.combine(ops.grouped_gemm(active, w.w2, *order, 1), weights, shared)


def _limit(limits: tuple[float | None, ...], layer: int) -> float | None:
    return limits[layer] if layer < len(limits) else None

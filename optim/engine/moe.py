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
    order = ops.moe_align(experts, c.experts)
    active = ops.experts_up(x, w.w13, *order, c.top_k, _limit(c.expert_limits, layer))
    down = ops.grouped_gemm(active, w.w2, *order, 1)
    shared = ops.swiglu(ops.linear(x, w.shared_gate_up), _limit(c.shared_limits, layer))
    return ops.combine(down, weights, ops.linear(shared, w.shared_down))


def _limit(limits: tuple[float | None, ...], layer: int) -> float | None:
    return limits[layer] if layer < len(limits) else None

"""The feed-forward half of a layer: a plain SwiGLU MLP in the first layers, else routed experts and a shared one."""

from optim.engine.config import Config


def mlp(x, residual, w, c: Config, ops):
    """x and residual (T, hidden) -> (branch, stream)."""
    (gate_up,), residual = ops.norm_linears(x, residual, w.mlp_norm, (w.gate_up,), c.eps, ops)
    return ops.linear(ops.swiglu(gate_up, None), w.down), residual


def moe(x, residual, w, layer: int, c: Config, ops):
    """x and residual (T, hidden) -> (the router's weighted experts plus the shared one, stream)."""
    limits = _limit(c.shared_limits, layer), _limit(c.expert_limits, layer)
    return ops.moe(x, residual, w, c, limits, ops)


def _limit(limits: tuple[float | None, ...], layer: int) -> float | None:
    return limits[layer] if layer < len(limits) else None

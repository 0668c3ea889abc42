"""Operations made of others. A pass may put one kernel in place of any of them, as in place of a single one.

x and residual (T, hidden): the last branch and the residual stream that it joins, None before the first layer.
`w` holds a layer's weights, `ops` the operations to use.
"""

from types import SimpleNamespace
from typing import Any

import torch

from optim.engine.config import Config
from optim.engine.mla import mla_core

Limit = float | None


def join(x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor, eps: float, ops):
    """Adds the branch to the stream -> (the norm of the sum, the sum)."""
    if residual is None:
        return ops.rms_norm(x, weight, eps), x
    return ops.add_rms_norm(x, residual, weight, eps)


def linears(x: torch.Tensor, matrices: tuple[torch.Tensor, ...], ops) -> tuple[torch.Tensor, ...]:
    """x times each of `matrices` (N, hidden): (T, N) each."""
    return tuple(ops.linear(x, matrix) for matrix in matrices)


def norm_linears(x, residual, weight: torch.Tensor, matrices: tuple[torch.Tensor, ...], eps: float, ops):
    """-> (the norm of the sum times each of `matrices`, the sum)."""
    x, residual = join(x, residual, weight, eps, ops)
    return ops.linears(x, matrices, ops), residual


def gated_norm_linear(o, gate, weight: torch.Tensor, matrix: torch.Tensor, eps: float, ops) -> torch.Tensor:
    """o, gate (T, h d), weight (d) -> the norm of each head, times sigmoid(gate), times matrix: (T, N)."""
    heads = (len(o), -1, len(weight))
    return ops.linear(ops.gated_rms_norm(o.view(heads), gate.view(heads), weight, eps).view(len(o), -1), matrix)


def kda_core(qkv, f, b, w, ring: torch.Tensor, state: torch.Tensor, meta, bound: Limit, ops) -> torch.Tensor:
    """One token between a KDA layer's projections and its norm: convolution, gate, delta rule.

    qkv (1, 3 h d), f (1, h d), b (1, h); ring and state as in Cache -> (1, h d).
    """
    heads, d = state.shape[1], state.shape[3]
    q, k, v = ops.conv_update(qkv, w.conv, ring, meta.row, meta.position).view(1, 3, heads, d).unbind(1)
    g, beta = ops.kda_gate(f, b, w.a_log, w.dt_bias, bound)
    return ops.kda_step(q, k, v, g, beta, state, meta.row).view(1, -1)


def kda(qkv, f, g, b, w, ring: torch.Tensor, state: torch.Tensor, meta, c: Config, ops) -> torch.Tensor:
    """One token from a KDA layer's first projections, with its output gate g (1, h d), to its branch (1, hidden)."""
    o = ops.kda_core(qkv, f, b, w, ring, state, meta, c.gate_bound, ops)
    return ops.gated_norm_linear(o, g, w.o_norm, w.o, c.eps, ops)


def moe(x, residual, w, c: Config, limits: tuple[Limit, Limit], ops):
    """The router's weighted experts plus the shared one, both of SwiGLU within `limits` (shared, routed).

    -> (branch (T, hidden), the sum).
    """
    x, residual = join(x, residual, w.mlp_norm, c.eps, ops)
    logits = ops.linear(x.to(w.router.dtype), w.router).float()
    weights, chosen = ops.route(logits, w.bias, c.groups, c.kept_groups, c.top_k, c.routed_scaling)
    shared = ops.swiglu(ops.linear(x, w.shared_gate_up), limits[0])
    return ops.experts(x, w, weights, chosen, shared, limits[1], ops), residual


def experts(x, w, weights, chosen, shared, limit: Limit, ops) -> torch.Tensor:
    """x (T, hidden), weights and chosen (T, k), shared (T, I) -> the experts' weighted sum and the shared one."""
    shared = ops.linear(shared, w.shared_down)
    order = ops.moe_align(chosen, len(w.w13))
    active = ops.experts_up(x, w.w13, *order, chosen.shape[1], limit, ops)
    return ops.combine(ops.grouped_gemm(active, w.w2, *order, 1), weights, shared)


def experts_up(x, weight, pairs, of_block, used, share: int, limit: Limit, ops) -> torch.Tensor:
    """x (rows, hidden), weight (E, 2 I, hidden) -> swiglu of the grouped product, (rows * share, I)."""
    return ops.swiglu(ops.grouped_gemm(x, weight, pairs, of_block, used, share), limit)


def head(x, residual, weight: torch.Tensor, matrix: torch.Tensor, eps: float, ops) -> tuple[torch.Tensor, Any]:
    """-> (logits (T, vocab) fp32, None); a pass may give the tensor into which it wrote the likeliest token."""
    x, _ = join(x, residual, weight, eps, ops)
    return ops.linear(x.to(matrix.dtype), matrix).float(), None


def complete(ops: SimpleNamespace) -> SimpleNamespace:
    """Adds what is composed here to the operations of the kernels."""
    composed = (linears, norm_linears, gated_norm_linear, kda_core, kda, moe, experts, experts_up, head, mla_core)
    vars(ops).update({function.__name__: function for function in composed})
    return ops

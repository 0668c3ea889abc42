"""A Kimi Delta Attention layer. The formula it computes stands in optim/kernels/kda/naive.py.

norm of x -> q, k, v  -> short convolution and silu each
          -> f, b     -> log decay g, step size beta
          -> delta rule over the state
          -> rms norm per head, times sigmoid of the output gate -> o
"""

import torch

from optim.engine.cache import Metadata
from optim.engine.config import Config


def decode(x, residual, w, ring: torch.Tensor, state: torch.Tensor, meta: Metadata, c: Config, ops):
    """One token, x and residual (1, hidden) -> (branch, stream); ring and state of this layer as in Cache."""
    (qkv, f, g, b), residual = ops.norm_linears(x, residual, w.attn_norm, projections(w), c.eps, ops)
    return ops.kda(qkv, f, g, b, w, ring, state, meta, c, ops), residual


def prefill(x, residual, w, ring: torch.Tensor, state: torch.Tensor, row: torch.Tensor, seen: int, c: Config, ops):
    """The prompt's next T tokens from number `seen` on, x (T, hidden) -> (branch, stream)."""
    (qkv, f, g, b), residual = ops.norm_linears(x, residual, w.attn_norm, projections(w), c.eps, ops)
    q, k, v = ops.conv_prefill(qkv, w.conv, ring, row, seen).view(len(x), 3, c.heads, c.kda_dim).unbind(1)
    decay, beta = ops.kda_gate(f, b, w.a_log, w.dt_bias, c.gate_bound)
    o = ops.kda_chunk(q, k, v, decay, beta, state, row)
    return ops.gated_norm_linear(o.view(len(x), -1), g, w.o_norm, w.o, c.eps, ops), residual


def projections(w) -> tuple[torch.Tensor, ...]:
    """The matrices that read the norm of x."""
    return w.qkv, w.f, w.g, w.b

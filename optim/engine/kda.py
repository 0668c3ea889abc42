"""A Kimi Delta Attention layer. The formula it computes stands in optim/kernels/kda/naive.py.

x -> q, k, v  -> short convolution and silu each
  -> f, b     -> log decay g, step size beta
  -> delta rule over the state
  -> rms norm per head, times sigmoid of x's output gate -> o
"""

from types import SimpleNamespace

import torch

from optim.engine.config import Config


def decode(x: torch.Tensor, w, conv: torch.Tensor, state: torch.Tensor, row: torch.Tensor, c: Config, ops):
    """One token, x (1, hidden) -> (1, hidden); conv and state of this layer as in Cache, `row` this request's."""
    return _layer(x, w, conv, state, row, c, ops, ops.conv_update, ops.kda_step)


def prefill(x: torch.Tensor, w, conv: torch.Tensor, state: torch.Tensor, row: torch.Tensor, c: Config, ops):
    """The next T tokens of a prompt, x (T, hidden) -> (T, hidden); picks up where the state stands."""
    return _layer(x, w, conv, state, row, c, ops, ops.conv_prefill, ops.kda_chunk)


def _layer(x, w: SimpleNamespace, conv, state, row, c: Config, ops, convolve, delta_rule) -> torch.Tensor:
    heads = (c.heads, c.kda_dim)
    q, k, v = convolve(ops.linear(x, w.qkv), w.conv, conv, row).view(len(x), 3, *heads).unbind(1)
    g, beta = ops.kda_gate(ops.linear(x, w.f), ops.linear(x, w.b), w.a_log, w.dt_bias, c.gate_bound)
    o = delta_rule(q, k, v, g, beta, state, row)
    o = ops.gated_rms_norm(o, ops.linear(x, w.g).view(len(x), *heads), w.o_norm, c.eps)
    return ops.linear(o.view(len(x), -1), w.o)

"""A Kimi Delta Attention layer. The formula it computes stands in optim/kernels/kda/naive.py.

x -> q, k, v  -> short convolution and silu each
  -> f, b     -> log decay g, step size beta
  -> delta rule over the state
  -> rms norm per head, times sigmoid of x's output gate -> o
"""

import torch

from optim.engine.config import Config


def decode(x: torch.Tensor, w, conv: torch.Tensor, state: torch.Tensor, row: torch.Tensor, c: Config, ops):
    """One token, x (1, hidden) -> (1, hidden); conv and state of this layer as in Cache, `row` this request's."""
    f, b, gate = ops.linear(x, w.f), ops.linear(x, w.b), ops.linear(x, w.g)
    o = ops.kda_decode(ops.linear(x, w.qkv), f, b, gate, w, conv, state, row, c.gate_bound, c.eps)
    return ops.linear(o, w.o)


def prefill(x: torch.Tensor, w, conv: torch.Tensor, state: torch.Tensor, row: torch.Tensor, c: Config, ops):
    """The next T tokens of a prompt, x (T, hidden) -> (T, hidden); picks up where the state stands."""
    heads = (c.heads, c.kda_dim)
    q, k, v = ops.conv_prefill(ops.linear(x, w.qkv), w.conv, conv, row).view(len(x), 3, *heads).unbind(1)
    g, beta = ops.kda_gate(ops.linear(x, w.f), ops.linear(x, w.b), w.a_log, w.dt_bias, c.gate_bound)
    o = ops.kda_chunk(q, k, v, g, beta, state, row)
    o = ops.gated_rms_norm(o, ops.linear(x, w.g).view(len(x), *heads), w.o_norm, c.eps)
    return ops.linear(o.view(len(x), -1), w.o)

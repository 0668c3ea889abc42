"""Kimi Delta Attention (arXiv 2510.26692; the bounded gate as in Ling-3.0): a gated delta rule, decayed per channel.

A head's state S (d_k, d_v) maps keys to values. A token with query q, key k, value v, log decay g <= 0, step size beta:

    q <- q / |q| / sqrt(d_k),  k <- k / |k|
    S <- diag(exp g) S                    forget, each key channel at its own rate
    u  = beta (v - S^T k)                 what S does not yet say about k
    S <- S + k u^T
    o  = S^T q

state (rows, h, d_v, d_k) fp32 holds S^T, so that a key channel is contiguous; row `index[0]` is this request's.
"""

import torch
import torch.nn.functional as F  # noqa: N812

__all__ = ["kda_chunk", "kda_gate", "kda_step"]

CHUNK = 16
LEAST_DECAY = -88.0 / CHUNK  # a chunk of such log decays just fits fp32's exponent when its factors are split
L2_EPS = 1e-6


def kda_gate(
    f: torch.Tensor, b: torch.Tensor, a_log: torch.Tensor, dt_bias: torch.Tensor, bound: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """f (T, h*d), b (T, h), a_log (h), dt_bias (h*d) -> log decay g (T, h, d), beta = sigmoid(b) (T, h), both fp32.

    g = bound * sigmoid(exp(a_log) (f + dt_bias)); without a bound g = -exp(a_log) softplus(f + dt_bias).
    """
    rate = a_log.float().exp()[:, None]
    x = (f.float() + dt_bias.float()).view(len(f), len(a_log), -1)
    g = -rate * F.softplus(x) if bound is None else bound * torch.sigmoid(rate * x)
    return g, torch.sigmoid(b.float())


def kda_step(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    index: torch.Tensor,
) -> torch.Tensor:
    """One token: q, k, v, g (1, h, d), beta (1, h) -> o (1, h, d_v) in the dtype of v; updates the state."""
    row = state[index[0]]
    q, k = _unit(q[0]) * q.shape[-1] ** -0.5, _unit(k[0])
    s = row * g[0].exp()[:, None, :]
    u = beta[0, :, None] * (v[0].float() - (s @ k[:, :, None]).squeeze(-1))
    s = s + u[:, :, None] * k[:, None, :]
    row.copy_(s)
    return (s @ q[:, :, None]).squeeze(-1)[None].to(v.dtype)


def kda_chunk(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    index: torch.Tensor,
) -> torch.Tensor:
    """T tokens as kda_step one after the other: q, k, v, g (T, h, d), beta (T, h) -> o (T, h, d_v).

    Within a chunk, with G the running sum of g and D_ij = exp(G_i - G_j): the u solve the triangular system
    u_i + beta_i sum_{j<i} (k_i . D_ij k_j) u_j = beta_i (v_i - S^T (exp(G_i) k_i)), and S moves on once a chunk.
    """
    row = state[index[0]]
    s = row.transpose(1, 2).float()  # (h, d_k, d_v)
    q, k = _unit(q) * q.shape[-1] ** -0.5, _unit(k)
    out = []
    for chunk in zip(*(x.float().split(CHUNK) for x in (q, k, v, g, beta)), strict=True):
        o, s = _one_chunk(s, *(x.transpose(0, 1) for x in chunk))
        out.append(o.transpose(0, 1))
    row.copy_(s.transpose(1, 2))
    return torch.cat(out).to(v.dtype)


def _one_chunk(s, q, k, v, g, beta):
    """s (h, d_k, d_v), q, k, v, g (h, C, d), beta (h, C) -> o (h, C, d_v), the state after the chunk."""
    total = g.cumsum(1)
    decay = (total[:, :, None] - total[:, None]).exp()  # (h, C, C, d); only j <= i is meant
    system = (torch.einsum("hid,hijd,hjd->hij", k, decay, k) * beta[..., None]).tril(-1)
    right = beta[..., None] * (v - (k * total.exp()) @ s)
    u = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    scores = torch.einsum("hid,hijd,hjd->hij", q, decay, k).tril()
    after = s * total[:, -1].exp()[..., None] + (k * (total[:, -1:] - total).exp()).transpose(1, 2) @ u
    return (q * total.exp()) @ s + scores @ u, after


def _unit(x: torch.Tensor) -> torch.Tensor:
    x = x.float()
    return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + L2_EPS)

"""Ling-3.0's forward pass in float64, written from its formulas: plain, slow, no cache, every token by itself.

A whole sequence goes in, the logits after each of its tokens come out. Weights as optim.engine.weights.build makes
them. It shares nothing with the engine but the names of Config and of the weights.
"""

from types import SimpleNamespace

import torch

from optim.engine.config import Config

Tensor = torch.Tensor
L2_EPS = 1e-6


def logits(c: Config, weights: SimpleNamespace, ids: list[int]) -> Tensor:
    """ids (T) -> (T, vocab)."""
    w = double(weights)
    x = w.embed[ids]
    for i, layer in enumerate(w.layers):
        attend = mla if (i + 1) % c.layer_group == 0 else kda
        x = x + attend(norm(x, layer.attn_norm, c.eps), layer, c)
        x = x + feed_forward(norm(x, layer.mlp_norm, c.eps), layer, i, c)
    return norm(x, w.norm, c.eps) @ w.head.T


def double(w: SimpleNamespace) -> SimpleNamespace:
    """The same weights in float64."""
    layers = {"layers": [double(layer) for layer in w.layers]} if hasattr(w, "layers") else {}
    return SimpleNamespace(**{k: v.double() for k, v in vars(w).items() if k != "layers"}, **layers)


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


def silu(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-x))


def kda(x: Tensor, w: SimpleNamespace, c: Config) -> Tensor:
    """Kimi Delta Attention, x (T, hidden) -> (T, hidden): one head after the other, one token after the other."""
    shape = (len(x), c.heads, c.kda_dim)
    q, k, v = (y.reshape(shape) for y in convolve(x @ w.qkv.T, w.conv).chunk(3, 1))
    g = log_decay((x @ w.f.T + w.dt_bias).view(shape), w.a_log, c.gate_bound)
    beta, gate = torch.sigmoid(x @ w.b.T), torch.sigmoid(x @ w.g.T).view(shape)
    out = torch.stack([delta_rule(q[:, h], k[:, h], v[:, h], g[:, h], beta[:, h]) for h in range(c.heads)], 1)
    return (norm(out, w.o_norm, c.eps) * gate).flatten(1) @ w.o.T


def convolve(x: Tensor, taps: Tensor) -> Tensor:
    """x (T, D), taps (D, width), the last for the present token -> silu of each channel's weighted recent inputs."""
    width = taps.shape[1]
    out = torch.zeros_like(x)
    for t in range(len(x)):
        for age in range(min(width, t + 1)):
            out[t] += taps[:, width - 1 - age] * x[t - age]
    return silu(out)


def log_decay(f: Tensor, a_log: Tensor, bound: float | None) -> Tensor:
    """f (T, heads, d), dt_bias within, a_log (heads): the safe gate where there is a bound, else softplus."""
    rate = torch.exp(a_log)[:, None]
    if bound is None:
        return -rate * torch.logaddexp(f, torch.zeros_like(f))
    return bound / (1 + torch.exp(-rate * f))


def delta_rule(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """One head: q, k, g (T, d_k), v (T, d_v), beta (T) -> (T, d_v). The state, (d_k, d_v), forgets and is corrected."""
    s = torch.zeros(k.shape[1], v.shape[1], dtype=v.dtype)
    out = []
    for t in range(len(q)):
        query = q[t] / (q[t].square().sum() + L2_EPS).sqrt() * q.shape[1] ** -0.5
        key = k[t] / (k[t].square().sum() + L2_EPS).sqrt()
        s = torch.diag(torch.exp(g[t])) @ s
        s = s + torch.outer(key, beta[t] * (v[t] - s.T @ key))
        out.append(s.T @ query)
    return torch.stack(out)


def mla(x: Tensor, w: SimpleNamespace, c: Config) -> Tensor:
    """Latent attention with every head's keys and values written out, x (T, hidden) -> (T, hidden)."""
    q = x @ w.q.T if c.q_lora is None else norm(x @ w.q_a.T, w.q_norm, c.eps) @ w.q_b.T
    q = q.view(len(x), c.heads, c.nope + c.rope)
    compressed = x @ w.kv_a.T
    kv = norm(compressed[:, : c.kv_lora], w.kv_norm, c.eps) @ w.kv_b.T
    kv = kv.view(len(x), c.heads, c.nope + c.v_dim)
    k_rope = rotate(compressed[:, c.kv_lora :], c.rope_theta)
    out = torch.zeros(len(x), c.heads, c.v_dim, dtype=x.dtype)
    for h in range(c.heads):
        queries = torch.cat([q[:, h, : c.nope], rotate(q[:, h, c.nope :], c.rope_theta)], 1)
        keys = torch.cat([kv[:, h, : c.nope], k_rope], 1)
        for t in range(len(x)):
            scores = torch.exp(keys[: t + 1] @ queries[t] * (c.nope + c.rope) ** -0.5)
            out[t, h] = scores / scores.sum() @ kv[: t + 1, h, c.nope :]
    if c.head_gate:
        out = out * torch.sigmoid(x @ w.gate.T)[:, :, None]
    return out.flatten(1) @ w.o.T


def rotate(x: Tensor, theta: float | None) -> Tensor:
    """x (T, r): row t, its neighbours 2i and 2i + 1 as one complex number, turned by t * theta^(-2i / r)."""
    if theta is None:
        return x
    tokens, width = x.shape
    speed = theta ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angle = torch.arange(tokens, dtype=torch.float64)[:, None] * speed
    plane = torch.view_as_complex(x.reshape(tokens, -1, 2).contiguous())
    return torch.view_as_real(plane * torch.polar(torch.ones_like(angle), angle)).flatten(1)


def feed_forward(x: Tensor, w: SimpleNamespace, layer: int, c: Config) -> Tensor:
    if layer < c.dense_layers:
        return expert(x, w.gate_up, w.down, None)
    return torch.stack([mixture(token, w, layer, c) for token in x])


def mixture(x: Tensor, w: SimpleNamespace, layer: int, c: Config) -> Tensor:
    """One token, x (hidden) -> (hidden): the shared expert and the weighted ones that the router chose."""
    routed_limit = c.expert_limits[layer] if c.expert_limits else None
    shared_limit = c.shared_limits[layer] if c.shared_limits else None
    out = expert(x, w.shared_gate_up, w.shared_down, shared_limit)
    for e, weight in route(w.router @ x, w.bias, c).items():
        out = out + weight * expert(x, w.w13[e], w.w2[e], routed_limit)
    return out


def expert(x: Tensor, gate_up: Tensor, down: Tensor, limit: float | None) -> Tensor:
    gate, up = (x @ gate_up.T).chunk(2, -1)
    gate = silu(gate)
    if limit is not None:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return gate * up @ down.T


def route(scores: Tensor, bias: Tensor, c: Config) -> dict[int, float]:
    """One token's logits (experts) -> the weight of each chosen expert. The bias chooses but does not weigh."""
    score = torch.sigmoid(scores).tolist()
    biased = [s + b for s, b in zip(score, bias.tolist(), strict=True)]
    size = c.experts // c.groups
    groups = [range(g * size, (g + 1) * size) for g in range(c.groups)]
    strength = [sum(sorted((biased[e] for e in group), reverse=True)[:2]) for group in groups]
    kept = best(strength, range(c.groups), c.kept_groups)
    chosen = best(biased, [e for g in kept for e in groups[g]], c.top_k)
    total = sum(score[e] for e in chosen)
    return {e: c.routed_scaling * score[e] / total for e in chosen}


def best(score: list[float], among, count: int) -> list[int]:
    """The ids of the highest scores; of equals the lowest ids."""
    return sorted(among, key=lambda i: (-score[i], i))[:count]

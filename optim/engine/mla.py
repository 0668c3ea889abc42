"""A multi-head latent attention layer: keys and values of all heads come from one latent a token; only that is kept.

Decode never expands the latent: W_uk goes into the query and W_uv behind the attention (absorbed form), so every head
attends to the same 512 + 64 numbers a token. Prefill expands it, which costs fewer operations for many queries.
"""

import torch
import torch.nn.functional as F  # noqa: N812
from torch.nn.attention.bias import causal_lower_right

from optim.engine.cache import Cache, Metadata
from optim.engine.config import Config


def decode(x, residual, w, latent: torch.Tensor, rope_table, meta: Metadata, c: Config, ops):
    """One token, x and residual (1, hidden) -> (branch, stream); `latent` of this layer as in Cache."""
    (q, kv, *gate), residual = ops.norm_linears(x, residual, w.attn_norm, projections(w, c), c.eps, ops)
    o = ops.mla_core(q, kv, gate, w, latent, rope_table, meta, c, ops)
    return ops.linear(o, w.o), residual


def mla_core(q, kv, gate, w, latent: torch.Tensor, rope_table, meta: Metadata, c: Config, ops) -> torch.Tensor:
    """One token between the projections of x and that of the output: q, kv and gate as `projections` -> (1, h v)."""
    q_nope, q_rope = _queries(q, w, c, ops)
    c_kv, k_rope = _keys(kv, w, c, ops)
    q_rope, k_rope = (_rotate(part, meta.position, rope_table, c, ops) for part in (q_rope, k_rope))
    ops.mla_store(c_kv, k_rope.squeeze(1), latent, meta.slot)
    w_uk, w_uv = expansions(w, c)
    q_latent = torch.bmm(q_nope.transpose(0, 1), w_uk).squeeze(1)
    o = ops.mla_decode(q_latent, q_rope[0], latent, meta.slots, meta.length, meta.splits, scale(c))
    return _gated(torch.bmm(o.unsqueeze(1), w_uv.transpose(1, 2)).transpose(0, 1), gate, ops)


def prefill(x, residual, w, latent: torch.Tensor, rope_table, cache: Cache, seen: int, c: Config, ops):
    """The prompt's next T tokens from number `seen` on, x (T, hidden) -> (branch, stream); they see all before."""
    (q, kv, *gate), residual = ops.norm_linears(x, residual, w.attn_norm, projections(w, c), c.eps, ops)
    total = seen + len(x)
    positions, slots = torch.arange(seen, total, device=x.device), cache.slots[:total]
    q_nope, q_rope = _queries(q, w, c, ops)
    c_kv, k_rope = _keys(kv, w, c, ops)
    q_rope, k_rope = (_rotate(part, positions, rope_table, c, ops) for part in (q_rope, k_rope))
    ops.mla_store(c_kv, k_rope.squeeze(1), latent, slots[seen:])
    c_kv, k_rope = latent[slots].split([c.kv_lora, c.rope], -1)
    k_nope, v = ops.linear(c_kv, w.kv_b).view(total, c.heads, -1).split([c.nope, c.v_dim], -1)
    k = torch.cat([k_nope, k_rope[:, None].expand(-1, c.heads, -1)], -1)
    o = _attention(torch.cat([q_nope, q_rope], -1), k, v)
    return ops.linear(_gated(o, gate, ops), w.o), residual


def projections(w, c: Config) -> tuple[torch.Tensor, ...]:
    """The matrices that read the norm of x: queries (or what they are made of), latent and rotated key, head gate."""
    return (w.q if c.q_lora is None else w.q_a, w.kv_a, *((w.gate,) if c.head_gate else ()))


def scale(c: Config) -> float:
    return (c.nope + c.rope) ** -0.5


def _queries(q, w, c: Config, ops) -> tuple[torch.Tensor, torch.Tensor]:
    """-> the part without position (T, h, nope), the part to rotate (T, h, rope)."""
    if c.q_lora is not None:
        q = ops.linear(ops.rms_norm(q, w.q_norm, c.eps), w.q_b)
    nope, rope = q.view(len(q), c.heads, -1).split([c.nope, c.rope], -1)
    return nope, rope


def _keys(kv, w, c: Config, ops) -> tuple[torch.Tensor, torch.Tensor]:
    """-> latent (T, lora), the part to rotate (T, 1, rope)."""
    c_kv, rope = kv.split([c.kv_lora, c.rope], -1)
    return ops.rms_norm(c_kv, w.kv_norm, c.eps), rope.unsqueeze(1)


def _rotate(x, positions, rope_table, c: Config, ops) -> torch.Tensor:
    return x if c.rope_theta is None else ops.rope(x, positions, rope_table)


def expansions(w, c: Config) -> tuple[torch.Tensor, torch.Tensor]:
    """Views of kv_b: W_uk (h, nope, lora), W_uv (h, v, lora)."""
    w_uk, w_uv = w.kv_b.view(c.heads, -1, c.kv_lora).split([c.nope, c.v_dim], 1)
    return w_uk, w_uv


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """q (T, h, d), k (S, h, d), v (S, h, e) -> (T, h, e); the last query sees every key."""
    bias = causal_lower_right(len(q), len(k))
    pad = q.shape[-1] - v.shape[-1]  # flash attention wants keys and values of one width
    heads = [x.transpose(0, 1).unsqueeze(0) for x in (q, k, F.pad(v, (0, pad)))]
    return F.scaled_dot_product_attention(heads[0], heads[1], heads[2], bias)[0].transpose(0, 1)[..., : v.shape[-1]]


def _gated(o: torch.Tensor, gate: list[torch.Tensor], ops) -> torch.Tensor:
    """o (T, h, v) -> (T, h v), each head scaled by its gate where there is one."""
    for logits in gate:
        o = ops.head_gate(o, logits)
    return o.reshape(len(o), -1)


def rope_table(c: Config, positions: int, device: str) -> torch.Tensor:
    """(positions, rope) fp32: cos then sin of position * theta^(-2i / rope); computed in fp64."""
    planes = torch.arange(0, c.rope, 2, dtype=torch.float64, device=device) / c.rope
    angles = torch.arange(positions, dtype=torch.float64, device=device)[:, None] * (c.rope_theta or 1.0) ** -planes
    return torch.cat([angles.cos(), angles.sin()], -1).float()

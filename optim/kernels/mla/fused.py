"""mla_core of one token in five launches instead of a dozen.

mla_query   queries from their latent, its norm inside; beside them the new key's norm, rotation and storing
mla_absorb  W_uk into the query, whose rotated part turns beside it
mla_split   each program attends to some of the context, whose first tokens it reads before its wait
mla_join    the splits merged
mla_values  times W_uv, times the head's gate
"""

import torch
import triton
import triton.language as tl

from optim.engine import mla
from optim.kernels.launch import chain, launch
from optim.kernels.linear.gemv import block, product, programs, rows_of, shape, tiles, vector_of
from optim.kernels.linear.normed import gained, scale_of
from optim.kernels.tiles import tile

__all__ = ["mla_core"]

ABSORB = [{"BL": columns, "num_warps": warps} for columns in (64, 32, 128) for warps in (4, 2, 8)]
SPLIT = [{"S": s, "BT": t, "num_warps": w} for s, t in ((256, 64), (256, 32), (128, 128), (64, 64)) for w in (8, 4)]
JOIN = [{"BL": columns, "num_warps": warps} for columns in (64, 32, 128) for warps in (4, 8)]
VALUES = [{"R": rows, "num_warps": warps} for rows, warps in ((1, 4), (2, 4), (4, 4), (1, 8), (2, 8))]
HEADS = 16  # the rows of one matrix product


def mla_core(q, kv, gate, w, latent, table, meta, c, ops) -> torch.Tensor:
    rotated = c.rope_theta is not None
    q = query(q, kv, w, latent, table, meta, c, rotated)
    q_latent, q_rope = absorb(q, w, table, meta, c, rotated)
    o = join(*split(q_latent, q_rope, latent, meta, c), meta)
    return values_of(o, gate, w, c)


def query(q, kv, w, latent, table, meta, c, rotated: bool) -> torch.Tensor:
    """q (1, q_lora), or (1, h (nope + rope)) where there is no latent query; kv (1, lora + rope) -> q (1, h (..))."""
    full = c.q_lora is None
    n, depth = (0, q.shape[1]) if full else w.q_b.shape
    out = q if full else torch.empty(1, n, dtype=q.dtype, device=q.device)
    chosen = tile("mla_query", (n, depth), tiles(n))
    launch(mla_query_kernel, (programs(n, chosen) + 1,))(
        *(q, kv, kv if full else w.q_norm, kv if full else w.q_b, out, w.kv_norm, latent, table),
        *(meta.position, meta.slot, n, c.eps, 1 if full else depth),
        LORA=c.kv_lora,
        HALF=c.rope // 2,
        ROTATED=rotated,
        BK=1 if full else block(w.q_b),
        **shape(chosen),
    )
    return out


def absorb(q, w, table, meta, c, rotated: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """q (1, h (nope + rope)) -> q_latent (h, lora), q_rope (h, rope)."""
    q_latent = torch.empty(c.heads, c.kv_lora, dtype=q.dtype, device=q.device)
    q_rope = torch.empty(c.heads, c.rope, dtype=q.dtype, device=q.device)
    chosen = tile("mla_absorb", (c.heads, c.nope, c.kv_lora), [t for t in ABSORB if t["BL"] <= c.kv_lora] or ABSORB)
    columns = min(chosen["BL"], c.kv_lora)
    launch(mla_absorb_kernel, (c.heads, c.kv_lora // columns))(
        *(q, w.kv_b, table, meta.position, q_latent, q_rope, c.nope),
        NOPE=triton.next_power_of_2(c.nope),
        VALUES=c.v_dim,
        LORA=c.kv_lora,
        HALF=c.rope // 2,
        ROTATED=rotated,
        BL=columns,
        num_warps=chosen["num_warps"],
    )
    return q_latent, q_rope


def split(q_latent, q_rope, latent, meta, c) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int]:
    """-> sums (S, h, lora), tops and weights (S, h) fp32 of every split, and tokens a turn."""
    chosen = tile("mla_split", (c.heads, c.kv_lora), SPLIT)
    parts = torch.empty(chosen["S"], c.heads, c.kv_lora, dtype=torch.float32, device=latent.device)
    tops = torch.empty(chosen["S"], c.heads, dtype=torch.float32, device=latent.device)
    weights = torch.empty_like(tops)
    launch(mla_split_kernel, (chosen["S"], triton.cdiv(c.heads, HEADS)))(
        *(q_latent, q_rope, latent, meta.slots, meta.length, parts, tops, weights, mla.scale(c), c.heads),
        LORA=c.kv_lora,
        ROPE=c.rope,
        BH=HEADS,
        **chosen,
    )
    return parts, tops, weights, chosen["BT"]


def join(parts, tops, weights, tokens: int, meta) -> torch.Tensor:
    """The splits, `tokens` of the context a turn -> (h, lora) fp32."""
    s, heads, lora = parts.shape
    out = torch.empty(heads, lora, dtype=torch.float32, device=parts.device)
    chosen = tile("mla_join", (heads, lora, s), JOIN)
    columns = min(chosen["BL"], lora)
    launch(mla_join_kernel, (heads, lora // columns))(
        *(parts, tops, weights, meta.length, out, heads, lora),
        S=s,
        BT=tokens,
        BL=columns,
        num_warps=chosen["num_warps"],
    )
    return out


def values_of(o, gate, w, c) -> torch.Tensor:
    """o (h, lora) -> (1, h v)."""
    out = torch.empty(1, c.heads * c.v_dim, dtype=w.kv_b.dtype, device=o.device)
    chosen = tile("mla_values", (c.heads, c.v_dim, c.kv_lora), VALUES)
    launch(mla_values_kernel, (c.heads, programs(c.v_dim, chosen)))(
        *(o, w.kv_b, gate[0] if gate else out, out, c.nope, c.v_dim),
        LORA=c.kv_lora,
        GATED=bool(gate),
        BK=block(w.kv_b),
        **shape(chosen),
    )
    return out


@triton.jit
def mla_query_kernel(
    q, kv, q_norm, q_b, out, kv_norm, latent, table, position, slot, n, eps,
    depth: tl.constexpr, LORA: tl.constexpr, HALF: tl.constexpr, ROTATED: tl.constexpr,
    W: tl.constexpr, R: tl.constexpr, BK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0) * W * R
    tiles = rows_of(q_b, first, n, depth, W, R, BK)
    gains = vector_of(q_norm, depth, W, BK)
    chain(PDL)
    if first < n:
        parts = vector_of(q, depth, W, BK)
        scale, values = scale_of(parts, eps, depth, W, BK), gained(parts, gains)
        for r in tl.static_range(R):
            row = first + r * W + tl.arange(0, W)
            tl.store(out + row, product(tiles, values, r, W, BK) * scale, row < n)
    else:
        c, plane = tl.arange(0, LORA), tl.arange(0, HALF)
        to = latent + tl.load(slot).to(tl.int64) * (LORA + 2 * HALF)
        value = tl.load(kv + c).to(tl.float32)
        factor = 1.0 / tl.sqrt(tl.sum(value * value) / LORA + eps)
        tl.store(to + c, value * factor * tl.load(kv_norm + c).to(tl.float32))
        turn(kv + LORA, to + LORA, table, position, plane, HALF, ROTATED)


@triton.jit
def turn(source, to, table, position, plane, HALF: tl.constexpr, ROTATED: tl.constexpr):
    """Rotates the planes (channels 2i and 2i + 1) by their angles at `position`."""
    even, odd = tl.load(source + 2 * plane).to(tl.float32), tl.load(source + 2 * plane + 1).to(tl.float32)
    if ROTATED:
        row = table + tl.load(position).to(tl.int64) * 2 * HALF
        cos, sin = tl.load(row + plane), tl.load(row + HALF + plane)
        even, odd = even * cos - odd * sin, even * sin + odd * cos
    tl.store(to + 2 * plane, even)
    tl.store(to + 2 * plane + 1, odd)


@triton.jit
def mla_absorb_kernel(
    q, kv_b, table, position, q_latent, q_rope, nope,
    NOPE: tl.constexpr, VALUES: tl.constexpr, LORA: tl.constexpr, HALF: tl.constexpr, ROTATED: tl.constexpr,
    BL: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    head, c, k = tl.program_id(0), tl.program_id(1) * BL + tl.arange(0, BL), tl.arange(0, NOPE)
    row = head.to(tl.int64) * (nope + VALUES) + k[:, None]
    w = tl.load(kv_b + row * LORA + c[None, :], (k < nope)[:, None], 0.0, eviction_policy="evict_first")
    chain(PDL)
    own = q + head * (nope + 2 * HALF)
    value = tl.load(own + k, k < nope, 0.0).to(tl.float32)
    tl.store(q_latent + head * LORA + c, tl.sum(w.to(tl.float32) * value[:, None], 0))
    if tl.program_id(1) == 0:
        turn(own + nope, q_rope + head * 2 * HALF, table, position, tl.arange(0, HALF), HALF, ROTATED)


@triton.jit
def share_of(split, length, S: tl.constexpr, BT: tl.constexpr):
    """The tokens of a split: first, end; whole turns of BT."""
    size = tl.cdiv(tl.cdiv(length, S), BT) * BT
    return split * size, tl.minimum(split * size + size, length)


@triton.jit
def keys_of(latent, slots, t, end, LORA: tl.constexpr, ROPE: tl.constexpr):
    """Latents and rotated keys of tokens t, past the cache of this processor, which may be stale."""
    c, r = tl.arange(0, LORA), tl.arange(0, ROPE)
    real = t < end
    at = latent + tl.load(slots + t, real, 0, cache_modifier=".cg").to(tl.int64)[:, None] * (LORA + ROPE)
    kc = tl.load(at + c[None, :], real[:, None], 0.0, cache_modifier=".cg")
    return kc, tl.load(at + LORA + r[None, :], real[:, None], 0.0, cache_modifier=".cg")


@triton.jit
def mla_split_kernel(
    q_latent, q_rope, latent, slots, length, parts, tops, weights, scale, heads,
    LORA: tl.constexpr, ROPE: tl.constexpr, BH: tl.constexpr, S: tl.constexpr, BT: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The newest latent was stored two launches ago: all of the context may be read before the wait."""
    split, c, r = tl.program_id(0), tl.arange(0, LORA), tl.arange(0, ROPE)
    head = tl.program_id(1) * BH + tl.arange(0, BH)
    begin, end = share_of(split, tl.load(length, cache_modifier=".cg"), S, BT)
    kc, kr = keys_of(latent, slots, begin + tl.arange(0, BT), end, LORA, ROPE)
    chain(PDL)
    if begin >= end:
        return
    in_head = head < heads
    qc = tl.load(q_latent + head[:, None] * LORA + c[None, :], in_head[:, None], 0.0)
    qr = tl.load(q_rope + head[:, None] * ROPE + r[None, :], in_head[:, None], 0.0)
    top, total = tl.full((BH,), float("-inf"), tl.float32), tl.zeros((BH,), tl.float32)
    acc = tl.zeros((BH, LORA), tl.float32)
    for first in range(begin, end, BT):
        t = first + tl.arange(0, BT)
        if first > begin:
            kc, kr = keys_of(latent, slots, t, end, LORA, ROPE)
        s = tl.dot(qc, tl.trans(kc), input_precision="ieee") + tl.dot(qr, tl.trans(kr), input_precision="ieee")
        s = tl.where((t < end)[None, :], s * scale, float("-inf"))
        higher = tl.maximum(top, tl.max(s, 1))
        shrink, p = tl.exp(top - higher), tl.exp(s - higher[:, None])
        total = total * shrink + tl.sum(p, 1)
        acc = acc * shrink[:, None] + tl.dot(p.to(kc.dtype), kc, input_precision="ieee")
        top = higher
    row = split * heads + head
    tl.store(parts + row[:, None] * LORA + c[None, :], acc, in_head[:, None])
    tl.store(tops + row, top, in_head)
    tl.store(weights + row, total, in_head)


@triton.jit
def mla_join_kernel(
    parts, tops, weights, length, out, heads, lora,
    S: tl.constexpr, BT: tl.constexpr, BL: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    head, c, split = tl.program_id(0), tl.program_id(1) * BL + tl.arange(0, BL), tl.arange(0, S)
    tokens = tl.load(length, cache_modifier=".cg")
    used = split < tl.cdiv(tokens, tl.cdiv(tl.cdiv(tokens, S), BT) * BT)
    row = split * heads + head
    chain(PDL)
    peaks = tl.load(tops + row, used, float("-inf"))
    found = tl.load(parts + row[:, None] * lora + c[None, :], used[:, None], 0.0)
    share = tl.exp(peaks - tl.max(peaks, 0))
    total = tl.sum(share * tl.load(weights + row, used, 0.0), 0)
    tl.store(out + head * lora + c, tl.sum(found * share[:, None], 0) / total)


@triton.jit
def mla_values_kernel(
    o, kv_b, gate, out, nope, values,
    LORA: tl.constexpr, GATED: tl.constexpr, W: tl.constexpr, R: tl.constexpr, BK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    head, first = tl.program_id(0), tl.program_id(1) * W * R
    own = kv_b + (head.to(tl.int64) * (nope + values) + nope) * LORA
    tiles = rows_of(own, first, values, LORA, W, R, BK)
    chain(PDL)
    parts = vector_of(o + head * LORA, LORA, W, BK)
    opening = 1.0
    if GATED:
        opening = tl.sigmoid(tl.load(gate + head).to(tl.float32))
    for r in tl.static_range(R):
        v = first + r * W + tl.arange(0, W)
        tl.store(out + head * values + v, product(tiles, parts, r, W, BK) * opening, v < values)

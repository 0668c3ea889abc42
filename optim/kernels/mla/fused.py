"""mla_core of one token in four launches instead of a dozen.

mla_query   q_b with W_uk multiplied into it beforehand, and the norm of its input inside: the query in latent space;
            beside it the new key's norm, rotation and storing
mla_split   each program attends to some of the context; all but the last read it before their wait
mla_join    the splits merged
mla_values  times W_uv, times the head's gate

Where queries have no low rank, absorbing W_uk would triple their matrix: then mla_absorb multiplies it in at each step.
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
    """As in mla: q (1, q_lora), or (1, h (nope + rope)) without a low rank, kv (1, lora + rope), gate [(1, h)] or []
    -> (1, h v).

    Stores the key in latent (slots, lora + rope). w: kv_norm (lora), kv_b (h (nope + v), lora), and of a low rank
    q_norm (q_lora), q_absorbed as `absorbed` makes it. table (positions, rope) fp32.
    """
    q_latent, q_rope = query(q, kv, w, latent, table, meta, c)
    o = join(*split(q_latent, q_rope, latent, table, meta, c), meta)
    return values_of(o, gate, w, c)


def absorbed(w, c) -> torch.Tensor:
    """q_b with W_uk multiplied into it: (h lora, then h rope, q_lora)."""
    q_nope, q_rope = w.q_b.view(c.heads, c.nope + c.rope, -1).split([c.nope, c.rope], 1)
    w_uk, _ = mla.expansions(w, c)
    latent = torch.bmm(w_uk.float().transpose(1, 2), q_nope.float()).to(w.q_b.dtype)
    return torch.cat([latent.flatten(0, 1), q_rope.flatten(0, 1)])


def query(q, kv, w, latent, table, meta, c) -> tuple[torch.Tensor, torch.Tensor]:
    """q and kv as mla.projections make them -> q_latent (h, lora), q_rope (h, rope) not yet rotated; stores the key."""
    full = c.q_lora is None
    norm, matrix = (w.kv_norm, w.kv_b) if full else (w.q_norm, w.q_absorbed)  # n = 0 reads neither
    n, depth = (0, 1) if full else matrix.shape
    out = torch.empty(1, c.heads * (c.kv_lora + c.rope), dtype=q.dtype, device=q.device)
    chosen = tile("mla_query", (n, depth), tiles(n), matrix.dtype)
    launch(mla_query_kernel, (programs(n, chosen) + 1,))(
        *(q, kv, norm, matrix, out, w.kv_norm, latent, table),
        *(meta.position, meta.slot, n, c.eps, depth),
        LORA=c.kv_lora,
        HALF=c.rope // 2,
        ROTATED=c.rope_theta is not None,
        BK=1 if full else block(matrix),
        **shape(chosen),
    )
    if full:
        return absorb(q, w, c)
    q_latent, q_rope = out.view(-1).split([c.heads * c.kv_lora, c.heads * c.rope])
    return q_latent.view(c.heads, -1), q_rope.view(c.heads, -1)


def absorb(q, w, c) -> tuple[torch.Tensor, torch.Tensor]:
    """q (1, h (nope + rope)) -> q_latent (h, lora), q_rope (h, rope)."""
    q_latent = torch.empty(c.heads, c.kv_lora, dtype=q.dtype, device=q.device)
    chosen = tile("mla_absorb", (c.heads, c.nope, c.kv_lora), ABSORB, w.kv_b.dtype)
    columns = min(chosen["BL"], c.kv_lora)
    launch(mla_absorb_kernel, (c.heads, c.kv_lora // columns))(
        *(q, w.kv_b, q_latent, c.nope, c.nope + c.rope, c.nope + c.v_dim),
        NOPE=triton.next_power_of_2(c.nope),
        LORA=c.kv_lora,
        BL=columns,
        num_warps=chosen["num_warps"],
    )
    return q_latent, q.view(c.heads, -1)[:, c.nope :]


def split(q_latent, q_rope, latent, table, meta, c) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int]:
    """-> means (S, h, lora), tops and weights (S, h) fp32 of every split, and tokens a turn."""
    chosen = tile("mla_split", (c.heads, c.kv_lora), SPLIT, latent.dtype)
    parts = torch.empty(chosen["S"], c.heads, c.kv_lora, dtype=latent.dtype, device=latent.device)
    tops = torch.empty(chosen["S"], c.heads, dtype=torch.float32, device=latent.device)
    weights = torch.empty_like(tops)
    launch(mla_split_kernel, (chosen["S"], triton.cdiv(c.heads, HEADS)))(
        *(q_latent, q_rope, latent, table, meta.position, meta.slots, meta.length, parts, tops, weights),
        *(mla.scale(c), c.heads, q_rope.stride(0)),
        LORA=c.kv_lora,
        HALF=c.rope // 2,
        ROTATED=c.rope_theta is not None,
        BH=HEADS,
        **chosen,
    )
    return parts, tops, weights, chosen["BT"]


def join(parts, tops, weights, tokens: int, meta) -> torch.Tensor:
    """The splits, `tokens` of the context a turn -> (h, lora) fp32."""
    s, heads, lora = parts.shape
    out = torch.empty(heads, lora, dtype=torch.float32, device=parts.device)
    chosen = tile("mla_join", (heads, lora, s), JOIN, parts.dtype)
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
    chosen = tile("mla_values", (c.heads, c.v_dim, c.kv_lora), VALUES, w.kv_b.dtype)
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
    q, kv_b, q_latent, nope, q_stride, kv_stride,
    NOPE: tl.constexpr, LORA: tl.constexpr, BL: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    head, c, k = tl.program_id(0), tl.program_id(1) * BL + tl.arange(0, BL), tl.arange(0, NOPE)
    row = head.to(tl.int64) * kv_stride + k[:, None]
    w = tl.load(kv_b + row * LORA + c[None, :], (k < nope)[:, None], 0.0, eviction_policy="evict_first")
    chain(PDL)
    value = tl.load(q + head * q_stride + k, k < nope, 0.0).to(tl.float32)
    tl.store(q_latent + head * LORA + c, tl.sum(w.to(tl.float32) * value[:, None], 0))


@triton.jit
def share_of(split, length, S: tl.constexpr, BT: tl.constexpr):
    """The tokens of a split: first, end; whole turns of BT."""
    size = tl.cdiv(tl.cdiv(length, S), BT) * BT
    return split * size, tl.minimum(split * size + size, length)


@triton.jit
def keys_of(latent, slots, t, real, LORA: tl.constexpr, ROPE: tl.constexpr):
    """Latents and rotated keys of the `real` ones of tokens t, past the cache of this processor, which may be stale."""
    c, r = tl.arange(0, LORA), tl.arange(0, ROPE)
    at = latent + tl.load(slots + t, real, 0, cache_modifier=".cg").to(tl.int64)[:, None] * (LORA + ROPE)
    kc = tl.load(at + c[None, :], real[:, None], 0.0, cache_modifier=".cg")
    return kc, tl.load(at + LORA + r[None, :], real[:, None], 0.0, cache_modifier=".cg")


@triton.jit
def turned(q_rope, table, position, head, heads, stride, HALF: tl.constexpr, ROTATED: tl.constexpr):
    """The rotated part of the queries, (BH, 2 HALF), channels 2i and 2i + 1 turned by their angle."""
    plane = tl.arange(0, HALF)[None, :]
    at, inside = q_rope + head[:, None] * stride + 2 * plane, (head < heads)[:, None]
    even, odd = tl.load(at, inside, 0.0), tl.load(at + 1, inside, 0.0)
    if ROTATED:
        row = table + tl.load(position).to(tl.int64) * 2 * HALF
        cos, sin = tl.load(row + plane), tl.load(row + HALF + plane)
        x, y = even.to(tl.float32), odd.to(tl.float32)
        even, odd = (x * cos - y * sin).to(even.dtype), (x * sin + y * cos).to(odd.dtype)
    return tl.reshape(tl.join(even, odd), (head.shape[0], 2 * HALF))


@triton.jit
def mla_split_kernel(
    q_latent, q_rope, latent, table, position, slots, length, parts, tops, weights, scale, heads, stride,
    LORA: tl.constexpr, HALF: tl.constexpr, ROTATED: tl.constexpr, BH: tl.constexpr, S: tl.constexpr, BT: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """The newest latent may come from the kernel just before: the program that has it reads after the wait."""
    split, c = tl.program_id(0), tl.arange(0, LORA)
    head = tl.program_id(1) * BH + tl.arange(0, BH)
    tokens = tl.load(length, cache_modifier=".cg")
    begin, end = share_of(split, tokens, S, BT)
    t = begin + tl.arange(0, BT)
    kc, kr = keys_of(latent, slots, t, t < tl.where(end < tokens, end, begin), LORA, 2 * HALF)
    chain(PDL)
    if begin >= end:
        return
    in_head = head < heads
    qc = tl.load(q_latent + head[:, None] * LORA + c[None, :], in_head[:, None], 0.0)
    qr = turned(q_rope, table, position, head, heads, stride, HALF, ROTATED)
    top, total = tl.full((BH,), float("-inf"), tl.float32), tl.zeros((BH,), tl.float32)
    acc = tl.zeros((BH, LORA), tl.float32)
    for first in range(begin, end, BT):
        t = first + tl.arange(0, BT)
        if (first > begin) | (end == tokens):
            kc, kr = keys_of(latent, slots, t, t < end, LORA, 2 * HALF)
        s = tl.dot(qc, tl.trans(kc), input_precision="ieee") + tl.dot(qr, tl.trans(kr), input_precision="ieee")
        s = tl.where((t < end)[None, :], s * scale, float("-inf"))
        higher = tl.maximum(top, tl.max(s, 1))
        shrink, p = tl.exp(top - higher), tl.exp(s - higher[:, None])
        total = total * shrink + tl.sum(p, 1)
        acc = acc * shrink[:, None] + tl.dot(p.to(kc.dtype), kc, input_precision="ieee")
        top = higher
    row = split * heads + head
    tl.store(parts + row[:, None] * LORA + c[None, :], acc / total[:, None], in_head[:, None])
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
    found = tl.load(parts + row[:, None] * lora + c[None, :], used[:, None], 0.0).to(tl.float32)
    share = tl.exp(peaks - tl.max(peaks, 0)) * tl.load(weights + row, used, 0.0)
    tl.store(out + head * lora + c, tl.sum(found * share[:, None], 0) / tl.sum(share, 0))


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

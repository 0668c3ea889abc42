"""MLA decode: the context is cut into splits, each attended to apart with a running softmax, then merged."""

import torch
import triton
import triton.language as tl

from optim.kernels.launch import chain, launch
from optim.kernels.mla.naive import MAX_SPLITS

__all__ = ["head_gate", "mla_decode", "mla_store"]

HEADS = 16  # a program: the rows of one matrix product
TOKENS = 32
MERGED = 64  # channels a program of the merge


def mla_store(latent: torch.Tensor, k_rope: torch.Tensor, cache: torch.Tensor, slot: torch.Tensor) -> None:
    lora, rope = latent.shape[1], k_rope.shape[1]
    block = triton.next_power_of_2(lora + rope)
    launch(mla_store_kernel, (len(latent),))(
        latent, k_rope, cache, slot, k_rope.stride(0), lora, rope, BLOCK=block, num_warps=2
    )


def mla_decode(
    q_latent: torch.Tensor,
    q_rope: torch.Tensor,
    cache: torch.Tensor,
    slots: torch.Tensor,
    length: torch.Tensor,
    splits: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """As the naive one; lora and rope are powers of two, 16 or more."""
    heads, lora = q_latent.shape
    rope = q_rope.shape[1]
    part = torch.empty(MAX_SPLITS, heads, lora, dtype=torch.float32, device=cache.device)
    top = torch.empty(MAX_SPLITS, heads, dtype=torch.float32, device=cache.device)
    weight = torch.empty_like(top)
    grid = (MAX_SPLITS, triton.cdiv(heads, HEADS))
    strides = (q_latent.stride(0), q_rope.stride(0))
    sizes = {"LORA": lora, "ROPE": rope, "BH": HEADS, "BT": TOKENS, "num_warps": 4, "num_stages": 2}
    launch(mla_attend_kernel, grid)(
        q_latent, q_rope, cache, slots, length, splits, part, top, weight, scale, heads, *strides, **sizes
    )
    out = torch.empty(heads, lora, dtype=q_latent.dtype, device=cache.device)
    block = min(lora, MERGED)
    launch(mla_merge_kernel, (heads, lora // block))(
        part, top, weight, splits, out, heads, lora, BLOCK=block, S=MAX_SPLITS
    )
    return out


def head_gate(o: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    tokens, heads, d = o.shape
    out = torch.empty(tokens, heads, d, dtype=o.dtype, device=o.device)
    block = triton.next_power_of_2(d)
    launch(mla_head_gate_kernel, (tokens, heads))(o, gate, out, *o.stride(), heads, d, BLOCK=block, num_warps=1)
    return out


@triton.jit
def mla_store_kernel(latent, k_rope, cache, slot, stride, lora, rope, BLOCK: tl.constexpr, PDL: tl.constexpr):
    chain(PDL)
    token = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, BLOCK)
    front = tl.load(latent + token * lora + col, col < lora, 0.0)
    back = tl.load(k_rope + token * stride + col - lora, (col >= lora) & (col < lora + rope), 0.0)
    value = tl.where(col < lora, front, back)
    row = tl.load(slot + token).to(tl.int64) * (lora + rope)
    tl.store(cache + row + col, value, col < lora + rope)


@triton.jit
def mla_attend_kernel(
    q_latent, q_rope, cache, slots, length, splits, part, top, weight, scale, heads, latent_stride, rope_stride,
    LORA: tl.constexpr, ROPE: tl.constexpr, BH: tl.constexpr, BT: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    chain(PDL)
    split = tl.program_id(0)
    count = tl.load(splits)
    if split >= count:
        return
    tokens = tl.load(length)
    size = tl.cdiv(tl.cdiv(tokens, count), BT) * BT
    head = tl.program_id(1) * BH + tl.arange(0, BH)
    in_head = head < heads
    c, r = tl.arange(0, LORA), tl.arange(0, ROPE)
    qc = tl.load(q_latent + head[:, None] * latent_stride + c[None, :], in_head[:, None], 0.0)
    qr = tl.load(q_rope + head[:, None] * rope_stride + r[None, :], in_head[:, None], 0.0)
    highest = tl.full((BH,), float("-inf"), tl.float32)
    total = tl.zeros((BH,), tl.float32)
    acc = tl.zeros((BH, LORA), tl.float32)
    for first in range(split * size, min(split * size + size, tokens), BT):
        t = first + tl.arange(0, BT)
        real = t < tokens
        at = tl.load(slots + t, real, 0).to(tl.int64)[:, None] * (LORA + ROPE)
        kc = tl.load(cache + at + c[None, :], real[:, None], 0.0)
        kr = tl.load(cache + at + LORA + r[None, :], real[:, None], 0.0)
        s = tl.dot(qc, tl.trans(kc), input_precision="ieee") + tl.dot(qr, tl.trans(kr), input_precision="ieee")
        s = tl.where(real[None, :], s * scale, float("-inf"))
        higher = tl.maximum(highest, tl.max(s, 1))
        shrink, p = tl.exp(highest - higher), tl.exp(s - higher[:, None])
        total = total * shrink + tl.sum(p, 1)
        acc = acc * shrink[:, None] + tl.dot(p.to(kc.dtype), kc, input_precision="ieee")
        highest = higher
    row = split * heads + head
    tl.store(part + row[:, None] * LORA + c[None, :], acc, in_head[:, None])
    tl.store(top + row, highest, in_head)
    tl.store(weight + row, total, in_head)


@triton.jit
def mla_merge_kernel(
    part, top, weight, splits, out, heads, lora, BLOCK: tl.constexpr, S: tl.constexpr, PDL: tl.constexpr
):
    """Splits behind the end of the context have weight 0 and a top of -inf."""
    chain(PDL)
    head, c = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row = tl.arange(0, S) * heads + head
    used = tl.arange(0, S) < tl.load(splits)
    peak = tl.load(top + row, used, float("-inf"))
    share = tl.exp(peak - tl.max(peak, 0))
    total = tl.sum(share * tl.load(weight + row, used, 0.0), 0)
    parts = tl.load(part + row[:, None] * lora + c[None, :], used[:, None], 0.0)
    tl.store(out + head * lora + c, tl.sum(parts * share[:, None], 0) / total)


@triton.jit
def mla_head_gate_kernel(
    o, gate, out, token_stride, head_stride, stride, heads, d, BLOCK: tl.constexpr, PDL: tl.constexpr
):
    chain(PDL)
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    col = tl.arange(0, BLOCK)
    value = tl.load(o + token * token_stride + head * head_stride + col * stride, col < d, 0.0).to(tl.float32)
    scale = tl.sigmoid(tl.load(gate + token * heads + head).to(tl.float32))
    tl.store(out + (token * heads + head) * d + col, value * scale, col < d)

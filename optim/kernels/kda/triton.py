"""Kimi Delta Attention in Triton: one step per token for decode, chunks of 16 tokens for prefill.

In a chunk exp(G_i - G_j) is split into exp(G_i) exp(-G_j), so that products of matrices remain. The second factor stays
inside fp32 while no log decay is below LEAST_DECAY; Ling-3.0 bounds them at -5.
"""

import torch
import triton
import triton.language as tl

from optim.kernels.kda.naive import CHUNK, L2_EPS
from optim.kernels.launch import chain, launch

__all__ = ["kda_chunk", "kda_gate", "kda_step"]

STEP_VALUES = 32  # value channels a program; their keys are all there
CHUNK_VALUES = 32


def kda_gate(
    f: torch.Tensor, b: torch.Tensor, a_log: torch.Tensor, dt_bias: torch.Tensor, bound: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    tokens, heads = b.shape
    d = f.shape[1] // heads
    g = f.new_empty(tokens, heads, d, dtype=torch.float32)
    beta = f.new_empty(tokens, heads, dtype=torch.float32)
    block = triton.next_power_of_2(d)
    limit = 0.0 if bound is None else bound
    grid = (tokens, heads)
    launch(kda_gate_kernel, grid)(
        f, b, a_log, dt_bias, g, beta, limit, heads, d, BOUNDED=bound is not None, BLOCK=block, num_warps=1
    )
    return g, beta


def kda_step(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    index: torch.Tensor,
) -> torch.Tensor:
    heads, dv, dk = state.shape[1:]
    out = torch.empty(1, heads, dv, dtype=v.dtype, device=v.device)
    grid = (heads, triton.cdiv(dv, STEP_VALUES))
    sizes = {"DK": dk, "BK": triton.next_power_of_2(dk), "BV": STEP_VALUES}
    launch(kda_step_kernel, grid)(
        q, k, v, g, beta, state, index, out, heads, dv, dk**-0.5, EPS=L2_EPS, **sizes, num_warps=4
    )
    return out


def kda_chunk(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    index: torch.Tensor,
) -> torch.Tensor:
    """As the naive one, for log decays of LEAST_DECAY or more; d_k and d_v are one power of two, 16 or more.

    q, k and v may be slices of one tensor: their tokens lie q.stride(0) apart.
    """
    tokens, heads, dk = q.shape
    dv = v.shape[2]
    chunks = triton.cdiv(tokens, CHUNK)
    rows = {"q_in": dk, "k_in": dk, "k_out": dk, "u": dv, "p": CHUNK}  # numbers a token
    inside = [torch.empty(heads, chunks, CHUNK, n, dtype=torch.float32, device=q.device) for n in rows.values()]
    inside.append(torch.empty(heads, chunks, dk, dtype=torch.float32, device=q.device))  # decay
    sizes = {"C": CHUNK, "DK": dk, "DV": dv}
    kda_chunk_within_kernel[(chunks, heads)](
        q, k, v, g, beta, *inside, q.stride(0), tokens, heads, chunks, dk**-0.5, EPS=L2_EPS, **sizes
    )
    out = torch.empty(tokens, heads, dv, dtype=v.dtype, device=v.device)
    block = min(dv, CHUNK_VALUES)
    kda_chunk_across_kernel[(heads, dv // block)](
        *inside, state, index, out, tokens, heads, chunks, **sizes, BV=block, num_warps=4
    )
    return out


@triton.jit
def kda_gate_kernel(
    f, b, a_log, dt_bias, g, beta, bound, heads, d, BOUNDED: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr
):
    chain(PDL)
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    col = tl.arange(0, BLOCK)
    inside = col < d
    at = (token * heads + head) * d + col
    x = tl.load(f + at, inside, 0.0).to(tl.float32) + tl.load(dt_bias + head * d + col, inside, 0.0)
    rate = tl.exp(tl.load(a_log + head))
    if BOUNDED:
        value = bound * tl.sigmoid(rate * x)
    else:
        value = -rate * tl.where(x > 20.0, x, tl.log(1.0 + tl.exp(x)))
    tl.store(g + at, value, inside)
    step = tl.sigmoid(tl.load(b + token * heads + head).to(tl.float32))
    tl.store(beta + token * heads + head, step)


@triton.jit
def unit(x, EPS: tl.constexpr):
    """x over its length, summed in fp64: then no order of the sum, which a compiler chooses, shows in fp32."""
    return x / tl.sqrt(tl.sum((x * x).to(tl.float64)).to(tl.float32) + EPS)


@triton.jit
def updated(s, u, k):
    """s + u k^T, the product unrounded."""
    return tl.fma(tl.broadcast_to(u[:, None], s.shape), tl.broadcast_to(k[None, :], s.shape), s)


@triton.jit
def kda_step_kernel(
    q, k, v, g, beta, state, index, out, heads, dv, scale,
    EPS: tl.constexpr, DK: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    chain(PDL)
    head = tl.program_id(0)
    value = tl.program_id(1) * BV + tl.arange(0, BV)
    key = tl.arange(0, BK)
    in_v, in_k = value < dv, key < DK
    row = state + (tl.load(index).to(tl.int64) * heads + head) * dv * DK
    at = row + value[:, None] * DK + key[None, :]
    inside = in_v[:, None] & in_k[None, :]
    s = tl.load(at, inside, 0.0)
    qh = tl.load(q + head * DK + key, in_k, 0.0).to(tl.float32)
    kh = tl.load(k + head * DK + key, in_k, 0.0).to(tl.float32)
    vh = tl.load(v + head * dv + value, in_v, 0.0).to(tl.float32)
    qh = unit(qh, EPS) * scale
    kh = unit(kh, EPS)
    s *= tl.exp(tl.load(g + head * DK + key, in_k, 0.0))[None, :]
    u = tl.load(beta + head) * (vh - tl.sum(s * kh[None, :], 1))
    s = updated(s, u, kh)
    tl.store(at, s, inside)
    tl.store(out + head * dv + value, tl.sum(s * qh[None, :], 1), in_v)


@triton.jit
def unit_lower_inverse(lower, C: tl.constexpr):
    """(1 + lower)^-1 of a strictly lower triangular (C, C): forward substitution, row by row."""
    i = tl.arange(0, C)
    inverse = tl.where(i[:, None] == i[None, :], 1.0, 0.0)
    for row in range(1, C):
        coefficient = tl.sum(tl.where(i[:, None] == row, lower, 0.0), 0)
        solved = -tl.sum(coefficient[:, None] * inverse, 0)
        inverse += tl.where((i[:, None] == row) & (i[None, :] < row), solved[None, :], 0.0)
    return inverse


@triton.jit
def kda_chunk_within_kernel(
    q, k, v, g, beta, q_in, k_in, k_out, u, p, decay, stride, tokens, heads, chunks, scale,
    EPS: tl.constexpr, C: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr,
):  # fmt: skip
    """What a chunk needs besides the state: T beta V, T beta K exp(G), causal scores, decayed queries and keys."""
    chunk, head = tl.program_id(0), tl.program_id(1)
    i, key, value = tl.arange(0, C), tl.arange(0, DK), tl.arange(0, DV)
    token = chunk * C + i
    real = token < tokens
    at = token.to(tl.int64)[:, None] * stride + head * DK
    qc = tl.load(q + at + key[None, :], real[:, None], 0.0).to(tl.float32)
    kc = tl.load(k + at + key[None, :], real[:, None], 0.0).to(tl.float32)
    vc = tl.load(v + at + value[None, :], real[:, None], 0.0).to(tl.float32)
    gc = tl.load(g + (token.to(tl.int64) * heads + head)[:, None] * DK + key[None, :], real[:, None], 0.0)
    bc = tl.load(beta + token.to(tl.int64) * heads + head, real, 0.0)
    qc = qc / tl.sqrt(tl.sum(qc * qc, 1) + EPS)[:, None] * scale
    kc = kc / tl.sqrt(tl.sum(kc * kc, 1) + EPS)[:, None]
    total = tl.cumsum(gc, 0)
    last = tl.sum(gc, 0)
    grown, shrunk = tl.exp(-total), tl.exp(total)
    k_grown = tl.trans(kc * grown)
    system = tl.dot(kc * shrunk * bc[:, None], k_grown, input_precision="ieee")
    system = tl.where(i[:, None] > i[None, :], system, 0.0)
    inverse = unit_lower_inverse(system, C)
    scores = tl.dot(qc * shrunk, k_grown, input_precision="ieee")
    base = (head * chunks + chunk).to(tl.int64)
    own = (base * C + i)[:, None]
    tl.store(p + own * C + i[None, :], tl.where(i[:, None] >= i[None, :], scores, 0.0))
    tl.store(u + own * DV + value[None, :], tl.dot(inverse, vc * bc[:, None], input_precision="ieee"))
    tl.store(k_in + own * DK + key[None, :], tl.dot(inverse, kc * shrunk * bc[:, None], input_precision="ieee"))
    tl.store(q_in + own * DK + key[None, :], qc * shrunk)
    tl.store(k_out + own * DK + key[None, :], kc * tl.exp(last[None, :] - total))
    tl.store(decay + base * DK + key, tl.exp(last))


@triton.jit
def kda_chunk_across_kernel(
    q_in, k_in, k_out, u, p, decay, state, index, out, tokens, heads, chunks,
    C: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """Carries the state over the chunks of one head, for a block of its value channels."""
    head = tl.program_id(0)
    i, key, value = tl.arange(0, C), tl.arange(0, DK), tl.program_id(1) * BV + tl.arange(0, BV)
    row = state + (tl.load(index).to(tl.int64) * heads + head) * DV * DK
    at = row + value[None, :] * DK + key[:, None]
    s = tl.load(at)  # (DK, BV)
    for chunk in range(chunks):
        base = (head * chunks + chunk).to(tl.int64)
        own = (base * C + i)[:, None]
        uc = tl.load(u + own * DV + value[None, :])
        uc -= tl.dot(tl.load(k_in + own * DK + key[None, :]), s, input_precision="tf32x3")
        o = tl.dot(tl.load(q_in + own * DK + key[None, :]), s, input_precision="tf32x3")
        o += tl.dot(tl.load(p + own * C + i[None, :]), uc, input_precision="tf32x3")
        token = chunk * C + i
        to = out + (token.to(tl.int64) * heads + head)[:, None] * DV + value[None, :]
        tl.store(to, o, (token < tokens)[:, None])
        update = tl.dot(tl.trans(tl.load(k_out + own * DK + key[None, :])), uc, input_precision="tf32x3")
        s = s * tl.load(decay + base * DK + key)[:, None] + update
    tl.store(at, s)

"""The routed experts in Triton: a counting sort in two launches, then a grouped matrix product per projection."""

import torch
import triton
import triton.language as tl

from optim.kernels.launch import chain, launch
from optim.kernels.moe.naive import block_rows, padded_rows

__all__ = ["combine", "grouped_gemm", "moe_align", "swiglu"]

COUNTED = 1024  # pairs a turn of the counting loop
TILES = {16: (32, 256, 4, 4), 64: (128, 64, 4, 4), 128: (128, 64, 8, 3)}  # block: columns, depth, warps, stages


def moe_align(experts: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    n = experts.numel()
    block = block_rows(n, count)
    most = padded_rows(n, count, block)
    pairs, of_block, used, starts = (
        torch.empty(size, dtype=torch.int32, device=experts.device) for size in (most, most // block, 1, count)
    )
    e = triton.next_power_of_2(count)
    launch(moe_align_count_kernel, (1,))(
        experts, starts, pairs, of_block, used, n, most, count, BLOCK=block, E=e, N=COUNTED, num_warps=8
    )
    launch(moe_align_scatter_kernel, (count,))(experts, starts, pairs, n, N=COUNTED, num_warps=4)
    return pairs, of_block, used


def grouped_gemm(
    x: torch.Tensor,
    weight: torch.Tensor,
    pairs: torch.Tensor,
    of_block: torch.Tensor,
    used: torch.Tensor,
    share: int,
) -> torch.Tensor:
    """As the naive one; the block size is 16, 64 or 128."""
    n, depth = weight.shape[1:]
    out = torch.empty(len(x) * share, n, dtype=x.dtype, device=x.device)
    block = len(pairs) // len(of_block)
    columns, bk, warps, stages = TILES[block]
    grid = (len(of_block) * triton.cdiv(n, columns),)
    tile = {"SHARE": share, "BM": block, "BN": columns, "BK": bk, "num_warps": warps, "num_stages": stages}
    launch(fused_moe_gemm_kernel, grid)(x, weight, pairs, of_block, used, out, len(out), n, depth, **tile)
    return out


def swiglu(x: torch.Tensor, limit: float | None) -> torch.Tensor:
    rows, half = len(x), x.shape[1] // 2
    out = torch.empty(rows, half, dtype=x.dtype, device=x.device)
    grid = (rows, triton.cdiv(half, 512))
    launch(swiglu_kernel, grid)(x, out, half, limit or 0.0, LIMITED=limit is not None, BLOCK=512, num_warps=2)
    return out


def combine(y: torch.Tensor, weights: torch.Tensor, shared: torch.Tensor) -> torch.Tensor:
    tokens, k = weights.shape
    out = torch.empty_like(shared)
    grid = (tokens, triton.cdiv(shared.shape[1], 512))
    launch(moe_combine_kernel, grid)(y, weights, shared, out, shared.shape[1], K=k, BLOCK=512, num_warps=2)
    return out


@triton.jit
def moe_align_count_kernel(
    experts,
    starts,
    pairs,
    of_block,
    used,
    n,
    most,
    count,
    BLOCK: tl.constexpr,
    E: tl.constexpr,
    N: tl.constexpr,
    PDL: tl.constexpr,
):
    """Padded first row of every expert, the expert of every block, and padding everywhere."""
    chain(PDL)
    e, i = tl.arange(0, E), tl.arange(0, N)
    sizes = tl.zeros((E,), tl.int32)
    for first in range(0, n, N):
        at = first + i
        sizes += tl.histogram(tl.load(experts + at, at < n, 0), E, mask=at < n)
    padded = (sizes + BLOCK - 1) // BLOCK * BLOCK
    ends = tl.cumsum(padded, 0)
    tl.store(starts + e, ends - padded, e < count)
    tl.store(used, tl.sum(padded))
    for first in range(0, most, N):
        tl.store(pairs + first + i, tl.zeros((N,), tl.int32) + n, first + i < most)
    for block in range(most // BLOCK):
        expert = tl.sum((ends <= block * BLOCK).to(tl.int32))
        tl.store(of_block + block, tl.minimum(expert, count - 1))


@triton.jit
def moe_align_scatter_kernel(experts, starts, pairs, n, N: tl.constexpr, PDL: tl.constexpr):
    """The pairs of one expert, in order, to their rows."""
    chain(PDL)
    expert = tl.program_id(0)
    row = tl.load(starts + expert)
    for first in range(0, n, N):
        at = first + tl.arange(0, N)
        mine = (tl.load(experts + at, at < n, -1) == expert).to(tl.int32)
        tl.store(pairs + row + tl.cumsum(mine, 0) - 1, at, mine == 1)
        row += tl.sum(mine)


@triton.jit
def fused_moe_gemm_kernel(
    x, weight, pairs, of_block, used, out, rows, n, depth,
    SHARE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    chain(PDL)
    columns = tl.cdiv(n, BN)
    block, column = tl.program_id(0) // columns, tl.program_id(0) % columns
    if block * BM >= tl.load(used):
        return
    pair = tl.load(pairs + block * BM + tl.arange(0, BM)).to(tl.int64)
    real = pair < rows
    col = column * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    left = x + (pair // SHARE)[:, None] * depth + k[None, :]
    right = weight + tl.load(of_block + block).to(tl.int64) * n * depth + col[None, :].to(tl.int64) * depth + k[:, None]
    acc = tl.zeros((BM, BN), tl.float32)
    for first in range(0, depth, BK):
        within = first + k < depth
        a = tl.load(left + first, real[:, None] & within[None, :], 0.0)
        b = tl.load(right + first, (col < n)[None, :] & within[:, None], 0.0)
        acc += tl.dot(a, b, input_precision="ieee")
    tl.store(out + pair[:, None] * n + col[None, :], acc, real[:, None] & (col < n)[None, :])


@triton.jit
def activated(gate, up, limit, LIMITED: tl.constexpr):
    """As naive.swiglu, of fp32 values."""
    gate = gate * tl.sigmoid(gate)
    if LIMITED:
        gate = tl.minimum(gate, limit)
        up = tl.minimum(tl.maximum(up, -limit), limit)
    return gate * up


@triton.jit
def swiglu_kernel(x, out, half, limit, LIMITED: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    chain(PDL)
    row = tl.program_id(0).to(tl.int64)
    col = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = col < half
    gate = tl.load(x + row * 2 * half + col, inside, 0.0).to(tl.float32)
    up = tl.load(x + row * 2 * half + half + col, inside, 0.0).to(tl.float32)
    tl.store(out + row * half + col, activated(gate, up, limit, LIMITED), inside)


@triton.jit
def moe_combine_kernel(y, weights, shared, out, width, K: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    chain(PDL)
    token = tl.program_id(0).to(tl.int64)
    col = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = col < width
    total = tl.zeros((BLOCK,), tl.float32)
    for i in tl.static_range(K):
        row = tl.load(y + (token * K + i) * width + col, inside, 0.0).to(tl.float32)
        total += row * tl.load(weights + token * K + i)
    total += tl.load(shared + token * width + col, inside, 0.0).to(tl.float32)
    tl.store(out + token * width + col, total, inside)

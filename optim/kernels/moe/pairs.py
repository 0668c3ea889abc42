"""moe_align for few pairs: they are compared with each other in registers, in one launch."""

import torch
import triton
import triton.language as tl

from optim.kernels.launch import chain, launch
from optim.kernels.moe import triton as general
from optim.kernels.moe.naive import block_rows, padded_rows

__all__ = ["moe_align"]

MOST = 64  # pairs: the comparison is of each with each


def moe_align(experts: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As naive: experts (T, k) of `count` -> pairs (P), expert of each block (P / block), used rows (1); all int32."""
    n = experts.numel()
    if n > MOST:
        return general.moe_align(experts, count)
    block = block_rows(n, count)
    most = padded_rows(n, count, block)
    pairs, of_block, used = (
        torch.empty(size, dtype=torch.int32, device=experts.device) for size in (most, most // block, 1)
    )
    sizes = {"N": triton.next_power_of_2(n), "P": triton.next_power_of_2(most), "BLOCK": block}
    sizes["B"] = triton.next_power_of_2(most // block)
    launch(moe_align_pairs_kernel, (1,))(experts, pairs, of_block, used, n, most, count, **sizes, num_warps=4)
    return pairs, of_block, used


@triton.jit
def moe_align_pairs_kernel(
    experts, pairs, of_block, used, n, most, count,
    N: tl.constexpr, P: tl.constexpr, B: tl.constexpr, BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Each pair finds its rank among those of its expert, and the rows that smaller experts take."""
    chain(PDL)
    i = tl.arange(0, N)
    own = tl.load(experts + i, i < n, count)
    other = tl.load(experts + i, i < n, count)
    real = i < n
    same = (own[:, None] == other[None, :]) & real[None, :]
    rank = tl.sum((same & (i[None, :] < i[:, None])).to(tl.int32), 1)
    size = tl.sum(same.to(tl.int32), 1)
    blocks = tl.where((rank == 0) & real, (size + BLOCK - 1) // BLOCK, 0)  # counted once an expert
    before = tl.sum(tl.where(other[None, :] < own[:, None], blocks[None, :], 0), 1)
    row = tl.arange(0, P)
    mine = (before * BLOCK + rank)[None, :] == row[:, None]
    pair = tl.sum(tl.where(mine & real[None, :], i[None, :] + 1, 0), 1)
    tl.store(pairs + row, tl.where(pair > 0, pair - 1, n), row < most)
    block = tl.arange(0, B)
    holds = (before[None, :] <= block[:, None]) & (block[:, None] < (before + blocks)[None, :])
    expert = tl.sum(tl.where(holds, own[None, :], 0), 1)
    tl.store(of_block + block, expert, block < most // BLOCK)
    tl.store(used, tl.sum(blocks) * BLOCK)

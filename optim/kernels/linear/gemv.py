"""linear for one token: a program takes a few rows of the matrix, and its warps split their columns (split-K).

So even small matrices fill the device, and a program's first loads, which depend on no other kernel, begin before its
wait: chained by PDL they overlap the kernel before.
"""

import torch
import triton
import triton.language as tl

from optim.kernels.launch import chain, launch
from optim.kernels.linear import naive
from optim.kernels.tiles import Tile, tile

__all__ = ["linear"]

DEPTH = 512  # columns a load


def linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    if len(x) > 1:
        return naive.linear(x, weight)
    n, depth = weight.shape
    out = torch.empty(1, n, dtype=x.dtype, device=x.device)
    chosen = tile("gemv", (n, depth), tiles(n))
    launch(gemv_kernel, (triton.cdiv(n, chosen["BN"]),))(x, weight, out, n, depth, BK=block(depth), **chosen)
    return out


def tiles(n: int) -> list[Tile]:
    """Rows a program and warps; the first for a matrix of n rows where nothing better is known."""
    first = {"BN": 1 if n <= 256 else 4 if n <= 4096 else 8, "num_warps": 4}
    return [first, *({"BN": rows, "num_warps": warps} for rows in (1, 2, 4, 8, 16) for warps in (2, 4, 8))]


def block(depth: int) -> int:
    return min(DEPTH, triton.next_power_of_2(depth))


@triton.jit
def rows_of(matrix, row, n, depth: tl.constexpr, BK: tl.constexpr):
    """Rows of a matrix as a tuple of (rows, BK) tiles."""
    k = tl.arange(0, BK)
    at = matrix + row[:, None].to(tl.int64) * depth + k[None, :]
    tiles = ()
    for first in tl.static_range(0, depth, BK):
        inside = (row < n)[:, None] & (first + k < depth)[None, :]
        tiles += (tl.load(at + first, inside, 0.0, eviction_policy="evict_first"),)
    return tiles


@triton.jit
def gemv_kernel(x, weight, out, n, depth: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PDL: tl.constexpr):
    row = tl.program_id(0) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    tiles = rows_of(weight, row, n, depth, BK)
    chain(PDL)
    products = tl.zeros((BN, BK), tl.float32)
    for i in tl.static_range(len(tiles)):
        value = tl.load(x + i * BK + k, i * BK + k < depth, 0.0).to(tl.float32)
        products += tiles[i].to(tl.float32) * value[None, :]
    tl.store(out + row, tl.sum(products, 1), row < n)

"""linear for one token: each warp takes rows of the matrix whole; the few rows of a small one are split among warps.

A tile is (W, BK), a row a warp: 16 bytes a lane side by side. Vectors are read in the same shape, every warp its own
copy; so no number crosses from warp to warp, and no warp waits for another. A program's loads of weights depend on no
other kernel and begin before its wait: chained by PDL they overlap the kernel before.
"""

import torch
import triton
import triton.language as tl

from optim.kernels.launch import chain, launch
from optim.kernels.linear import naive
from optim.kernels.tiles import Tile, tile

__all__ = ["linear"]

WARP_BYTES = 512  # one load of all lanes
SMALL = 512  # rows, of which most processors would see none
SPLITS = [{"num_warps": warps} for warps in (4, 2, 8)]  # parts of a row


def linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """As naive: x (T, K), weight (N, K) -> (T, N); the kernels for T = 1."""
    if len(x) > 1:
        return naive.linear(x, weight)
    n, depth = weight.shape
    out = torch.empty(1, n, dtype=x.dtype, device=x.device)
    if n <= SMALL:
        chosen = tile("gemv_split", (n, depth), SPLITS, weight.dtype)
        launch(gemv_split_kernel, (n,))(x, weight, out, depth, W=chosen["num_warps"], BK=block(weight), **chosen)
        return out
    chosen = tile("gemv", (n, depth), tiles(n), weight.dtype)
    launch(gemv_kernel, (programs(n, chosen),))(x, weight, out, n, depth, BK=block(weight), **shape(chosen))
    return out


def tiles(n: int) -> list[Tile]:
    """Rows a warp (R) and warps; the first for a matrix of n rows where nothing better is known."""
    some = [(1, 4), (2, 4), (1, 8), (2, 8), (1, 2), (2, 2), (4, 4), (4, 2), (1, 1)]
    some = some if n <= 4096 else [(2, 4), *some]
    tight = [{"R": 2, "num_warps": 4, "maxnreg": 128}, {"R": 2, "num_warps": 2, "maxnreg": 128}]
    return [*({"R": rows, "num_warps": warps} for rows, warps in some), *tight]


def programs(n: int, chosen: Tile) -> int:
    return triton.cdiv(n, chosen["R"] * chosen["num_warps"])


def shape(chosen: Tile) -> Tile:
    """A tile as arguments of a kernel: W is the number of warps."""
    return {"W": chosen["num_warps"], **chosen}


def block(matrix: torch.Tensor) -> int:
    """Columns that a warp loads at once."""
    return min(WARP_BYTES // matrix.itemsize, triton.next_power_of_2(matrix.shape[-1]))


@triton.jit
def rows_of(matrix, first, n, depth: tl.constexpr, W: tl.constexpr, R: tl.constexpr, BK: tl.constexpr):
    """R times W rows from `first` on, as a tuple of (W, BK) tiles, W rows after W rows."""
    tiles = ()
    for r in tl.static_range(R):
        row = first + r * W + tl.arange(0, W)[:, None]
        for begin in tl.static_range(0, depth, BK):
            k = begin + tl.arange(0, BK)[None, :]
            at = matrix + row.to(tl.int64) * depth + k
            tiles += (tl.load(at, (row < n) & (k < depth), 0.0, eviction_policy="evict_first"),)
    return tiles


@triton.jit
def vector_of(x, depth: tl.constexpr, W: tl.constexpr, BK: tl.constexpr):
    """A vector as a tuple of (W, BK) parts, the same in every row."""
    parts = ()
    for begin in tl.static_range(0, depth, BK):
        k = begin + tl.arange(0, BK)[None, :] + tl.arange(0, W)[:, None] * 0
        parts += (tl.load(x + k, k < depth, 0.0),)
    return parts


@triton.jit
def product(tiles, values, r: tl.constexpr, W: tl.constexpr, BK: tl.constexpr):
    """The r-th W rows of tiles times the vector: (W,) fp32."""
    total = tl.zeros((W, BK), tl.float32)
    for i in tl.static_range(len(values)):
        total += tiles[r * len(values) + i].to(tl.float32) * values[i].to(tl.float32)
    return tl.sum(total, 1)


@triton.jit
def gemv_kernel(
    x, weight, out, n,
    depth: tl.constexpr, W: tl.constexpr, R: tl.constexpr, BK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0) * W * R
    tiles = rows_of(weight, first, n, depth, W, R, BK)
    chain(PDL)
    values = vector_of(x, depth, W, BK)
    for r in tl.static_range(R):
        row = first + r * W + tl.arange(0, W)
        tl.store(out + row, product(tiles, values, r, W, BK), row < n)


@triton.jit
def gemv_split_kernel(x, weight, out, depth: tl.constexpr, W: tl.constexpr, BK: tl.constexpr, PDL: tl.constexpr):
    """A program is a row, whose columns its warps take in turn (split-K)."""
    row = tl.program_id(0)
    k, tiles = tl.arange(0, W)[:, None] * BK + tl.arange(0, BK)[None, :], ()
    for begin in tl.static_range(0, depth, W * BK):
        at = weight + row * depth + begin + k
        tiles += (tl.load(at, begin + k < depth, 0.0, eviction_policy="evict_first"),)
    chain(PDL)
    products = tl.zeros((W, BK), tl.float32)
    for i in tl.static_range(len(tiles)):
        value = tl.load(x + i * W * BK + k, i * W * BK + k < depth, 0.0)
        products += tiles[i].to(tl.float32) * value.to(tl.float32)
    tl.store(out + row, tl.sum(products))

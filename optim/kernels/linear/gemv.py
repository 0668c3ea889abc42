"""linear for one token: a program takes a few rows of the matrix whole, so that even small matrices fill the device."""

import torch
import triton
import triton.language as tl

from optim.kernels.launch import chain, launch
from optim.kernels.linear import naive

__all__ = ["linear"]

DEPTH = 512  # columns a turn
ROWS = ((256, 1), (4096, 4), (65536, 8))  # matrices of up to so many rows: rows a program
MOST = 16


def linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    if len(x) > 1:
        return naive.linear(x, weight)
    n, depth = weight.shape
    out = torch.empty(1, n, dtype=x.dtype, device=x.device)
    rows = next((rows for limit, rows in ROWS if n <= limit), MOST)
    block = min(DEPTH, triton.next_power_of_2(depth))
    launch(gemv_kernel, (triton.cdiv(n, rows),))(x, weight, out, n, depth, BN=rows, BK=block, num_warps=4)
    return out


@triton.jit
def gemv_kernel(x, weight, out, n, depth: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PDL: tl.constexpr):
    row = tl.program_id(0) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    at = weight + row[:, None].to(tl.int64) * depth + k[None, :]
    inside = (row < n)[:, None] & (k < depth)[None, :]
    w = tl.load(at, inside, 0.0, eviction_policy="evict_first")  # depends on no other kernel
    chain(PDL)
    products = w.to(tl.float32) * tl.load(x + k, k < depth, 0.0).to(tl.float32)[None, :]
    for first in tl.static_range(BK, depth, BK):
        inside = (row < n)[:, None] & (first + k < depth)[None, :]
        w = tl.load(at + first, inside, 0.0, eviction_policy="evict_first")
        products += w.to(tl.float32) * tl.load(x + first + k, first + k < depth, 0.0).to(tl.float32)[None, :]
    tl.store(out + row, tl.sum(products, 1), row < n)

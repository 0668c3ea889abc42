"""experts_up with the activation in the product's epilogue: gate and up of the same columns in one program."""

import torch
import triton
import triton.language as tl

from optim.kernels.launch import chain, launch
from optim.kernels.moe.triton import TILES, activated

__all__ = ["experts_up"]


def experts_up(
    x: torch.Tensor,
    weight: torch.Tensor,
    pairs: torch.Tensor,
    of_block: torch.Tensor,
    used: torch.Tensor,
    share: int,
    limit: float | None,
    ops,
) -> torch.Tensor:
    """As in compose: x (rows, hidden), weight (E, 2 I, hidden), moe_align's order -> (rows * share, I)."""
    half, depth = weight.shape[1] // 2, weight.shape[2]
    out = torch.empty(len(x) * share, half, dtype=x.dtype, device=x.device)
    block = len(pairs) // len(of_block)
    columns, bk, warps, stages = TILES[block]
    columns //= 2  # as much of gate and of up
    grid = (len(of_block) * triton.cdiv(half, columns),)
    tile = {"SHARE": share, "BM": block, "BN": columns, "BK": bk, "num_warps": warps, "num_stages": stages}
    sizes = (len(out), half, depth, limit or 0.0)
    launch(fused_moe_swiglu_kernel, grid)(
        x, weight, pairs, of_block, used, out, *sizes, LIMITED=limit is not None, **tile
    )
    return out


@triton.jit
def fused_moe_swiglu_kernel(
    x, weight, pairs, of_block, used, out, rows, half, depth, limit,
    LIMITED: tl.constexpr, SHARE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Rounds gate and up as the separate product does, then activates in fp32: bitwise the same."""
    chain(PDL)
    columns = tl.cdiv(half, BN)
    block, column = tl.program_id(0) // columns, tl.program_id(0) % columns
    if block * BM >= tl.load(used):
        return
    pair = tl.load(pairs + block * BM + tl.arange(0, BM)).to(tl.int64)
    real = pair < rows
    col = column * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    left = x + (pair // SHARE)[:, None] * depth + k[None, :]
    own = weight + tl.load(of_block + block).to(tl.int64) * 2 * half * depth
    right = own + col[None, :].to(tl.int64) * depth + k[:, None]
    gate = tl.zeros((BM, BN), tl.float32)
    up = tl.zeros((BM, BN), tl.float32)
    for first in range(0, depth, BK):
        within = first + k < depth
        a = tl.load(left + first, real[:, None] & within[None, :], 0.0)
        inside = (col < half)[None, :] & within[:, None]
        gate += tl.dot(a, tl.load(right + first, inside, 0.0), input_precision="ieee")
        up += tl.dot(a, tl.load(right + half * depth + first, inside, 0.0), input_precision="ieee")
    gate = gate.to(out.dtype.element_ty).to(tl.float32)
    up = up.to(out.dtype.element_ty).to(tl.float32)
    found = activated(gate, up, limit, LIMITED)
    tl.store(out + pair[:, None] * half + col[None, :], found, real[:, None] & (col < half)[None, :])

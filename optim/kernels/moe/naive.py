"""The routed experts as grouped matrix products.

A pair is a token sent to one of its experts: pair p = t * k + j. Pairs are sorted by expert and those of every expert
padded to whole blocks, so that one block of rows meets one weight matrix.
"""

import torch
import torch.nn.functional as F  # noqa: N812

__all__ = ["combine", "grouped_gemm", "moe_align", "swiglu"]


def moe_align(experts: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """experts (T, k) of `count` -> pairs (P), expert of each block (P / block), used rows (1); all int32.

    A block has `block_rows` rows; padding rows hold T * k. P is the most that any routing needs, in whole blocks; rows
    from `used` on mean nothing.
    """
    flat = experts.flatten().long()
    block = block_rows(len(flat), count)
    most = padded_rows(len(flat), count, block)
    sizes = torch.bincount(flat, minlength=count)
    ends = ((sizes + block - 1) // block * block).cumsum(0)
    order = flat.argsort(stable=True)
    rank = torch.arange(len(flat), device=flat.device) - (sizes.cumsum(0) - sizes)[flat[order]]
    first = (ends - (sizes + block - 1) // block * block)[flat[order]]
    pairs = torch.full((most,), len(flat), dtype=torch.int32, device=flat.device)
    pairs[first + rank] = order.int()
    starts = torch.arange(0, most, block, device=flat.device)
    of_block = torch.searchsorted(ends, starts, right=True).clamp(max=count - 1)
    return pairs, of_block.int(), ends[-1:].int()


def block_rows(pairs: int, count: int) -> int:
    """Rows of a block: about what an expert gets, within what the hardware multiplies well."""
    mean = pairs / count
    return 16 if mean <= 16 else 64 if mean <= 64 else 128


def padded_rows(pairs: int, count: int, block: int) -> int:
    """The rows that sorting `pairs` pairs into blocks can need: each expert met wastes less than one block."""
    most = min(pairs, count) * (block - 1) + pairs
    return (most + block - 1) // block * block


def grouped_gemm(
    x: torch.Tensor,
    weight: torch.Tensor,
    pairs: torch.Tensor,
    of_block: torch.Tensor,
    used: torch.Tensor,
    share: int,
) -> torch.Tensor:
    """x (rows, K), weight (E, N, K) -> (rows * share, N): row p is x[p // share] times its expert's matrix.

    `share` pairs read one row of x: k for the first product, whose rows are tokens; 1 for the second.
    """
    block = len(pairs) // len(of_block)
    out = x.new_empty(len(x) * share, weight.shape[1])
    for i in range(int(used) // block):
        rows = pairs[i * block : (i + 1) * block].long()
        rows = rows[rows < len(out)]
        out[rows] = F.linear(x[rows // share], weight[of_block[i]])
    return out


def swiglu(x: torch.Tensor, limit: float | None) -> torch.Tensor:
    """x (T, 2I), gate then up -> silu(gate) * up (T, I), in fp32, rounded once.

    With a limit L (Ling-3.0's late layers): min(silu(gate), L) * clamp(up, -L, L).
    """
    gate, up = x.float().chunk(2, -1)
    gate = F.silu(gate)
    if limit is not None:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return (gate * up).to(x.dtype)


def combine(y: torch.Tensor, weights: torch.Tensor, shared: torch.Tensor) -> torch.Tensor:
    """y (T * k, H) of the pairs, weights (T, k) -> shared + their weighted sum, in fp32, rounded once, (T, H)."""
    y = y.view(*weights.shape, -1).float()
    return (torch.einsum("tkh,tk->th", y, weights) + shared.float()).to(shared.dtype)

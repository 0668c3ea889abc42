"""The first launch of a step: the token's row of the embedding, and the metadata from the length on the device."""

import torch
import triton
import triton.language as tl

from optim.engine.cache import REQUEST, SPLIT_TOKENS, Cache, Metadata
from optim.kernels.launch import chain, launch
from optim.kernels.mla.naive import MAX_SPLITS

__all__ = ["begin"]

BLOCK = 1024  # numbers a program


def begin(tokens: torch.Tensor, table: torch.Tensor, seen: torch.Tensor, cache: Cache, meta: Metadata) -> torch.Tensor:
    """tokens (1) int64 -> their row of table (vocab, hidden), (1, hidden); refills `meta` for `seen` and counts it up.

    Metadata that is parked stays so.
    """
    out = torch.empty(1, table.shape[1], dtype=table.dtype, device=table.device)
    programs = triton.cdiv(max(cache.capacity, table.shape[1]), BLOCK)
    launch(seam_embed_kernel, (programs,))(
        *(tokens, table, out, table.shape[1], seen, cache.slots, cache.capacity),
        *(meta.parked, meta.position, meta.length, meta.row, meta.slot, meta.slots, meta.splits),
        REQUEST=REQUEST,
        TOKENS=SPLIT_TOKENS,
        MOST=MAX_SPLITS,
        BLOCK=BLOCK,
        num_warps=4,
    )
    return out


@triton.jit
def seam_embed_kernel(
    token, table, out, hidden, seen, slots, capacity, parked, position, length, row, slot, page, splits,
    REQUEST: tl.constexpr, TOKENS: tl.constexpr, MOST: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    chain(PDL)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(table + tl.load(token) * hidden + at, at < hidden, 0.0), at < hidden)
    live = tl.load(parked) == 0
    if live:
        tl.store(page + at, tl.load(slots + at, at < capacity, 0), at < capacity)
    if tl.program_id(0) == 0:
        now = tl.load(seen)
        tl.debug_barrier()  # every warp has read it before one writes it
        tl.store(seen, now + 1)
        if live:
            tl.store(position, now)
            tl.store(length, (now + 1).to(tl.int32))
            tl.store(row, REQUEST)
            tl.store(slot, tl.load(slots + tl.minimum(now, capacity - 1)))
            tl.store(splits, tl.minimum((now + TOKENS) // TOKENS, MOST).to(tl.int32))

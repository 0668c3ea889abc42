"""Matrices that share an input and lie one behind the other in memory are one matrix."""

import torch

from optim.engine import compose

__all__ = ["linears"]


def linears(x: torch.Tensor, matrices: tuple[torch.Tensor, ...], ops) -> tuple[torch.Tensor, ...]:
    """As in compose: x (T, K) times each of `matrices` (N, K), (T, N) each; adjacent matrices in one launch."""
    whole = joined(matrices)
    if whole is None:
        return compose.linears(x, matrices, ops)
    return ops.linear(x, whole).split([len(matrix) for matrix in matrices], 1)


def joined(matrices: tuple[torch.Tensor, ...]) -> torch.Tensor | None:
    """The (sum N, K) view over all of them; None where they differ in K or do not follow each other in one storage."""
    first, end = matrices[0], matrices[0].data_ptr()
    kind = first.dtype, first.shape[1]
    for matrix in matrices:
        if matrix.data_ptr() != end or (matrix.dtype, matrix.shape[1]) != kind or not matrix.is_contiguous():
            return None
        end += matrix.nbytes
    if first.untyped_storage().data_ptr() != matrices[-1].untyped_storage().data_ptr():
        return None
    return first.as_strided((sum(map(len, matrices)), first.shape[1]), first.stride())


def adjacent(matrices: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Copies of (N, K) matrices that lie one behind the other, in their order."""
    whole = torch.cat(matrices)
    return whole.split([len(matrix) for matrix in matrices])

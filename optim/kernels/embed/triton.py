"""torch's own: one kernel already."""

from optim.kernels.embed.naive import embed

__all__ = ["embed"]

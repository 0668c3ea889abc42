"""Single kernels with cold weights: each projection shape of the model by cuBLAS and by the matrix-vector kernel."""

from typing import Any

import torch

from optim.engine.generate import Engine
from optim.kernels import launch
from optim.kernels.linear import gemv, naive
from optim.measure import cold

KINDS = {(): naive.linear, ("splitk_gemv",): gemv.linear}


def projections(engine: Engine) -> list[dict[str, Any]]:
    """Rows of ablation_report.Kernel, largest matrix first; empty without a GPU. Times in us, GB/s of the weights."""
    if engine.token.device.type != "cuda":
        return []
    matrices = {tuple(m.shape): m for w in (engine.w, *engine.w.layers) for m in vars(w).values() if _is_read_by_one(m)}
    ordered = sorted(matrices.values(), key=lambda m: -m.numel())
    return [_timed(m.to(engine.w.embed.dtype), passes) for m in ordered for passes in KINDS]


def _is_read_by_one(field: Any) -> bool:
    """Matrices of one token's projections: no expert stacks, convolutions or vectors."""
    return isinstance(field, torch.Tensor) and field.ndim == 2 and field.shape[1] > 16


def _timed(matrix: torch.Tensor, passes: tuple[str, ...]) -> dict[str, Any]:
    x = torch.ones(1, matrix.shape[1], dtype=matrix.dtype, device=matrix.device)
    assert not launch.chained  # one after the other, as cuBLAS is
    found = cold(lambda weight: KINDS[passes](x, weight), [matrix])
    us, low, high = (found[key] / 1e3 for key in ("median_ns", "low_ns", "high_ns"))
    name = f"{passes[0] if passes else 'cuBLAS'} {matrix.shape[0]} x {matrix.shape[1]}"
    times = {"cold_us": us, "low": low, "high": high}
    return {"kernel": name, "passes": list(passes), **times, "bytes": matrix.nbytes, "gb_s": matrix.nbytes / us / 1e3}

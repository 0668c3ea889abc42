"""Single kernels with cold weights: each product of a decode step by cuBLAS and by the matrix-vector kernel."""

from typing import Any

import torch

from optim import base
from optim.engine.generate import Engine
from optim.kernels import launch
from optim.kernels.linear import gemv, naive
from optim.timer import cold

KINDS = {(): naive.linear, ("splitk_gemv",): gemv.linear}
NARROW = ("bf16_gate", "bf16_head")


def projections(engine: Engine) -> list[dict[str, Any]]:
    """Rows of ablation_report.Kernel, largest matrix first; empty without a GPU. Times in us, GB/s of the weights."""
    if engine.token.device.type != "cuda":
        return []
    ordered = sorted(received(engine), key=lambda matrix: -matrix.nbytes)
    return [_timed(matrix, passes) for matrix in ordered for passes in KINDS]


def received(engine: Engine) -> list[torch.Tensor]:
    """The matrices that `linear` is given in a decode step, as they are and by the passes that narrow them.

    One of each shape and dtype.
    """
    found: dict[tuple[Any, ...], torch.Tensor] = {}

    def linear(x: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
        found.setdefault((matrix.dtype, *matrix.shape), matrix)
        return naive.linear(x, matrix)

    narrow = [name for name, one in base.named(list(NARROW)).items() if not one.blocked(engine)]
    for names in ([], narrow):
        with base.applied(engine, names), base.exchanged(engine.model.decode_ops, linear=linear):
            engine.rehearse()
    return list(found.values())


def _timed(matrix: torch.Tensor, passes: tuple[str, ...]) -> dict[str, Any]:
    x = torch.ones(1, matrix.shape[1], dtype=matrix.dtype, device=matrix.device)
    assert not launch.chained  # one after the other, as cuBLAS is
    found = cold(lambda weight: KINDS[passes](x, weight), [matrix])
    us, low, high = (found[key] / 1e3 for key in ("median_ns", "low_ns", "high_ns"))
    times = {"cold_us": us, "low": low, "high": high, "bytes": matrix.nbytes, "gb_s": matrix.nbytes / us / 1e3}
    return {"kernel": name_of(matrix, passes), "passes": list(passes), **times}


def name_of(matrix: torch.Tensor, passes: tuple[str, ...]) -> str:
    """'cuBLAS fp32 128 x 1536'."""
    dtype = {torch.float32: "fp32", torch.bfloat16: "bf16"}[matrix.dtype]
    return f"{passes[0] if passes else 'cuBLAS'} {dtype} {matrix.shape[0]} x {matrix.shape[1]}"

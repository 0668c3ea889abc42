"""Shared fixtures. Traces nobody here wrote lie beside the checkout; a user's clone has none, and says so."""

import os
from functools import wraps
from importlib.util import find_spec
from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared" / "traces"
BUNDLED = Path(__file__).resolve().parents[1] / "traces"
GOLDEN = Path(__file__).resolve().parent / "golden"


def once(patch):
    """Triton's interpreter changes its language for every launch, and again for every call of a device function.

    The latter finds everything changed already, but takes half of the interpreter's time to look.
    """

    @wraps(patch)
    def patched(fn):
        return patch(fn) if core.is_builtin(tl.load) or core.is_builtin(core.load) else None

    return patched


if find_spec("torch"):
    import torch

    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"  # read once, when triton is imported
        if find_spec("triton"):
            import triton.language as tl
            from triton.language import core
            from triton.runtime import interpreter

            if hasattr(interpreter, "_patch_lang") and hasattr(core, "is_builtin"):  # else it is only slower
                interpreter._patch_lang = once(interpreter._patch_lang)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden from what the code says now")


@pytest.fixture(scope="session")
def shared() -> Path:
    if not (SHARED / "oracle.json").exists():
        pytest.skip("LOUD: ../shared/traces is absent: the tests against other people's recordings are NOT run")
    return SHARED


@pytest.fixture
def few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Larger tiles than the first choices, of more rows a warp and turns a split: the interpreter is slow a program."""
    if "TRITON_INTERPRET" not in os.environ:
        return
    from optim.kernels.linear import gemv, head, normed
    from optim.kernels.mla import fused as mla
    from optim.kernels.moe import direct
    from optim.kernels.moe import fused as moe

    tiles = [{"R": 2, "num_warps": 8}]
    for module in (gemv, head, normed, mla):
        monkeypatch.setattr(module, "tiles", lambda n: tiles)
    for module in (direct, moe):
        monkeypatch.setattr(module, "UP", tiles)
        monkeypatch.setattr(module, "DOWN", [{"R": 1, "num_warps": 16}])
    monkeypatch.setattr(moe, "FRONT", tiles)
    monkeypatch.setattr(mla, "SPLIT", [{"S": 16, "BT": 32, "num_warps": 4}])
    monkeypatch.setattr(mla, "VALUES", [{"R": 2, "num_warps": 4}])

"""Shared fixtures. Traces nobody here wrote lie beside the checkout; a user's clone has none, and says so."""

import os
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
    return lambda fn: patch(fn) if core.is_builtin(tl.load) or core.is_builtin(core.load) else None


if find_spec("torch"):
    import torch

    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"  # read once, when triton is imported
        if find_spec("triton"):
            import triton.language as tl
            from triton.language import core
            from triton.runtime import interpreter

            interpreter._patch_lang = once(interpreter._patch_lang)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden from what the code says now")


@pytest.fixture(scope="session")
def shared() -> Path:
    if not (SHARED / "oracle.json").exists():
        pytest.skip("LOUD: ../shared/traces is absent: the tests against other people's recordings are NOT run")
    return SHARED

"""Shared fixtures. Traces nobody here wrote lie beside the checkout; a user's clone has none, and says so."""

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared" / "traces"
BUNDLED = Path(__file__).resolve().parents[1] / "traces"
GOLDEN = Path(__file__).resolve().parent / "golden"


if find_spec("torch"):
    import torch

    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"  # read once, when triton is imported


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden from what the code says now")


@pytest.fixture(scope="session")
def shared() -> Path:
    if not (SHARED / "oracle.json").exists():
        pytest.skip("LOUD: ../shared/traces is absent: the tests against other people's recordings are NOT run")
    return SHARED

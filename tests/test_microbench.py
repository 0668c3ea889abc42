"""Which products of a decode step are timed by themselves, and under which names."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from optim import microbench  # noqa: E402
from optim.engine import weights  # noqa: E402
from optim.engine.config import NANO  # noqa: E402
from optim.engine.generate import Engine  # noqa: E402


@pytest.fixture
def engine():
    return Engine(NANO, weights.random(NANO, 0, torch.bfloat16, "cpu"), 16, "naive")


def test_the_matrices_are_those_that_linear_is_given(engine):
    found = {microbench.name_of(matrix, ()): matrix for matrix in microbench.received(engine)}
    head, router = f"{NANO.vocab} x {NANO.hidden}", f"{NANO.experts} x {NANO.hidden}"
    for shape in (head, router):  # the baseline's, and what the passes make of them
        assert {f"cuBLAS fp32 {shape}", f"cuBLAS bf16 {shape}"} <= {*found}
    assert f"cuBLAS bf16 {3 * NANO.kda_width} x {NANO.hidden}" in found
    assert not any(matrix is layer.kv_b for layer in engine.w.layers[1::2] for matrix in found.values())
    assert {name for name in found if "fp32" in name} == {f"cuBLAS fp32 {head}", f"cuBLAS fp32 {router}"}
    assert engine.w.head.dtype == torch.float32


def test_a_matrix_times_whatever_reads_it_has_its_name():
    assert microbench.name_of(torch.zeros(2, 3), ("splitk_gemv",)) == "splitk_gemv fp32 2 x 3"


def test_an_fp32_model_has_nothing_to_narrow():
    engine = Engine(NANO, weights.random(NANO, 0, torch.float32, "cpu"), 16, "naive")
    assert {matrix.dtype for matrix in microbench.received(engine)} == {torch.float32}


def test_without_a_gpu_there_is_nothing_to_time(engine):
    assert microbench.projections(engine) == []

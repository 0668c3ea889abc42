"""The bundled recordings of the engine's baseline: the report names what the engine is known to do."""

import pytest
from conftest import BUNDLED

from ling_prof import load, report
from ling_prof.bundled import recordings

FILES = [r["file"] for r in recordings() if "ling_tiny" in r["file"]]
LAYERS = {"layer N kda": 18, "layer N mla": 6, "layer N moe": 23, "layer N mlp": 1}


@pytest.fixture(scope="module", params=FILES)
def found(request):
    return report(load(BUNDLED / request.param))


def test_there_is_one_of_each_format():
    assert len(FILES) == 2
    assert {name.split(".", 1)[1] for name in FILES} == {"pt.trace.json.gz", "sqlite.gz"}
    assert all((BUNDLED / name).stat().st_size < 3e6 for name in FILES)


def test_finds_the_steps(found):
    (summary,) = found["summary"]
    assert 8 <= summary["counted"] <= 16
    assert {step["phase"] for step in found["steps"]} == {"decode"}


def test_names_the_read_backs_and_the_seam(found):
    """Two a step: the length, and the token, for which the host waits most of the step."""
    reads = [row for row in found["syncs"] if row["api"] == "cudaStreamSynchronize"]
    assert sum(row["calls"] for row in reads) == 2 * len(found["steps"])
    assert reads[0]["blocked_ns"] > 0.5 * sum(step["wall_ns"] for step in found["steps"])
    if found["trace"]["format"] == "kineto":
        assert reads[0]["site"].startswith("aten::item < step (optim/engine/generate.py:")
        assert reads[1]["site"].startswith("aten::item < _prepare (optim/engine/generate.py:")
        assert found["seams"][0]["site"].startswith("refill (optim/engine/cache.py:")
    else:
        assert reads[0]["site"] == "decode_step_N"
        assert found["seams"][0]["site"] == "seam"
        assert found["seams"][1]["site"] == "decode_step_N"


def test_attributes_kernels_to_layers_and_roles(found):
    layers = {row["layer"]: row["layers"] for row in found["layers"]}
    assert {name: layers[name] for name in LAYERS} == LAYERS
    named = sum(row["share"] for row in found["layers"] if row["layer"] != "(outside any range)")
    assert named > 0.98


def test_little_is_left_unexplained(found):
    (summary,) = found["summary"]
    roles, ledger = {role: ns["mean"] for role, ns in summary["roles"].items()}, summary["ledger"]
    assert roles["other"] < 0.02 * sum(roles.values())
    assert ledger["unknown"]["mean"] < 0.01 * summary["wall_ns"]["mean"]
    assert {role for role, ns in roles.items() if ns} >= {"moe_gemm", "dense_gemm", "kda", "mla", "small_kernels"}

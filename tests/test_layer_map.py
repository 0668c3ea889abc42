"""Layers of replayed kernels from another recording: hand-made ones, then real ones whose layers are known."""

import json
from dataclasses import replace

import pytest
from conftest import BUNDLED
from test_cli import process, refused
from timelines import Recording

from ling_prof import load
from ling_prof.analyses import layers
from ling_prof.errors import Missing, UserError
from ling_prof.layer_map import named_from
from ling_prof.trace import Trace
from ling_prof.view import view

GRAPHS = "h200_ling_tiny_graph_stacks.pt.trace.json.gz"  # the calls of its capture name the layers
NODES = "h200_ling_tiny_graph_nodes.sqlite.gz"  # so do its node ids
STEP = (("norm", "attention"), ("gemm", "attention"), ("gemm", "mlp"), ("act", "mlp"))


def eager() -> Trace:
    """Three steps whose kernels are launched one by one inside ranges that name layers."""
    made, at = Recording(), 0
    for step in range(3):
        made.inside("annotation", f"decode_step_{step}", at, at + 90)
        for i, (kernel, layer) in enumerate(STEP):
            begin = at + 20 * i
            made.inside("annotation", layer, begin, begin + 10)
            made.kernel(f"{kernel}<int>", (begin + 1, begin + 5), (begin + 10, begin + 18), corr=1 + step * 10 + i)
        at += 100
    return made.trace()


def replayed(*kernels: str) -> Trace:
    """Four steps of one graph launch each, all within a range of the loop."""
    made, at = Recording(), 0
    for step in range(4):
        made.inside("annotation", f"decode_step_{step}", at, at + 90).inside("annotation", "replay", at + 1, at + 89)
        made.call("cudaGraphLaunch", at + 2, at + 8, corr=step + 1)
        for i, kernel in enumerate(kernels):
            made.op(kernel, at + 10 + 10 * i, at + 18 + 10 * i, corr=step + 1)
        at += 100
    return made.trace()


def named(trace: Trace) -> list[str]:
    """The layers of a counted step."""
    seen = view(trace)
    return layers.of_ops(seen)[seen.step_of(seen.ops.start) == 1].tolist()


def test_replayed_kernels_get_the_layer_of_their_like():
    graph = replayed("norm<int>", "gemm<int>", "new<int>", "gemm<int>", "act<long>")
    found = named_from(graph, eager())
    assert named(found) == ["attention", "attention", "replay", "mlp", "mlp"]  # act by its family; new has no like
    assert found.notes[-1] == "80 % of the kernels of a step have the layer that hand-made names"
    assert graph.layers is None


def test_another_model_is_refused():
    with pytest.raises(
        UserError, match=r"only 20 % of the kernels of a step have a layer in hand-made; record the same"
    ):
        named_from(replayed("a", "b", "c", "d", "act<int>"), eager())


def test_a_recording_that_names_no_layer_is_refused():
    with pytest.raises(Missing, match="the layer of a kernel"):
        named_from(eager(), replace(eager(), tables={**eager().tables, "host": Missing("a", "b", "c")}))


@pytest.mark.parametrize(("hidden", "other"), [(GRAPHS, NODES), (NODES, GRAPHS)])
def test_the_layers_of_a_real_graph_are_those_of_its_capture(hidden, other):
    """One recording loses its host ranges and is named from the other: every kernel that is told has its own layer."""
    whole = load(BUNDLED / hidden)
    seen = view(whole)
    counted = seen.step_of(seen.ops.start) >= 0
    truth = layers.of_ops(seen)[counted]
    bare = replace(whole, tables={**whole.tables, "host": Missing("a", "b", "c")})
    found = layers.of_ops(view(named_from(bare, load(BUNDLED / other))))[counted]
    told = found != layers.UNNAMED
    assert told.mean() > 0.98
    assert (found[told] == truth[told]).all()


def test_on_the_command_line():
    kimi = str(BUNDLED / "h200_kimi_eager.sqlite.gz")  # NVTX ranges
    stacks = str(BUNDLED / "h200_kimi_eager_stacks.pt.trace.json.gz")  # modules
    report = json.loads(process("report", kimi, "--layers-from", stacks, "--json").stdout)
    assert any("% of the kernels of a step have the layer" in note for note in report["trace"]["notes"])
    said = refused("kernels", str(BUNDLED / GRAPHS), "--layers-from", stacks)
    assert "of the kernels of a step have a layer in" in said
    assert "no such file" in refused("report", kimi, "--layers-from", "nowhere.json")

"""Where steps begin, on made-up sequences."""

import numpy as np
import pytest
from timelines import Recording

from ling_prof.period import find_period
from ling_prof.steps import WHOLE, _rounds
from ling_prof.view import Options, view


def loop(names: list[str], times: int, walls: list[int] | None = None, before: tuple[str, ...] = ()) -> Recording:
    """`names` launched `times` over, each op 10 ns long; step i takes walls[i]."""
    recording, now, corr = Recording(), 100, 1
    for name in before:
        recording.kernel(name, (now - 5, now - 4), (now, now + 10), corr)
        now, corr = now + 20, corr + 1
    for i in range(times):
        start = now
        for name in names:
            recording.kernel(name, (now - 5, now - 4), (now, now + 10), corr)
            now, corr = now + 20, corr + 1
        now = start + (walls[i] if walls else 20 * len(names))
    return recording


def phases(recording: Recording, **options) -> list[str]:
    return view(recording.trace(), Options(**options)).steps.table["phase"].tolist()


@pytest.mark.parametrize(
    ("tokens", "found"),
    [
        ("abcabcabc", (0, 3, 3)),
        ("xyzabcabcabc", (3, 3, 3)),
        ("abcdefgh", None),
        ("aabaabaab", (0, 3, 3)),
        ("xababababababy", (1, 2, 6)),
    ],
)
def test_the_period_that_covers_most_wins(tokens, found):
    assert find_period(np.array([ord(t) for t in tokens])) == found


def test_one_differing_op_does_not_end_a_run():
    step = [*range(40), 99]
    tokens = np.array(step * 6)
    tokens[41 * 3 + 20] = 77
    assert find_period(tokens) == (0, 41, 6)


def test_a_layer_that_repeats_inside_a_step_is_not_the_step():
    step = ["indexSelect", *["norm", "gemm"] * 8, "argmax"]
    assert phases(loop(step, 4)) == ["decode"] * 4


def test_a_repetition_that_neither_looks_up_nor_samples_is_no_decode_step():
    found = view(loop(["norm", "gemm", "silu"], 8).trace()).steps
    assert (found.source, found.table["phase"].tolist()) == (WHOLE, ["step"])


def test_prefill_is_found_before_the_repetition():
    step = ["indexSelect", "arange", "norm", "gemm", "silu", "argmax"]
    prefill = ("gather", *step[1:5], "big", "bigger", "other", "argmax")
    assert phases(loop(step, 4, before=prefill)) == ["prefill"] + ["decode"] * 4


def test_rounds_of_speculative_decoding():
    assert _rounds(np.array(["prefill", "extend", "draft", "verify", "extend", "draft", "verify"])).tolist() == [
        -1,
        -1,
        0,
        0,
        0,
        1,
        1,
    ]
    assert _rounds(np.array(["prefill", "decode", "decode"])).tolist() == [-1, 0, 1]
    assert _rounds(np.array(["verify", "verify", "extend"])).tolist() == [0, 1, 1]


def marked(walls: list[int], phase: str = "decode") -> Recording:
    """Steps of one kernel each, marked by ranges."""
    recording, now = Recording(), 100
    for i, wall in enumerate(walls):
        recording.inside("annotation", f"{phase}_step_{i}", now - 8, now - 2)
        recording.kernel("k", (now - 5, now - 4), (now, now + 10), i + 1)
        now += wall
    return recording


def test_slow_first_steps_are_warm_up_and_the_last_is_open():
    notes = view(marked([900, 800, 100, 100, 100, 100, 100]).trace()).steps.table["note"].tolist()
    assert notes[:2] == ["warm-up", "warm-up"]
    assert notes[2:-1] == [""] * 4
    assert notes[-1].startswith("last")


def test_a_pause_between_requests_is_no_step_time():
    table = view(marked([100, 100, 100, 5000, 100, 100, 100]).trace()).steps.table
    assert table["note"].tolist()[3] == "before a pause"
    assert (table["end"] - table["start"]).max() == 100


def test_skip_counts_decode_rounds():
    assert view(marked([100] * 5).trace(), Options(skip=2)).steps.table["note"].tolist()[:3] == [
        "skipped",
        "skipped",
        "",
    ]


def test_a_range_around_the_whole_loop_is_not_a_step():
    recording = marked([100] * 4).inside("annotation", "decode", 0, 10_000)
    assert view(recording.trace()).steps.table["name"].tolist() == [f"decode_step_{i}" for i in range(4)]


def test_ops_launched_between_ranges_are_counted_apart():
    recording = marked([100] * 3).kernel("sample", (150, 151), (155, 160), 99)
    table = view(recording.trace()).steps.table
    assert table[["kernels", "extra_kernels"]].values.tolist() == [[1, 1], [1, 0], [1, 0]]


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("step[DECODE bs=1]", "decode"),
        ("step[EXTEND bs=1 toks=1024]", "prefill"),
        ("execute_context_0(0)_generation_1(1)", "decode"),
        ("execute_8192_context_9(sq1)_generation_37(sq3)", "prefill"),
        ("decode_step_17", "decode"),
        ("Prefill", "prefill"),
        ("ProfilerStep#3", "step"),
        ("llm.decode", "decode"),
    ],
)
def test_range_names(name, phase):
    recording = Recording().inside("annotation", name, 0, 50).kernel("k", (10, 11), (20, 30), 1)
    assert phases(recording) == [phase]


@pytest.mark.parametrize(
    "name", ["cub::DeviceScan::InclusiveScan", "decode_layers_mlp_gate", "aten::decode_image", "layer 3 attn"]
)
def test_other_ranges_make_no_steps(name):
    recording = Recording().inside("nvtx", name, 0, 50).kernel("k", (10, 11), (20, 30), 1)
    assert view(recording.trace()).steps.source == WHOLE


def test_steps_by_repeating_graphs_of_several_kinds():
    recording, now = Recording(), 100
    for i in range(6):
        for j, graph in enumerate("ab"):
            corr = 2 * i + j + 1
            recording.call("cudaGraphLaunch", now - 5, now - 4, corr)
            recording.op(graph, now, now + 10, corr).op("n", now + 12, now + 20, corr)
            now += 30 if graph == "a" else 90
    found = view(recording.trace()).steps
    assert found.source == "the repeating CUDA-graph launch"
    assert (found.table["end"] - found.table["start"]).tolist()[:5] == [120] * 5

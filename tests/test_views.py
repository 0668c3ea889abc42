"""Several devices, streams, processes, requests and crossing ranges: hand-made, with figures solved by hand."""

from dataclasses import replace

import pytest
from timelines import PID, Recording

from ling_prof import report
from ling_prof.analyses import run
from ling_prof.analyses.layers import of_ops
from ling_prof.errors import Missing
from ling_prof.timeline import CLASSES
from ling_prof.view import Options, view


def speculative(*phases: str, wall: int = 20) -> Recording:
    """One kernel a part, parts named as SGLang names them."""
    names = {"verify": "step[TARGET_VERIFY bs=1]", "extend": "draft_extend", "prefill": "step[EXTEND bs=1 toks=8]"}
    recording, now = Recording(), 100
    for i, phase in enumerate(phases):
        recording.inside("annotation", names.get(phase, phase), now - 8, now - 2)
        recording.kernel("k", (now - 6, now - 5), (now, now + 10), i + 1)
        now += wall
    return recording


def rounds(*phases: str) -> list[int]:
    return view(speculative(*phases).trace()).steps.table["round"].tolist()


def test_a_second_request_keeps_its_draft_work_to_its_prefill():
    found = rounds("prefill", "extend", "draft", "verify", "extend", "prefill", "extend", "draft", "verify")
    assert found == [-1, -1, 0, 0, 0, -2, -2, 1, 1]


def test_prefill_and_its_draft_work_are_one():
    trace = speculative(
        "prefill", "extend", "draft", "verify", "extend", "prefill", "extend", "draft", "verify"
    ).trace()
    summary = report(trace, Options(focus="prefill"))["summary"][0]
    assert (summary["rounds"], summary["wall_ns"]["mean"]) == (2, 40)


def test_a_reason_leaves_out_the_whole_round():
    recording = speculative(*["draft", "verify", "extend"] * 6)
    recording.call("cudaGraphLaunch", 257, 258, 99)  # inside the extend of the third round, and nothing came of it
    summary = report(recording.trace())["summary"][0]
    assert (summary["rounds"], summary["counted"], summary["wall_ns"]["mean"]) == (4, 12, 60)


def test_accept_length_gives_the_time_per_token():
    options = Options(accept_length=3)
    summary = report(speculative(*["draft", "verify", "extend"] * 6).trace(), options)["summary"][0]
    assert (summary["wall_ns"]["mean"], summary["tpot_ns"]["mean"]) == (60, 20)


def decode(steps: int = 5, device: int = 0, pid: int = PID, recording: Recording | None = None) -> Recording:
    """Steps of 100 ns: a kernel of 50 ns that is launched late, and one read-back a step."""
    recording = recording or Recording()
    for i in range(steps):
        at, corr = 100 * i + 1_000, 1_000 * device + i + 1
        recording.inside("annotation", f"decode_step_{i}", at - 8, at + 80, tid=pid)
        recording.call("cudaLaunchKernel", at - 6, at - 4, corr, tid=pid)
        recording.op("gemm", at, at + 50, corr, device=device)
        recording.call("cudaStreamSynchronize", at + 5, at + 52, tid=pid)
    return recording


def test_skip_beyond_the_end_counts_nothing_and_says_so():
    found = report(decode().trace(), Options(skip=100))
    assert found["summary"][0]["rounds"] == 0
    assert found["summary"][0]["wall_ns"]["mean"] is None
    assert any("5 step(s): skipped" in row["reason"] for row in found["cannot_say"])


def test_idle_charged_to_calls_is_the_stall_of_the_ledger():
    seen = view(decode().trace())
    ledger = run("ledger", seen).loc[seen.chosen.index]
    assert run("syncs", seen)["focus_idle_ns"].sum() == ledger["sync_stall"].sum() == 4 * 44


def test_figures_of_two_devices_are_per_step_of_each():
    recording = decode(recording=decode(), device=1)
    found = report(recording.trace())
    assert [(k["device"], k["calls"], k["exclusive_ns"]) for k in found["kernels"]] == [(0, 4, 200), (1, 4, 200)]
    assert [s["rounds"] for s in found["summary"]] == [4, 4]


def test_one_stream_waits_for_another_that_is_not_shown():
    recording = Recording().kernel("k1", (10, 20), (100, 200), 1).kernel("k2", (22, 24), (200, 290), 2, stream=8)
    trace = recording.kernel("k3", (30, 40), (295, 400), 3).trace()
    row = run("ledger", view(trace, Options(stream=7))).iloc[0]
    assert {c: int(row[c]) for c in CLASSES if row[c]} == {"busy": 205, "stream_wait": 95}


def test_a_graph_on_two_streams_has_one_first_node():
    recording = Recording().kernel("k1", (10, 20), (100, 200), 1).call("cudaGraphLaunch", 30, 60, 2)
    recording.op("a", 205, 300, 2, stream=8).op("b", 310, 350, 2)
    row = run("ledger", view(recording.trace(), Options(stream=7))).iloc[0]
    assert {c: int(row[c]) for c in CLASSES if row[c]} == {"busy": 140, "graph_dependency": 110}


def test_a_range_that_crosses_another_still_names_what_it_holds():
    recording = Recording().inside("nvtx", "A", 0, 100).inside("nvtx", "B", 50, 150)
    layers = run("layers", view(recording.kernel("k", (120, 121), (130, 140), 1).trace()))
    assert layers["layer"].tolist() == ["B"]


def captured(*calls: str) -> Recording:
    """A capture of these calls, one in each range `layer 0`, `layer 1`, ..."""
    recording = Recording().call("cudaStreamBeginCapture", 0, 1)
    for i, name in enumerate(calls):
        recording.inside("annotation", f"layer {i}", 10 * i + 2, 10 * i + 8).call(name, 10 * i + 3, 10 * i + 5, 100 + i)
    return recording.call("cudaStreamEndCapture", 90, 95)


def layers_of(recording: Recording) -> list[str]:
    recording.call("cudaGraphLaunch", 200, 210, 1)
    return sorted(of_ops(view(recording.trace())))


def test_without_node_numbers_captured_calls_are_the_nodes_in_order():
    recording = captured("cudaMemsetAsync", "cuLaunchKernelEx").call("cudaLaunchKernel", 97, 99, 55)
    recording.op("Memset (Device)", 300, 310, 1, kind="memset").op("k", 320, 390, 1)
    assert layers_of(recording) == ["layer 0", "layer 1"]
    rows = run("layers", view(recording.trace()))
    assert rows[["layer", "exclusive_ns"]].to_numpy().tolist() == [["layer N", 80]]


@pytest.mark.parametrize(
    ("calls", "streams"),
    [
        (("cudaLaunchKernel",), (7, 7)),  # another graph: one node less
        (("cudaLaunchKernel", "cudaLaunchKernel"), (7, 7)),  # another graph: no copy in it
        (("cudaMemsetAsync", "cudaLaunchKernel"), (7, 8)),  # parallel branches: their order tells nothing
    ],
)
def test_captured_calls_that_do_not_fit_name_no_layer(calls, streams):
    recording = captured(*calls)
    recording.op("Memset (Device)", 300, 310, 1, kind="memset", stream=streams[0]).op(
        "k", 320, 390, 1, stream=streams[1]
    )
    with pytest.raises(Missing, match="layer of a kernel"):
        layers_of(recording)


def test_a_capture_after_the_launch_did_not_make_it():
    recording = captured("cudaLaunchKernel").call("cudaGraphLaunch", -50, -40, 1).op("k", -30, -20, 1)
    with pytest.raises(Missing):
        of_ops(view(recording.trace()))


@pytest.mark.parametrize(("second", "found"), [("layer", ["layer 0", "layer 1"]), ("other", None)])
def test_two_captures_that_fit_must_agree_on_the_layers(second, found):
    """A graph captured again is the same; of two different graphs of one size nothing is guessed."""
    recording = captured("cudaLaunchKernel", "cudaLaunchKernel")
    recording.call("cudaStreamBeginCapture", 100, 101)
    for i in range(2):
        at = 110 + 10 * i
        recording.inside("annotation", f"{second} {i}", at, at + 8).call("cudaLaunchKernel", at + 2, at + 4, 80 + i)
    recording.call("cudaStreamEndCapture", 150, 160).op("k", 300, 310, 1).op("k", 320, 390, 1)
    if found:
        assert layers_of(recording) == found
    else:
        with pytest.raises(Missing):
            layers_of(recording)


def test_an_empty_range_is_not_where_the_host_is():
    recording = decode(1).inside("op", "aten::marker", 1_003, 1_003)
    assert "marker" not in run("syncs", view(recording.trace()))["site"].iat[0]


def test_means_of_parts_add_up_to_the_mean_of_their_class():
    recording = decode(7).inside("python", "a.py(1): f", 0, 5_000).call("cudaEventQuery", 1_060, 1_067)
    summary = report(recording.trace())["summary"][0]
    for whole, parts in (("busy", "roles"), ("host_bound", "host_bound")):
        assert sum(row["mean"] for row in summary[parts].values()) == summary["ledger"][whole]["mean"]


def test_calls_of_another_process_are_not_this_device_s():
    trace = decode().call("cudaDeviceSynchronize", 1_060, 1_070).trace()
    api = trace.api.assign(pid=[PID + (n == "cudaDeviceSynchronize") for n in trace.api["name"]])
    other = replace(trace, tables={**trace.tables, "api": api})
    assert set(run("syncs", view(other))["api"]) == {"cudaStreamSynchronize"}


def test_a_kernel_launch_without_its_kernel_leaves_out_the_step():
    recording = decode().call("cudaLaunchKernel", 1_260, 1_265, 77)
    found = report(recording.trace())
    assert [s["note"][:14] for s in found["steps"]] == ["", "", "under-recorded", "", "last: nothing "]


def test_what_is_launched_while_a_graph_is_captured_is_not_lost():
    recording = decode().call("cudaStreamBeginCapture", 1_255, 1_256).call("cudaStreamEndCapture", 1_270, 1_271)
    recording.call("cudaLaunchKernel", 1_260, 1_265, 77)
    assert [s["note"][:14] for s in report(recording.trace())["steps"]] == ["", "", "", "", "last: nothing "]

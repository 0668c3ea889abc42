"""The ledger on timelines small enough to solve by hand: every class, in DESIGN's order."""

import numpy as np
import pytest
from timelines import Recording

from ling_prof.analyses import run
from ling_prof.analyses.ledger import scale_to
from ling_prof.timeline import CLASSES, HOST_PARTS
from ling_prof.view import Options, view


def account(recording: Recording, **options) -> dict[str, int]:
    """The non-zero classes of the whole recording taken as one step."""
    row = run("ledger", view(recording.trace(), Options(**options))).iloc[0]
    assert sum(row[c] for c in CLASSES) == row["wall"]
    return {c: int(row[c]) for c in CLASSES if row[c]}


def two_kernels(second_launch: tuple[int, int], second: tuple[int, int]) -> Recording:
    """k1 runs 100-200; k2 on the same stream."""
    return Recording().kernel("k1", (10, 20), (100, 200), 1).kernel("k2", second_launch, second, 2)


def test_dependency_when_queued_before_the_gap():
    assert account(two_kernels((30, 40), (205, 300))) == {"busy": 195, "dependency": 5}


def test_a_launch_that_returns_as_the_gap_begins_was_queued():
    assert account(two_kernels((150, 200), (205, 300))) == {"busy": 195, "dependency": 5}


def test_host_bound_then_call_then_latency():
    assert account(two_kernels((250, 260), (275, 300))) == {
        "busy": 125,
        "host_bound": 50,
        "launch_call": 10,
        "launch_latency": 15,
    }


def test_a_launch_in_progress_when_the_queue_ran_dry_is_no_host_delay():
    assert account(two_kernels((190, 230), (240, 300))) == {"busy": 160, "launch_call": 30, "launch_latency": 10}


def test_a_kernel_that_starts_inside_its_launch_call():
    assert account(two_kernels((210, 290), (240, 300))) == {"busy": 160, "host_bound": 10, "launch_call": 30}


def test_sync_stall_takes_everything_up_to_the_launch():
    recording = two_kernels((250, 260), (275, 300)).call("cudaStreamSynchronize", 30, 210)
    assert account(recording) == {"busy": 125, "sync_stall": 50, "launch_call": 10, "launch_latency": 15}


def test_a_sync_on_another_thread_is_not_to_blame():
    recording = two_kernels((250, 260), (275, 300)).call("cudaStreamSynchronize", 30, 210, tid=2)
    assert account(recording)["host_bound"] == 50


def test_a_sync_that_ended_before_the_queue_ran_dry_is_not_to_blame():
    recording = two_kernels((250, 260), (275, 300)).call("cudaStreamSynchronize", 30, 199)
    assert account(recording)["host_bound"] == 50


def test_a_sync_entered_when_the_device_was_idle_costs_its_own_time_only():
    recording = two_kernels((250, 260), (275, 300)).call("cudaStreamSynchronize", 220, 226)
    assert account(recording) == {
        "busy": 125,
        "sync_stall": 6,
        "host_bound": 44,
        "launch_call": 10,
        "launch_latency": 15,
    }


def test_a_device_side_wait_is_no_host_stall():
    recording = two_kernels((250, 260), (275, 300)).call("cudaStreamWaitEvent", 30, 210)
    assert "sync_stall" not in account(recording)


@pytest.mark.parametrize(
    "name", ["cudaDeviceSynchronize", "cuEventSynchronize", "cudaMemcpy", "cudaFree", "hipMemcpyWithStream"]
)
def test_every_blocking_call_can_stall(name):
    assert account(two_kernels((250, 260), (275, 300)).call(name, 30, 210))["sync_stall"] == 50


@pytest.mark.parametrize("name", ["cudaMemcpyAsync", "cudaFreeAsync", "cudaEventRecord", "cudaMallocAsync"])
def test_asynchronous_calls_do_not_stall(name):
    assert "sync_stall" not in account(two_kernels((250, 260), (275, 300)).call(name, 30, 210))


def test_a_pageable_copy_blocks():
    recording = Recording().kernel("k1", (10, 20), (100, 200), 1).kernel("k2", (250, 260), (275, 300), 3)
    recording.call("cudaMemcpyAsync", 30, 215, 2).op(
        "Memcpy DtoH", 200, 210, 2, kind="memcpy", dst_mem="pageable", src_mem="device"
    )
    assert account(recording) == {"busy": 135, "sync_stall": 40, "launch_call": 10, "launch_latency": 15}


def test_stream_wait_when_queued_behind_another_stream():
    recording = Recording().kernel("k1", (10, 20), (100, 200), 1).kernel("k2", (30, 40), (205, 300), 2, stream=8)
    assert account(recording) == {"busy": 195, "stream_wait": 5}


def test_graph_dependency_inside_a_graph_and_dependency_before_it():
    recording = Recording().kernel("k1", (10, 20), (100, 200), 1).call("cudaGraphLaunch", 30, 60, 2)
    recording.op("a", 210, 300, 2).op("b", 304, 350, 2).op("c", 340, 400, 2)
    assert account(recording) == {"busy": 286, "dependency": 10, "graph_dependency": 4}


def test_profiler_overhead_takes_the_part_it_covers():
    recording = two_kernels((250, 260), (275, 300))
    recording.overhead.append({"name": "Buffer Flush", "start": 190, "end": 230, "pid": -1, "tid": 0})
    assert account(recording) == {
        "busy": 125,
        "profiler": 30,
        "host_bound": 20,
        "launch_call": 10,
        "launch_latency": 15,
    }


def test_a_kernel_without_a_launch_is_unknown():
    assert account(Recording().kernel("k1", (10, 20), (100, 200), 1).op("k2", 250, 300, 99)) == {
        "busy": 150,
        "unknown": 50,
    }


def test_a_kernel_that_starts_before_its_launch_is_unknown():
    assert account(two_kernels((260, 270), (250, 300))) == {"busy": 150, "unknown": 50}


def test_host_bound_is_split_by_the_innermost_layer():
    recording = two_kernels((250, 260), (275, 300))
    recording.inside("python", "model.py(1): f", 0, 245).inside("op", "aten::mm", 220, 240).call(
        "cudaEventQuery", 225, 228
    )
    row = run("ledger", view(recording.trace())).iloc[0]
    assert {p: int(row[f"host_{p}"]) for p in HOST_PARTS} == {"python": 25, "dispatch": 17, "api": 3, "unknown": 5}


def test_overlap_in_one_stream_is_counted_once_and_shown_apart():
    recording = Recording().call("cudaGraphLaunch", 0, 5, 1).op("a", 10, 60, 1).op("b", 40, 90, 1).op("c", 45, 50, 1)
    row = run("ledger", view(recording.trace())).iloc[0]
    assert (row["busy"], row["overlapped"]) == (80, 25)


def test_exclusive_share_goes_to_the_earlier_op():
    recording = Recording().call("cudaGraphLaunch", 0, 5, 1).op("a", 10, 60, 1).op("b", 40, 90, 1).op("c", 45, 50, 1)
    kernels = run("kernels", view(recording.trace())).set_index("name")["exclusive_ns"]
    assert kernels.to_dict() == {"a": 50, "b": 30, "c": 0}


def test_compute_hides_communication_and_copies():
    recording = (
        Recording()
        .kernel("gemm", (0, 1), (100, 200), 1)
        .kernel("ncclDevKernel_AllReduce", (2, 3), (150, 260), 2, stream=8)
    )
    recording.call("cudaMemcpyAsync", 4, 5, 3).op("Memcpy DtoD", 90, 270, 3, stream=9, kind="memcpy")
    kernels = run("kernels", view(recording.trace())).set_index("name")["exclusive_ns"]
    assert kernels.to_dict() == {"gemm": 100, "ncclDevKernel_AllReduce": 60, "Memcpy DtoD": 20}


def test_calibration_shrinks_host_classes_only():
    recording = two_kernels((250, 260), (275, 300)).inside("annotation", "decode_step_0", 0, 270)
    row = run("ledger", view(recording.trace(), Options(unprofiled_tpot=155))).iloc[0]
    calibrated = {c: int(row[f"calibrated_{c}"]) for c in CLASSES if row[f"calibrated_{c}"]}
    assert calibrated == {"busy": 125, "host_bound": 20, "launch_call": 4, "launch_latency": 6}


def test_calibration_scales_the_gpu_only_when_it_alone_exceeds_the_step():
    recording = two_kernels((250, 260), (275, 300)).inside("annotation", "decode_step_0", 0, 270)
    row = run("ledger", view(recording.trace(), Options(unprofiled_tpot=100))).iloc[0]
    assert {c: int(row[f"calibrated_{c}"]) for c in CLASSES if row[f"calibrated_{c}"]} == {"busy": 100}


@pytest.mark.parametrize("target", [1, 7, 99, 1000])
def test_calibration_is_exact_in_whole_nanoseconds(target):
    classes = np.arange(3 * len(CLASSES)).reshape(3, -1)
    assert scale_to(classes, target).sum() == target

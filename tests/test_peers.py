"""Public reports a user has met elsewhere (peers.md): each must behave here. One test a report, named after it.

Listed reports that are not about reading or accounting, and so have no test here: HTA #332 (a hang on 8 files of 5 GB:
the fleet), HTA #250 (memory: a benchmark, kept as a skip) and imp #1655 (a PDL flag without its device half: a pass
must prove that it took effect).
"""

import re
from pathlib import Path
from typing import Any

import pytest
from build import (
    annotation,
    cpu_op,
    graph,
    kernel,
    kineto,
    launch,
    memcpy,
    nsys,
    overhead,
    runtime,
    sync,
)

from ling_prof import Missing, Options, Report, TraceError, UserError, check, load, report
from ling_prof.ops import devices
from ling_prof.roles import role
from ling_prof.timeline import HOST_CLASSES

MS = 1_000_000


def say(path: Path, **options: Any) -> Report:
    return report(load(path), Options(**options))


def account(path: Path, **options: Any) -> dict[str, int]:
    """Class -> ns over all steps, the classes that are not zero; checked to add up to the wall time."""
    steps = say(path, **options)["steps"]
    sums = {c: sum(s["ledger"][c] for s in steps) for c in steps[0]["ledger"]}
    assert sum(sums.values()) == sum(s["wall_ns"] for s in steps)
    return {c: ns for c, ns in sums.items() if ns}


def caveats(found: Report) -> list[str]:
    """Every sentence with which a report limits what it says."""
    left_out = [text for s in found["summary"] for text in s["left_out"]]
    return [*found["trace"]["notes"], *left_out, *(f"{c['question']} {c['reason']}" for c in found["cannot_say"])]


def warns(found: Report, *patterns: str) -> bool:
    return any(all(re.search(p, text, re.I) for p in patterns) for text in caveats(found))


def queued(*spans: tuple[float, float], stream: int = 7) -> list[dict]:
    """Kernels k1, k2, ... on one stream (start, duration in us), all launched before the first of them runs."""
    at = enumerate(spans, 1)
    return [
        e for i, (ts, dur) in at for e in launch(f"k{i}", ts, dur, i, call=i / 100, call_dur="0.005", stream=stream)
    ]


# HolisticTraceAnalysis


def test_hta_290_graph_kernels_keep_all(tmp_path):
    """All kernels of a graph share one correlation; only the last was kept."""
    path = kineto(tmp_path, graph([("a", 10, 3), ("b", 14, 3), ("c", 18, 3)], corr=5, call=1))
    found = say(path)
    assert found["steps"][0]["kernels"] == 3
    assert account(path) == {"busy": 9_000, "graph_dependency": 2_000}
    assert [(g["launches"], g["kernels"], g["span_ns"], g["gaps_ns"]) for g in found["graphs"]] == [
        (1, 3, 11_000, 2_000)
    ]


def test_hta_342_no_negative_duration_below_a_microsecond(tmp_path):
    """Rounding start up and end down to whole us gave a kernel of 0.2 us a duration of -1 us."""
    path = kineto(tmp_path, queued(("100.7", "0.2"), ("101.1", "0.2")))
    gpu = load(path).gpu
    assert (gpu["end"] - gpu["start"]).tolist() == [200, 200]
    assert account(path) == {"busy": 400, "dependency": 200}


def test_hta_104_no_rank(tmp_path):
    """A trace without distributedInfo could not be read."""
    found = say(kineto(tmp_path, queued((10, 5))))
    assert "rank" not in found["trace"]["lock"]
    assert found["steps"][0]["ledger"]["busy"] == 5_000
    assert not warns(found, "rank")


def test_hta_324_big_integers_bad_utf8_and_quotes(tmp_path):
    """One integer over int64, one byte that is not UTF-8 or one bare quote made the whole file unreadable."""
    big = {"args": {"correlation": 2, "device": 0, "stream": 7, "Input": 2**70}}
    events = [
        *queued((10, 5)),
        kernel("big", 20, 5) | big,
        kernel("bad \udcff\udcfe", 25, 5, 4),
        '{"ph": "X", "cat": "kernel", "name": "f<"x">", "pid": 0, "tid": 7, "ts": 30, "dur": 5, "args": {"device": 0}}',
    ]
    trace = load(kineto(tmp_path, events))
    assert trace.gpu["name"].tolist() == ["k1", "big", "bad \ufffd\ufffd", 'f<"x">']
    assert (trace.gpu["end"] - trace.gpu["start"]).tolist() == [5_000] * 4
    assert "2 damaged events were repaired" in trace.notes


def test_hta_324_half_a_surrogate_pair(tmp_path):
    r"""A name cut inside a surrogate pair leaves the escape \ud83d alone."""
    cut = r'{"ph": "X", "cat": "kernel", "name": "k \ud83d", "pid": 0, "tid": 7, "ts": 1, "dur": 5, "args": {}}'
    gpu = load(kineto(tmp_path, [cut])).gpu
    assert gpu["name"][0].startswith("k ")
    assert (gpu["end"] - gpu["start"]).tolist() == [5_000]


def test_hta_324_a_correlation_over_int64_still_links(tmp_path):
    """An id over int64 overflowed."""
    trace = load(kineto(tmp_path, launch("k", 10, 5, corr=2**64 - 3, call=1)))
    assert trace.gpu["api_row"].tolist() == [0]


def test_hta_208_nccl_device_kernels_are_communication(tmp_path):
    """ncclDevKernel_* was counted as computation, so that communication was empty."""
    name = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    gemm = launch("gemm", 10, 10, 1, call=1)
    path = kineto(tmp_path, [*gemm, *launch(name, 15, 10, 2, call=3, stream=20)])
    step = say(path)["steps"][0]
    assert step["roles"]["all_reduce"] == 5_000  # what it adds beyond the gemm
    assert step["roles"]["dense_gemm"] == 10_000
    assert role("ncclDevKernel_Generic(ncclDevComm*, channelMasks, ncclWork*)") == "all_reduce"
    assert role("nccldevkernel_SendRecv") == "all_reduce"


def test_hta_149_sync_rows_are_not_kernels(tmp_path):
    """cuda_sync rows sit on a stream like kernels and were counted as such."""
    path = kineto(tmp_path, [*queued((10, 5)), sync("Stream Sync", 0, 90), sync("Context Sync", 15, 30)])
    assert load(path).gpu["name"].tolist() == ["k1"]
    assert account(path) == {"busy": 5_000}


@pytest.mark.parametrize("calls", [[], [runtime("cudaMalloc", 0, 1, 9)]], ids=["no call", "another call"])
def test_hta_16_missing_runtime_names(tmp_path, calls):
    """A trace without cudaMemsetAsync or cudaLaunchKernel failed in a look-up."""
    path = kineto(tmp_path, [*calls, kernel("a", 10, 5, 1), kernel("b", 20, 5, 2)])
    assert account(path) == {"busy": 10_000, "unknown": 5_000}
    assert warns(say(path), "2 of 2 ops")


def test_hta_30_ns_threshold_a_20_us_gap_is_the_hosts(tmp_path):
    """The threshold of 30 "ns" was compared in us, so that a gap of 20 us was "kernel_wait"."""
    events = [*launch("a", 10, 10, 1, call=1), *launch("b", 40, 5, 2, call=30)]
    path = kineto(tmp_path, events)
    assert account(path) == {"busy": 15_000, "host_bound": 10_000, "launch_call": 1_000, "launch_latency": 9_000}


def test_hta_overlap_in_one_stream_is_no_negative_idle(tmp_path):
    """Kernels of one stream that overlap were summed as negative idle time."""
    path = kineto(tmp_path, queued((10, 10), (15, 15), (28, 1)))
    found = say(path)
    assert account(path) == {"busy": 20_000}
    assert found["steps"][0]["overlapped_ns"] == 6_000
    assert {k["name"]: k["exclusive_ns"] for k in found["kernels"]} == {"k1": 10_000, "k2": 10_000, "k3": 0}


def test_hta_gaps_are_not_rounded_to_microseconds(tmp_path):
    """Times were rounded to whole us: gaps of decode graphs vanished or doubled."""
    path = kineto(tmp_path, queued(("10.001", "1.001"), ("11.401", "0.998"), ("12.4", "1.5")))
    assert [g["length"] for g in say(path)["gaps"]] == [399, 1]
    assert account(path) == {"busy": 3_499, "dependency": 400}


# Kineto


@pytest.mark.parametrize("base", ["", "17189876543210"])
def test_kineto_853_nanoseconds_survive_large_timestamps(tmp_path, base):
    """As float64 an absolute time in us loses up to 250 ns."""
    path = kineto(tmp_path, [kernel("a", f"{base}10.001", "0.998"), kernel("b", f"{base}11.002", "1.5")])
    gpu = load(path).gpu
    assert gpu["start"].tolist() == [0, 1_001]
    assert gpu["end"].tolist() == [998, 2_501]


def test_kineto_919_base_time(tmp_path):
    """ts became relative to a base that differs between versions: the same moment must have the same epoch."""
    second, third = 1_700_000_000 * 10**9, 3 * 10**9
    old = load(kineto(tmp_path, [kernel("a", "1700000003000000.5", 1)], name="absolute.json"))
    new = load(kineto(tmp_path, [kernel("a", "3000000.5", 1)], name="relative.json", baseTimeNanoseconds=second))
    assert old.epoch_ns == new.epoch_ns == second + third + 500


def test_kineto_109_kernels_at_zero_are_left_out(tmp_path):
    """Kernels with ts 0 and dur 0 among absolute times stretched the trace back to 1970."""
    at = 1_615_207_264_505_000
    lost = kernel("volta_sgemm", 0, 0, 7)
    path = kineto(tmp_path, [lost, *launch("a", at + 10, 5, 1, call=at), *launch("b", at + 20, 5, 2, call=at + 2)])
    assert load(path).gpu["name"].tolist() == ["a", "b"]
    assert account(path) == {"busy": 10_000, "dependency": 5_000}
    assert warns(say(path), r"\b1\b", "event|kernel|op")


def test_kineto_904_a_missing_stream_wait(tmp_path):
    """Stream Wait Event rows are filtered out when the waiting stream is new: the wait must show without them."""
    first = launch("on 20", 10, 10, 1, call=1, stream=20)
    wait = runtime("cudaStreamWaitEvent", 3, 1, 2)
    path = kineto(tmp_path, [*first, wait, *launch("on 24", 25, 5, 3, call=5, stream=24)])
    assert not load(path).has("sync")
    assert account(path) == {"busy": 15_000, "stream_wait": 5_000}
    assert say(path)["syncs"] == []


def test_kineto_904_a_stream_wait_belongs_to_the_stream_that_waits(tmp_path):
    """`stream` waits, `wait_on_stream` is waited for; Nsight Systems records the former, and so must both readers."""
    wait = sync("Stream Wait Event", 3, 1, 2, stream=24, wait_on_stream=20, wait_on_cuda_event_id=19)
    torch = load(kineto(tmp_path, [*queued((10, 5)), wait])).sync
    row = {"start": 3_000, "end": 4_000, "stream": 24, "corr": 2, "syncType": 2, "eventId": 19}
    nvidia = load(nsys(tmp_path, SYNCHRONIZATION=[row])).sync
    for found in (torch, nvidia):
        assert found[["kind", "stream", "event", "corr"]].to_numpy().tolist() == [["stream_wait", 24, 19, 2]]


def test_kineto_1552_unresolved_wait_metadata(tmp_path):
    """On CUDA 12.9+ the stream waited for is -1: the row is still a wait of its own stream."""
    wait = sync("Stream Wait Event", 3, 1, 2, stream=24, wait_on_stream=-1, wait_on_cuda_event_record_corr_id=-1)
    found = load(kineto(tmp_path, [*queued((10, 5)), wait])).sync
    assert found[["kind", "stream", "event"]].to_numpy().tolist() == [["stream_wait", 24, -1]]


def test_kineto_1356_stream_sync_on_its_own_row(tmp_path):
    """Stream Sync moved to tid = stream + 1000000: no such stream exists."""
    moved = sync("Stream Sync", 1, 14, 9, stream=7) | {"tid": 1_000_007}
    trace = load(kineto(tmp_path, [*queued((10, 5)), moved]))
    assert trace.sync[["kind", "stream"]].to_numpy().tolist() == [["stream", 7]]
    assert trace.gpu["stream"].tolist() == [7]


def test_kineto_1276_graph_ids(tmp_path):
    """Kernels carry "graph id" and "graph node id"; 0 means outside graphs."""
    ids = {"graph id": 3, "graph node id": 17}
    trace = load(kineto(tmp_path, [kernel("in", 1, 1, 5, **ids), kernel("out", 3, 1, 6, **dict.fromkeys(ids, 0))]))
    assert trace.gpu[["graph_id", "graph_node"]].to_numpy().tolist() == [[3, 17], [-1, -1]]
    assert trace.has("gpu.graph_node")


def test_kineto_1062_while_nodes_run_their_kernels_again(tmp_path):
    """The body of a while node runs the same graph node several times in one launch: none may be merged away."""
    body = [kernel("body", 10 + 2 * i, 1, 5, **{"graph id": 3, "graph node id": 17}) for i in range(3)]
    path = kineto(tmp_path, [runtime("cudaGraphLaunch", 1, 1, 5), *body])
    assert account(path) == {"busy": 3_000, "graph_dependency": 2_000}
    assert say(path)["steps"][0]["kernels"] == 3


@pytest.mark.parametrize("streams", [(0x7F3A_1234_5678, 0x7F3B_1234_5678), (2**63 + 5, 2**63 + 6), (2**64 - 1, 7)])
def test_kineto_1416_rocm_streams_of_64_bits(tmp_path, streams):
    """HIP stream ids are 64-bit handles: truncated, independent streams were merged."""
    one, two = (launch(f"k{i}", 10, 5, i, call=i, stream=s) for i, s in enumerate(streams, 1))
    gpu = load(kineto(tmp_path, [*one, *two])).gpu
    assert gpu["stream"].nunique() == 2
    assert gpu["api_row"].tolist() == [0, 1]
    if max(streams) < 2**63:
        assert sorted(gpu["stream"]) == sorted(streams)


# PyTorch


def test_pytorch_192021_corrupt_first_kernels(tmp_path):
    """The first kernel records of a session can carry another clock: they start a day before their own launch."""
    at = 200_000_000_000
    corrupt = launch("corrupt", at - 100_000_000_000, 5, 1, call=at)
    good = [*launch("a", at + 10, 5, 2, call=at + 2), *launch("b", at + 20, 5, 3, call=at + 4)]
    path = kineto(tmp_path, [*corrupt, *good])
    assert account(path) == {"busy": 10_000, "dependency": 5_000}
    assert warns(say(path), r"\b1\b", "launch")


@pytest.mark.parametrize("char", ["\x00", "\x01", "\x1f", "\x7f", "\udcc3", "\t"])
def test_pytorch_136180_control_characters(tmp_path, char):
    """A raw control character or a broken byte in one name made the export unreadable."""
    name = f"config.py(0): {char}"
    bad = f'{{"ph": "X", "cat": "python_function", "name": "{name}", "pid": 1, "tid": 1, "ts": 3, "dur": 1}}'
    trace = load(kineto(tmp_path, [bad, *queued((10, 5))]))
    assert len(trace.host) == 1
    assert trace.host["name"][0].startswith("config.py(0): ")
    assert trace.gpu["name"].tolist() == ["k1"]


def test_pytorch_113001_quotes_and_newlines(tmp_path):
    """Source text as a file name brings bare quotes and a newline into a name."""
    name = 'lib = torch.library.Library("_inductor_test", "IMPL")\n(1): <module>'
    bad = f'{{"ph": "X", "cat": "python_function", "name": "{name}", "pid": 1, "tid": 1, "ts": 3, "dur": 2}}'
    trace = load(kineto(tmp_path, [bad, *queued((10, 5))]))
    assert trace.host[["name", "start", "end"]].to_numpy().tolist() == [[name, 2_990, 4_990]]
    assert trace.gpu["name"].tolist() == ["k1"]


def test_pytorch_98432_backslashes(tmp_path):
    """Windows paths are written without escaping their backslashes."""
    name = r"torch\cuda\__init__.py(219): _lazy_init"
    bad = f'{{"ph": "X", "cat": "python_function", "name": "{name}", "pid": 1, "tid": 1, "ts": 3, "dur": 2}}'
    trace = load(kineto(tmp_path, [bad, *queued((10, 5))]))
    assert trace.host["name"].tolist() == [name]
    assert trace.gpu["name"].tolist() == ["k1"]


def test_pytorch_193392_overhead_is_no_device_time(tmp_path):
    """Overhead rows inherit a correlation and claimed the kernels of the operator around them."""
    lazy = overhead("Lazy Function Loading", 3, 4, correlation=1, device=0, stream=7)
    path = kineto(tmp_path, [cpu_op("aten::add", 0, 9), *queued((10, 5)), lazy, overhead("Instrumentation", 11, 2)])
    assert account(path) == {"busy": 5_000}
    assert say(path)["steps"][0]["kernels"] == 1
    assert load(path).overhead["name"].tolist() == ["Lazy Function Loading", "Instrumentation"]


def captured_graph(clones: dict[int, int | None]) -> dict[str, list[dict]]:
    """A graph of two nodes captured under two ranges and replayed once; `clones`: node -> the node it came from."""
    ranges = [(100, 200, "model.layers.0.attn"), (200, 300, "model.layers.0.mlp")]
    when = {10: 150, 11: 250}
    return {
        "NVTX": [{"start": s, "end": e, "name": n} for s, e, n in ranges],
        "NODES": [{"start": when.get(n, 400), "graphNodeId": n, "originalGraphNodeId": o} for n, o in clones.items()],
        "RUNTIME": [{"start": 900, "end": 950, "corr": 5, "name": "cudaGraphLaunch_v10000"}],
        "KERNEL": [
            {"start": 1_000, "end": 1_300, "corr": 5, "name": "attention", "graphNodeId": 30},
            {"start": 1_300, "end": 1_400, "corr": 5, "name": "mlp_gemm", "graphNodeId": 31},
        ],
    }


def test_pytorch_186026_layers_of_graph_nodes(tmp_path):
    """A replayed node has no range around it: its layer is the one open when it was captured, clones away."""
    path = nsys(tmp_path, **captured_graph({10: None, 11: None, 20: 10, 21: 11, 30: 20, 31: 21}))
    layers = {row["layer"]: row["exclusive_ns"] for row in say(path)["layers"]}
    assert layers == {"model.layers.N.attn": 300, "model.layers.N.mlp": 100}


def test_graph_node_clones_that_form_a_cycle_end(tmp_path):
    """originalGraphNodeId may lead in a circle."""
    path = nsys(tmp_path, **captured_graph({10: 20, 20: 10, 30: 20, 11: 11, 31: 11}))
    layers = {row["layer"]: row["exclusive_ns"] for row in say(path)["layers"]}
    assert layers == {"model.layers.N.attn": 300, "model.layers.N.mlp": 100}


def test_pytorch_82793_profiling_inflates_the_host(tmp_path):
    """A traced step is slower than a real one: given the unprofiled time, host classes shrink and GPU ones stay."""
    events = []
    for i in range(4):
        at = 100 * i
        events += [annotation(f"decode_step_{i}", at, 90), *launch("embedding", at + 10, 20, 2 * i + 1, call=at + 5)]
        events += launch("gemm", at + 60, 10, 2 * i + 2, call=at + 50)
    step = say(kineto(tmp_path, events), unprofiled_tpot=40_000)["steps"][1]
    assert step["wall_ns"] == 100_000
    assert step["ledger"]["busy"] == step["calibrated"]["busy"] == 30_000
    assert sum(step["calibrated"].values()) == 40_000
    assert sum(step["calibrated"][c] for c in HOST_CLASSES) == 10_000


# Perfetto, Ascend, TraceLens, Hyperloom


def test_perfetto_4280_pdl_kernels_are_kept(tmp_path):
    """Kernels of one stream that overlap by programmatic launch were dropped as misnested slices."""
    pdl = graph([("a", 10, 10), ("b", 18, 10), ("c", 26, 10), ("inside c", 27, 2)], corr=5, call=1)
    path = kineto(tmp_path, pdl)
    found = say(path)
    assert found["steps"][0]["kernels"] == 4
    assert account(path) == {"busy": 26_000}
    assert found["steps"][0]["overlapped_ns"] == 6_000
    assert sum(k["exclusive_ns"] for k in found["kernels"]) == 26_000


@pytest.mark.parametrize("unit", ["ns", "ms"])
def test_perfetto_274_display_time_unit_changes_nothing(tmp_path, unit):
    """displayTimeUnit was taken for the unit of ts: times were off by 1000."""
    trace = load(kineto(tmp_path, queued((10, 5)), displayTimeUnit=unit))
    assert (trace.gpu["end"] - trace.gpu["start"]).tolist() == [5_000]


def test_ascend_133_times_as_strings(tmp_path):
    """ts is a string, and absolute."""
    times = [('"1747123456789012.345"', '"1.5"'), ('"1747123456789014.001"', "0.5")]
    gpu = load(kineto(tmp_path, [kernel(f"k{i}", *t) for i, t in enumerate(times)])).gpu
    assert gpu[["start", "end"]].to_numpy().tolist() == [[0, 1_500], [1_656, 2_156]]


def hip_graph(corr: int, call: float, *starts: float) -> list[dict]:
    return [runtime("hipGraphLaunch", call, 1, corr), *(kernel(f"k{i}", ts, 9, corr) for i, ts in enumerate(starts))]


def test_tracelens_728_time_inside_a_graph_replay_is_not_the_hosts(tmp_path):
    """Gaps between the kernels of one hipGraphLaunch were called idle, and blamed on launching."""
    path = kineto(tmp_path, hip_graph(1, 0, 10, 20, 30))
    assert account(path) == {"busy": 27_000, "graph_dependency": 2_000}


def test_tracelens_972_empty_steps_are_not_healthy(tmp_path):
    """30 of 32 steps held no GPU work, and the report said 0.04% idle."""
    marks = [annotation("step[DECODE bs=1]", 100 * i, 90) for i in range(6)]
    work = [e for i in (0, 1, 5) for e in launch("k", 100 * i + 10, 85, i + 1, call=100 * i + 5)]
    found = say(kineto(tmp_path, [*marks, *work]))
    assert warns(found, r"\b3\b", "step|range", "no |without|empty")


def test_tracelens_669_a_duration_that_overruns_the_next_slice(tmp_path):
    """One record of 1.6 s over its successors made the sum of kernel times exceed the recording many times."""
    path = kineto(tmp_path, queued((10, 1_600), (30, 10), (50, 10), (1_605, 15)))
    found = say(path)
    assert account(path) == {"busy": 1_610_000}
    assert sum(k["exclusive_ns"] for k in found["kernels"]) == 1_610_000
    assert found["steps"][0]["overlapped_ns"] == 25_000


CUSTOM_COLLECTIVES = [
    "void vllm::cross_device_reduce_1stage<__hip_bfloat16, 8>(vllm::RankData*, int)",
    "void sglang::cross_device_reduce_2stage<half, 4>(RankData*)",
    "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<4>(AllReduceFusionParams)",
    "void aiter::reduce_scatter_cross_device_store<bf16, 8>()",
    "multimem_all_reduce_kernel",
    "two_shot_all_reduce_kernel",
]


@pytest.mark.parametrize("name", CUSTOM_COLLECTIVES)
def test_tracelens_547_custom_collectives(name):
    """Collectives of vLLM, SGLang and FlashInfer do not carry NCCL in their names."""
    assert role(name) == "all_reduce"


def test_hyperloom_1047_under_recorded_replays_are_refused(tmp_path):
    """Kernels of two of four replays were lost: their time is not idle, and the report must say that it cannot tell."""
    events = [e for i in (0, 3) for e in hip_graph(i + 1, 100 * i, 100 * i + 10, 100 * i + 20)]
    lost = [runtime("hipGraphLaunch", 100 * i, 1, i + 1) for i in (1, 2)]
    found = say(kineto(tmp_path, [*events, *lost]))
    assert warns(found, r"\b2\b", "graph", "launch|replay")


# SGLang, roctracer


def test_sglang_31545_kernels_in_one_late_burst(tmp_path):
    """On ROCm the kernels of every step come after all step marks: they belong to the step that launched them."""
    marks = [annotation("step[DECODE bs=1]", 100 * i, 90) for i in range(3)]
    late = [e for i in range(3) for e in hip_graph(i + 1, 100 * i + 5, 900 + 20 * i, 910 + 20 * i)]
    found = say(kineto(tmp_path, [*marks, *late]))
    steps = [(s["phase"], s["start_ns"], s["kernels"], s["ledger"]["busy"]) for s in found["steps"]]
    assert found["summary"][0]["source"] == "SGLang step annotations"
    assert steps == [("decode", 900_000 + 20_000 * i, 2, 18_000) for i in range(3)]


def test_roctracer_100_correlation_zero_links_to_nothing(tmp_path):
    """Collectives carry correlation 0: they must not be linked to some other call without a correlation."""
    other = runtime("hipGetDevice", 0, 1, 0)
    gemm = [runtime("hipLaunchKernel", 2, 1, 5), kernel("gemm", 10, 5, 5)]
    collective = [runtime("hipExtLaunchKernel", 4, 1, 29170), kernel("ncclDevKernel_Generic(ncclDevComm*)", 20, 5, 0)]
    path = kineto(tmp_path, [other, *gemm, *collective])
    assert load(path).gpu["api_row"].tolist() == [1, -1]
    assert account(path) == {"busy": 10_000, "unknown": 5_000}
    assert warns(say(path), "1 of 2 ops")


# nsys-ai


def rows(*spans: tuple[int, int], **more: Any) -> list[dict]:
    """(start, end) of GPU rows in ns, with correlations 1, 2, ..."""
    return [{"start": s, "end": e, "corr": i, "name": f"k{i}", **more} for i, (s, e) in enumerate(spans, 1)]


def calls(*spans: tuple[int, int], name: str = "cudaLaunchKernel_v7000", **more: Any) -> list[dict]:
    return [{"start": s, "end": e, "corr": i, "name": name, **more} for i, (s, e) in enumerate(spans, 1)]


def test_nsysai_599_copies_are_not_idle(tmp_path):
    """Only kernels were counted: a copy between them was idle time."""
    copy = {"start": 200, "end": 290, "corr": 9, "bytes": 8, "copyKind": 1, "srcKind": 1, "dstKind": 2}
    path = nsys(tmp_path, KERNEL=rows((100, 200), (300, 400)), MEMCPY=[copy], RUNTIME=calls((10, 20), (30, 40)))
    assert account(path) == {"busy": 290, "dependency": 10}
    assert [(c["what"], c["bytes"]) for c in say(path)["copies"]] == [("copy HtoD (pinned -> device)", 8)]


def test_nsysai_240_idle_of_streams_is_not_headroom(tmp_path):
    """Idle time was added up per stream: two streams that take turns left a device "idle" that never was."""
    turns = [*rows((100, 200), (300, 400), stream=7), *rows((200, 300), (400, 500), stream=8)]
    assert account(nsys(tmp_path, KERNEL=turns)) == {"busy": 400}


def test_nsysai_574_utilisation_stays_below_100_percent(tmp_path):
    """Kernel time was summed over streams: 112.5% utilisation."""
    both = [*rows((100, 500), stream=7), *rows((100, 150), (450, 600), stream=8)]
    path = nsys(tmp_path, KERNEL=both)
    found = say(path)
    assert account(path) == {"busy": 500}
    assert found["steps"][0]["overlapped_ns"] == 100
    assert sum(k["share"] for k in found["kernels"]) == pytest.approx(1)


def test_nsysai_574_streams_of_two_devices_are_not_one(tmp_path):
    """The same stream number on several devices was one row of more than 100%."""
    torch = kineto(tmp_path, [kernel("a", 1, 4, 1, device=0), kernel("b", 2, 8, 2, device=1)])
    nvidia = nsys(tmp_path, KERNEL=[*rows((1_000, 5_000), device=0), *rows((2_000, 10_000), device=1)])
    for path in (torch, nvidia):
        assert {s["device"]: s["ledger"]["busy"] for s in say(path)["steps"]} == {0: 4_000, 1: 8_000}
        assert account(path, device=1) == {"busy": 8_000}


def test_nsysai_584_a_graph_launch_is_a_launch(tmp_path):
    """cudaGraphLaunch was not among the launching calls."""
    nodes = [r | {"corr": 5, "graphNodeId": 60 + i} for i, r in enumerate(rows((200, 300), (300, 400), (400, 500)))]
    launched = {"start": 50, "end": 90, "corr": 5, "name": "cudaGraphLaunch_v10000"}
    path = nsys(tmp_path, KERNEL=[*rows((100, 150)), *nodes], RUNTIME=[*calls((10, 20)), launched])
    (row,) = say(path)["launches"]
    assert (row["launches"], row["graph_launches"], row["ops"], row["unlinked"], row["launch_ns"]) == (2, 1, 4, 0, 50)


def test_nsysai_291_no_nvtx_table(tmp_path):
    """A file without NVTX_EVENTS failed: the table is made only when a range was recorded."""
    path = nsys(tmp_path, KERNEL=rows((100, 200)), RUNTIME=calls((10, 20)))
    assert account(path) == {"busy": 100}
    with pytest.raises(Missing, match=r"no table NVTX_EVENTS.*add nvtx to --trace"):
        load(path).host  # noqa: B018


def decode_loop(tmp_path: Path) -> Path:
    """Four marked steps of one kernel each; the first has one more on stream 8, a copy and a synchronise as well."""
    events = [e for i in range(4) for e in launch("decode", 100 * i + 20, 10, i + 1, call=100 * i + 10)]
    events += [annotation(f"decode_step_{i}", 100 * i, 90) for i in range(4)]
    events += launch("only first", 40, 5, 11, call=30, stream=8)
    events += [runtime("cudaMemcpyAsync", 41, 1, 12), memcpy("HtoD (Pinned -> Device)", 50, 5, 12)]
    return kineto(tmp_path, [*events, runtime("cudaStreamSynchronize", 60, 5, 13)])


def test_nsysai_493_the_chosen_window_is_honoured(tmp_path):
    """--trim was ignored by half of the analyses."""
    path = decode_loop(tmp_path)
    whole, later = say(path), say(path, skip=1)
    assert {k["name"] for k in whole["kernels"]} == {"decode", "only first", "Memcpy HtoD (Pinned -> Device)"}
    assert {k["name"] for k in later["kernels"]} == {"decode"}
    assert whole["copies"]
    assert not later["copies"]
    assert [r["step"] for r in later["launches"]] == [1, 2]
    assert {g["step"] for g in later["gaps"]} <= {1, 2}
    assert [s["focus_calls"] for s in whole["syncs"]] == [1]
    assert [s["focus_calls"] for s in later["syncs"]] == [0]
    assert {k["name"] for k in say(path, stream=8)["kernels"]} == {"only first"}
    assert say(path, steps="decode_step_2")["summary"][0]["counted"] == 1


@pytest.mark.parametrize("choice", [{"steps": "nothing"}, {"device": 3}, {"stream": 99}])
def test_nsysai_503_an_empty_window_is_refused(tmp_path, choice):
    """A window without any kernel was reported healthy."""
    path = decode_loop(tmp_path)
    with pytest.raises(UserError) as refusal:
        say(path, **choice)
    assert re.search(r"no (range|activity).*it has .*\.$", str(refusal.value))


def test_nsysai_503_a_focus_without_steps_is_not_judged(tmp_path):
    """The same for a phase that the recording does not hold."""
    found = say(decode_loop(tmp_path), focus="prefill")
    assert found["summary"][0]["counted"] == 0
    with pytest.raises(UserError, match="no prefill step"):
        check.judge(found, {"wall": 10**9})


def test_nsysai_215_library_ranges_are_no_iterations(tmp_path):
    """NVTX ranges of cub became 325 iterations of a run that had none."""
    names = ["cub::DeviceRadixSort", "cub::DeviceReduce::Sum", "cub::DeviceSelect::Flagged", "cub::DeviceReduce::Sum"]
    spans = [(1_000 * i + 100, 1_000 * i + 300 + 50 * i) for i in range(4)]
    path = nsys(
        tmp_path,
        NVTX=[{"start": 1_000 * i, "end": 1_000 * i + 90, "name": n} for i, n in enumerate(names)],
        RUNTIME=calls(*((s - 80, s - 50) for s, _ in spans)),
        KERNEL=rows(*spans),
    )
    found = say(path)
    assert len(found["steps"]) == 1
    assert found["summary"][0]["source"].startswith("none found")
    assert warns(found, "decode step begin")


def test_nsysai_235_the_version_is_read(tmp_path):
    """The version of Nsight Systems was never found in META_DATA_EXPORT."""
    meta = {"EXPORT_PRODUCT_VERSION": "2025.3.2.0", "EXPORT_SCHEMA_VERSION": "3.20.3"}
    lock = load(nsys(tmp_path, KERNEL=rows((100, 200)), META_DATA_EXPORT=meta)).lock
    assert (lock["nsys"], lock["schema"]) == ("2025.3.2.0", "3.20.3")


def stalled(tmp_path: Path, **waiting: int) -> Path:
    """A gap of 18.6 ms, and a cudaDeviceSynchronize of 856.89 ms that covers 15.89 ms of it."""
    wait = {"start": 1 * MS, "end": 857_890_000, "corr": 9, "name": "cudaDeviceSynchronize_v3020", **waiting}
    launches = calls((500, 600), (858 * MS, 858_100_000))
    return nsys(tmp_path, KERNEL=rows((2 * MS, 842 * MS), (860_600_000, 861 * MS)), RUNTIME=[*launches, wait])


def test_nsysai_sync_charge_is_clipped_to_the_gap(tmp_path):
    """A gap of 18.6 ms was charged 856.89 ms of synchronisation."""
    path = stalled(tmp_path)
    (row,) = say(path)["syncs"]
    assert (row["blocked_ns"], row["idle_caused_ns"]) == (856_890_000, 16 * MS)
    idle = {"sync_stall": 16 * MS, "launch_call": 100_000, "launch_latency": 2_500_000}
    assert account(path) == {"busy": 840_400_000, **idle}


@pytest.mark.parametrize("other", [{"pid": 2}, {"tid": 2}], ids=["process", "thread"])
def test_nsysai_sync_charge_stays_in_its_process_and_thread(tmp_path, other):
    """Calls of other processes and threads were charged with the gap."""
    path = stalled(tmp_path, **other)
    assert sum(row["idle_caused_ns"] for row in say(path)["syncs"]) == 0
    idle = {"host_bound": 16 * MS, "launch_call": 100_000, "launch_latency": 2_500_000}
    assert account(path) == {"busy": 840_400_000, **idle}


# ninfer, imp, tracy, flameox, chakra


def whole_graph(tmp_path: Path) -> Path:
    """One kernel of 7 ns, and a graph traced whole that runs 993 ns."""
    launched = {"start": 50, "end": 90, "corr": 5, "name": "cudaGraphLaunch_v10000"}
    span = {"start": 107, "end": 1_100, "corr": 5, "graphId": 3, "graphExecId": 4}
    mode = {"PROCESS_0:CUDA_GRAPH_TRACE_OPTIONS:MODE": "Graph"}
    kernels = {"KERNEL": rows((100, 107)), "RUNTIME": [*calls((10, 20)), launched]}
    return nsys(tmp_path, **kernels, GRAPH_TRACE=[span], META_DATA_CAPTURE=mode)


def test_ninfer_53_a_graph_traced_whole_is_busy(tmp_path):
    """In Nsight's default graph mode a graph has no kernel rows: 99.3% of the time was "idle"."""
    assert account(whole_graph(tmp_path)) == {"busy": 1_000}


def test_kernels_of_a_graph_traced_whole_are_refused_with_the_flag_that_adds_them(tmp_path):
    """Opaque is neither idle nor a kernel: what cannot be seen is said, with how to record it."""
    path = whole_graph(tmp_path)
    found = say(path)
    (row,) = found["graphs"]
    assert (row["launches"], row["kernels"], row["nodes"], row["gaps_ns"], row["busy_ns"]) == (1, -1, -1, -1, 993)
    (answer,) = [c for c in found["cannot_say"] if "inside the CUDA graphs" in c["question"]]
    assert "traced whole (mode graph)" in answer["reason"]
    assert "--cuda-graph-trace=node" in answer["remedy"]
    with pytest.raises(Missing, match="--cuda-graph-trace=node"):
        load(path).require("gpu.graph_node")
    assert found["steps"][0]["kernels"] == 1


def test_imp_1928_the_window_starts_with_the_gpu(tmp_path):
    """The window was anchored at a host event 10 s before the first kernel: all rates were wrong."""
    early = -10_000 * MS
    domain = {"start": early, "end": None, "eventType": 75, "text": "CCCL"}
    setup = {"start": early, "end": early + 5, "corr": 99, "name": "cudaMalloc_v3020"}
    path = nsys(
        tmp_path, NVTX=[domain], RUNTIME=[setup, *calls((10, 20), (30, 40))], KERNEL=rows((100, 200), (220, 300))
    )
    assert account(path) == {"busy": 180, "dependency": 20}
    assert say(path)["summary"][0]["wall_ns"]["mean"] == 200


def test_tracy_1330_one_correlation_for_a_whole_graph(tmp_path):
    """All records of a graph launch share its correlation: kernels, copies and memsets link to that one call."""
    node = {"corr": 5, "graphNodeId": 60}
    path = nsys(
        tmp_path,
        RUNTIME=[{"start": 50, "end": 90, "corr": 5, "name": "cudaGraphLaunch_v10000"}],
        KERNEL=[{"start": 100, "end": 200, "name": "a", **node}, {"start": 250, "end": 300, "name": "b", **node}],
        MEMCPY=[{"start": 200, "end": 210, "bytes": 8, "copyKind": 8, **node}],
        MEMSET=[{"start": 230, "end": 240, "bytes": 4, "memKind": 2, **node}],
    )
    assert load(path).gpu["api_row"].tolist() == [0, 0, 0, 0]
    assert account(path) == {"busy": 170, "graph_dependency": 30}
    assert [(g["launches"], g["kernels"], g["nodes"]) for g in say(path)["graphs"]] == [(1, 2, 4)]


@pytest.mark.parametrize("version", ["2.9.1", "3.20.3", "3.28.1", "9.0.0"])
def test_flameox_190_schema_versions(tmp_path, version):
    """Columns come and go with EXPORT_SCHEMA_VERSION: what a schema lacks is unknown, never a number."""
    old = [{"start": 100, "end": 200, "corr": 1, "shortName": "k"}]
    trace = load(
        nsys(tmp_path, KERNEL=old, RUNTIME=calls((10, 20)), META_DATA_EXPORT={"EXPORT_SCHEMA_VERSION": version})
    )
    (row,) = trace.gpu.to_dict("records")
    assert trace.lock["schema"] == version
    assert (row["name"], row["api_row"], row["end"] - row["start"]) == ("k", 0, 100)
    assert (row["grid"], row["block"], row["regs"], row["smem"], row["graph_node"]) == ("", "", -1, -1, -1)


@pytest.mark.parametrize("column", ["start", "end", "deviceId"])
def test_flameox_190_a_renamed_column_is_refused(tmp_path, column):
    """A needed column under another name was read as if it were there."""
    row = {"start": 100, "end": 200, "deviceId": 0, "streamId": 7, "correlationId": 1, "globalPid": 1, "shortName": 0}
    renamed = {key + ("_v2" if key == column else ""): value for key, value in row.items()}
    path = nsys(tmp_path, CUPTI_ACTIVITY_KIND_KERNEL=[renamed], META_DATA_EXPORT={"EXPORT_SCHEMA_VERSION": "4.0.0"})
    with pytest.raises(TraceError, match=rf"CUPTI_ACTIVITY_KIND_KERNEL.*{column}"):
        load(path)


def test_chakra_194_a_kernel_without_a_runtime_op(tmp_path):
    """A kernel whose launch was not recorded stopped the reader."""
    path = kineto(tmp_path, [*queued((10, 5)), kernel("orphan", 20, 5, 77), cpu_op("aten::mm", 0, 2)])
    assert load(path).gpu["api_row"].tolist() == [0, -1]
    assert account(path) == {"busy": 10_000, "unknown": 5_000}
    assert warns(say(path), "1 of 2 ops have no recorded launch")


# Facts of the formats


def test_correlations_repeat_across_processes(tmp_path):
    """Without the process in the join one file gave 1643 rows for 1632, and launches of a stranger."""
    kernels = [*rows((1_000, 1_100), pid=11, device=0), *rows((2_000, 2_100), pid=22, device=1)]
    launches = [*calls((10, 20), pid=22), *calls((500, 600), pid=11), *calls((800, 900), pid=33)]
    trace = load(nsys(tmp_path, KERNEL=kernels, RUNTIME=launches))
    assert trace.gpu["pid"].tolist() == [11, 22]
    assert trace.api["pid"].to_numpy()[trace.gpu["api_row"]].tolist() == [11, 22]
    assert len(trace.gpu) == 2


def test_nvtx_text_is_in_text_or_in_textid(tmp_path):
    """One row has text, the next textId; either may be NULL."""
    spans = [{"start": 100 * i, "end": 100 * i + 50} for i in range(4)]
    named = [{"text": "plain"}, {"name": "interned"}, {"text": None, "name": "both"}, {"eventType": 34, "text": "mark"}]
    ranges = [span | name for span, name in zip(spans, named, strict=True)]
    host = load(nsys(tmp_path, NVTX=[ranges[3], *ranges[:3]])).host
    assert list(zip(host["name"], host["start"], strict=True)) == [("plain", 0), ("interned", 100), ("both", 200)]


SUFFIXED = {
    "cudaLaunchKernel_v7000": ("cudaLaunchKernel", ""),
    "cudaLaunchKernelExC_v11060": ("cudaLaunchKernelExC", ""),
    "cudaGraphLaunch_ptsz_v10000": ("cudaGraphLaunch", ""),
    "cudaMemcpyAsync_ptsz_v7000": ("cudaMemcpyAsync", ""),
    "cudaMemcpy_v3020": ("cudaMemcpy", "copy"),
    "cudaStreamSynchronize_ptsz": ("cudaStreamSynchronize", "stream"),
    "cudaEventSynchronize_v3020": ("cudaEventSynchronize", "event"),
    "cudaDeviceSynchronize_v3020": ("cudaDeviceSynchronize", "device"),
    "cudaStreamWaitEvent_v3020": ("cudaStreamWaitEvent", ""),
    "cudaFree_v3020": ("cudaFree", "free"),
    "cuMemcpyDtoH_v2": ("cuMemcpyDtoH", "copy"),
    "cuMemcpyDtoHAsync_v2_ptsz": ("cuMemcpyDtoHAsync", ""),
    "hipMemcpyWithStream": ("hipMemcpyWithStream", "copy"),
}


@pytest.mark.parametrize("name", SUFFIXED)
def test_api_names_lose_their_suffixes(tmp_path, name):
    """Nsight appends versions and _ptsz to the names of calls; both readers must see the same call."""
    nvidia = load(nsys(tmp_path, RUNTIME=calls((0, 9), name=name)))
    torch = load(kineto(tmp_path, [runtime(name, 0, 9, 1)]))
    for trace in (nvidia, torch):
        assert trace.api[["name", "sync_kind"]].to_numpy().tolist() == [list(SUFFIXED[name])]


GPUS = [{"id": 0, "name": "NVIDIA A"}, {"id": 1, "name": "NVIDIA B"}]


def test_cuda_visible_devices_maps_the_name(tmp_path):
    """With CUDA_VISIBLE_DEVICES=1 the program's device 0 is the machine's GPU 1."""
    seen = [{"gpuId": 1, "cudaId": 0, "pid": 1}]
    path = nsys(tmp_path, KERNEL=rows((100, 200)), TARGET_INFO_GPU=GPUS, TARGET_INFO_CUDA_DEVICE=seen)
    assert load(path).device_name(0) == "NVIDIA B"


def test_cuda_visible_devices_of_two_processes_are_two_gpus(tmp_path):
    """Two processes see one GPU each, both as device 0: their work must not be put on one timeline."""
    kernels = [*rows((100, 200), pid=11), *rows((150, 350), pid=22)]
    seen = [{"gpuId": gpu, "cudaId": 0, "pid": pid} for gpu, pid in ((0, 11), (1, 22))]
    path = nsys(tmp_path, KERNEL=kernels, TARGET_INFO_GPU=GPUS, TARGET_INFO_CUDA_DEVICE=seen)
    trace = load(path)
    assert sorted(trace.device_name(d) for d in devices(trace)) == ["NVIDIA A", "NVIDIA B"]
    assert sorted(s["ledger"]["busy"] for s in report(trace)["steps"]) == [100, 200]

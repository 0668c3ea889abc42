"""Other people's recordings and public models on an H200, against an independent computation (oracle.json)."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import SHARED

from ling_prof import Missing, Options, Trace, UserError, load, report
from ling_prof.analyses import run
from ling_prof.intervals import total, union
from ling_prof.timeline import CLASSES
from ling_prof.view import view

ORACLE = json.loads((SHARED / "oracle.json").read_text()) if (SHARED / "oracle.json").exists() else {}
READABLE = sorted(name for name, truth in ORACLE.items() if truth.get("devices"))


def find(name: str) -> Path:
    here = SHARED / name
    return here if here.exists() else SHARED / "broken" / name


def nanoseconds(us: float) -> int:
    return round(us * 1000)


@pytest.fixture(scope="module", params=READABLE or [pytest.param("", marks=pytest.mark.skip("../shared absent"))])
def case(request, shared) -> tuple[Trace, dict]:
    return load(find(request.param)), ORACLE[request.param]


def test_busy_span_and_counts_are_exact(case):
    trace, truth = case
    gpu = trace.gpu[trace.gpu["kind"] != "graph"]
    assert (gpu["kind"] == "kernel").sum() == truth["n_kernels"]
    for device, expected in truth["devices"].items():
        mine = gpu[gpu["device"] == int(device)]
        start, end = mine["start"].to_numpy(), mine["end"].to_numpy()
        assert len(mine) == expected["activities"]
        assert total(union(start, end)) == nanoseconds(expected["busy_us"])
        assert end.max() - start.min() == nanoseconds(expected["span_us"])
        assert (end - start).sum() == nanoseconds(expected["sum_dur_us"])


def test_calls_are_counted_by_name(case):
    trace, truth = case
    counts = trace.api["name"].value_counts().to_dict() if trace.has("api") else {}
    assert {name: counts.get(name, 0) for name in truth["runtime_names"]} == truth["runtime_names"]
    assert sum(n for name, n in counts.items() if "Synchronize" in name) == truth["n_sync"]


def test_every_ledger_adds_up_and_no_gap_is_negative(case):
    trace, _ = case
    seen = view(trace)
    ledger = run("ledger", seen)
    assert (ledger[list(CLASSES)].sum(axis=1) == ledger["wall"]).all()
    assert (ledger[list(CLASSES)] >= 0).all(axis=None)
    assert (seen.timeline.gaps.end > seen.timeline.gaps.start).all()
    pieces = seen.timeline.pieces
    assert (pieces.start[1:] == pieces.end[:-1]).all()
    assert (pieces.length > 0).all()


def test_a_whole_report_survives_a_round_trip(case):
    trace, _ = case
    found = report(trace)
    assert type(found).from_json(found.to_json()).data == json.loads(found.to_json())
    for summary in (s for s in found["summary"] if s["rounds"]):
        assert sum(row["mean"] for row in summary["ledger"].values()) == summary["wall_ns"]["mean"]


def test_what_holds_no_gpu_activity_says_so(shared):
    for name in ("ecf_baseline_nvtx_only.sqlite.gz", "hta_cpu_only_rank34.pt.trace.json.gz", "hta_no_distinfo.json.gz"):
        with pytest.raises(Missing, match="GPU times"):
            report(load(find(name)))


def test_programmatic_launch_is_overlap_not_negative_idle(shared):
    row = run("ledger", view(load(shared / "h200_triton_chain_pdl1.json.gz"))).iloc[0]
    assert (row["busy"], row["wall"], row["overlapped"]) == (257_763, 260_611, 926_210)


def test_opaque_graphs_are_busy_and_their_kernels_are_refused(shared):
    whole = load(shared / "h200_hf_qwen3_graph_whole.nsys2025.3.sqlite.gz")
    nodes = load(shared / "h200_hf_qwen3_graph_nodes.nsys2025.3.sqlite.gz")
    busy = [total(union(t.gpu["start"].to_numpy(), t.gpu["end"].to_numpy())) for t in (whole, nodes)]
    assert (whole.gpu["kind"] == "graph").sum() == 8
    assert busy[0] == pytest.approx(busy[1], rel=0.05)
    with pytest.raises(Missing, match="--cuda-graph-trace=node"):
        whole.require("gpu.graph_node")
    assert (run("graphs", view(whole))[["kernels", "nodes", "gaps_ns"]] == -1).all(axis=None)
    assert any("--cuda-graph-trace=node" in row["remedy"] for row in report(whole)["cannot_say"])


@pytest.mark.parametrize("name", ["h200_hf_qwen3_graph_whole", "h200_hf_kimi_linear_eager"])
def test_library_ranges_make_no_steps(shared, name):
    steps = view(load(shared / f"{name}.nsys2025.3.sqlite.gz")).steps.table
    assert not steps["name"].str.contains("cub::").any()


KIMI = ("h200_hf_kimi_linear_eager.pt.trace.json.gz", "h200_hf_kimi_linear_eager.nsys2025.3.sqlite.gz")


def counts(steps) -> list[tuple[str, int]]:
    return list(zip(steps.table["phase"], steps.table["kernels"], strict=True))


@pytest.mark.parametrize("name", KIMI)
def test_kimi_steps(shared, name):
    assert counts(view(load(shared / name)).steps) == [("prefill", 4092)] + [("decode", 915)] * 8


def without_ranges(trace: Trace) -> Trace:
    host = trace.host[~trace.host["kind"].isin(["annotation", "nvtx"])].reset_index(drop=True)
    return replace(trace, tables={**trace.tables, "host": host})


@pytest.mark.parametrize("name", KIMI)
def test_kimi_steps_by_period_alone(shared, name):
    marked = view(load(shared / name)).steps.table
    bare = view(without_ranges(load(shared / name))).steps
    assert bare.source == "the period of the kernel names"
    assert bare.table[["phase", "start"]].equals(marked[["phase", "start"]])


def test_kimi_kernel_time_agrees_between_profilers(shared):
    times = [run("ledger", view(load(shared / name)))["busy"].to_numpy() for name in KIMI]
    assert np.allclose(times[0], times[1], rtol=0.01)


def test_kimi_read_back_is_named_once_a_step_and_the_host_is_the_bound(shared):
    trace = load(shared / "h200_hf_kimi_linear_eager_stacks.pt.trace.json.gz")
    syncs = run("syncs", view(trace))
    row = syncs[syncs["site"].str.startswith("aten::item") & syncs["site"].str.contains("_sample")]
    assert row[["calls", "steps"]].values.tolist() == [[9, 9]]
    assert "transformers/generation/utils.py" in row["site"].iat[0]
    ledger = run("ledger", view(trace))
    assert (ledger[list(CLASSES)].idxmax(axis=1) == "host_bound").all()


def test_qwen_steps_hold_one_graph_launch_and_one_synchronise(shared):
    seen = view(load(shared / "h200_hf_qwen3_graph.pt.trace.json.gz"))
    assert (run("launches", seen)["graph_launches"] == 1).all()
    api = seen.trace.api
    at = seen.step_of_call(
        api["start"].to_numpy()[np.asarray(api["name"] == "cudaStreamSynchronize")], seen.steps.table
    )
    assert np.bincount(at[at >= 0]).tolist() == [1] * 8


@pytest.mark.parametrize("rank", [0, 1])
def test_qwen_tp2_steps_by_period(shared, rank):
    steps = view(load(shared / f"h200_hf_qwen3_tp2-TP-{rank}.pt.trace.json.gz")).steps
    assert steps.table["phase"].tolist() == ["prefill"] + ["decode"] * 5


@pytest.mark.parametrize(
    ("name", "mark"),
    [
        ("tl_sglang_deepseek_r1_b300_decode", "step[DECODE bs=16]"),
        ("tl_vllm_decode_full", "execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32"),
    ],
)
def test_one_decode_step_from_its_own_annotation(shared, name, mark):
    steps = view(load(shared / f"{name}.json.gz")).steps.table
    assert steps["phase"].tolist() == ["decode"]
    assert steps["name"].iat[0].startswith(mark)


def test_sglang_graph_gaps_and_seam(shared):
    trace = load(shared / "h200_sglang_ling3tiny_decode-TP-0.trace.json.gz")
    seen = view(trace, Options(unprofiled_tpot=2_130_000))
    assert set(seen.chosen["name"]) == {"step[DECODE bs=1]"}
    graph = run("graphs", seen)
    assert graph["nodes"].tolist() == [548]
    assert graph["busy_ns"].iat[0] == pytest.approx(1.95e6, rel=0.01)
    assert graph["gaps_ns"].iat[0] == pytest.approx(0.17e6, rel=0.03)
    summary = report(trace, seen.options)["summary"][0]
    host = ("host_bound", "sync_stall", "launch_call", "launch_latency")
    assert sum(summary["ledger"][c]["mean"] for c in host) > 2_200_000
    assert sum(summary["calibrated"][c]["mean"] for c in host) < 20_000
    assert sum(row["mean"] for row in summary["calibrated"].values()) == 2_130_000


def test_sglang_seam_is_attributed_to_its_functions(shared):
    seams = run("seams", view(load(shared / "h200_sglang_ling3tiny_decode_stacks-TP-0.trace.json.gz")))
    assert seams["share"].sum() == pytest.approx(1)
    named = seams[seams["site"].str.contains(r"\(sglang/.+\.py:\d+\)")]
    assert named["share"].sum() > 0.8


def test_sglang_speculative_rounds(shared):
    steps = view(load(shared / "h200_sglang_ling3flash12_nextn_stacks-TP-0.trace.json.gz")).steps.table
    rounds = steps[steps["round"] >= 0].groupby("round")["phase"].agg(list)
    assert all(phases == ["draft", "verify", "extend"] for phases in rounds)


def test_the_pin_is_named_by_its_function(shared):
    syncs = run("syncs", view(load(shared / "h200_sglang_ling3flash12_nextn_hostpin_stacks-TP-0.trace.json.gz")))
    pin = syncs[syncs["site"].str.contains("resolve_seq_lens_cpu")]
    rounds = 6
    assert pin["focus_calls"].sum() == rounds
    without = run("syncs", view(load(shared / "h200_sglang_ling3flash12_nextn_stacks-TP-0.trace.json.gz")))
    assert not without["site"].str.contains("resolve_seq_lens_cpu").any()


def test_a_pattern_that_matches_nothing_says_what_there_is(shared):
    trace = load(shared / "h200_hf_kimi_linear_eager.pt.trace.json.gz")
    with pytest.raises(UserError, match="decode_step_1"):
        view(trace, Options(steps="nothing like it"))
    with pytest.raises(UserError, match="not a regular expression"):
        view(trace, Options(steps="("))
    assert set(view(trace, Options(steps="decode_step")).steps.table["phase"]) == {"decode"}

"""The benchmark beside other tools: how their words become rows, and that one which fails is a row. No tool is run."""

import json
import os
import subprocess
import sys

import pytest
from conftest import BUNDLED

ROOT = BUNDLED.parent
NSYS = """\
Processing [x.sqlite] with [rules/cuda_api_sync.py]...

 ** CUDA Synchronization APIs (cuda_api_sync):

These calls block
the host.

Suggestions:
   1. Fewer of them.

 Duration (ns)  Start (ns)  API Name
 -------------  ----------  ---------------------
     1,645,612  57,826,729  cudaStreamSynchronize
       645,612  57,926,729  cudaStreamSynchronize

Processing [x.sqlite] with [rules/gpu_gaps.py]...

 ** GPU Gaps (gpu_gaps):

No gap found.

Processing [x.sqlite] with [rules/dx12_mem_ops.py]...
SKIPPED: x.sqlite has no such data.
"""
NSYS_AI = """\
(No significant GPU idle gaps found — GPU is well-utilized)
── Compute/Communication Overlap ──
  Total span:    187.1ms
  Compute only:  25.8ms
  Idle:          161.4ms
  ⚡ CPU Sync:     0.1ms (global host-side blocking)
"""
FINDINGS = [{"severity": "info", "label": "Critical path is cpu-bound", "note": "86%"}] + 2 * [
    {"severity": "warning", "label": "Small kernels", "note": ""}
]
HTA = {
    "temporal": {"idle": 40.0, "span": 100.0},
    "unrounded": {"error": "AssertionError in a.py: assert x"},
    "idle": {"host_wait": 90.0, "kernel_wait": -724.0, "other": 0.0},
    "launches": 3,
    "critical": {"cpu_bound": 1.0, "gpu_kernel_kernel_overhead": 3.0},
}
TRUE = {
    "span": 100_000,
    "busy": 75_000,
    "kernels": 3,
    "devices": 1,
    "steps": "4 steps of 0.025 ms",
    "ledger": {"busy": 0.75, "sync_stall": 0.25},
    "sync": "6.2 us a step by cudaStreamSynchronize at a < b|c",
    "oracle": True,
}


@pytest.fixture
def peers_page(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import peers_page

    yield peers_page
    del sys.modules["peers_page"]


def test_nsys_answers_by_rule_with_its_rows_counted(peers_page):
    assert peers_page.of_nsys({"text": NSYS}).lines == [
        "cuda_api_sync: These calls block the host. (2 rows)",
        "gpu_gaps: No gap found.",
    ]
    assert peers_page.of_nsys({"text": "Processing [a] with [b.py]... \n\n"}).lines == ["no rule says anything"]
    skips = "SKIPPED: a could not be analyzed because it does not contain the required {} data. Does it?\n"
    text = 2 * skips.format("CUDA") + skips.format("DX12")
    assert peers_page.of_nsys({"text": text}).lines == [
        "rules skipped for want of CUDA data: 2",
        "rules skipped for want of DX12 data: 1",
    ]


def test_nsys_ai_answers_with_its_verdict_and_its_idle_share(peers_page):
    said = peers_page.of_nsys_ai({"report": NSYS_AI, "findings": FINDINGS})
    assert said.idle == pytest.approx(161.4 / 187.1)
    assert said.lines == [
        "idle gaps: (No significant GPU idle gaps found — GPU is well-utilized)",
        "overlap breakdown: idle 161.400 ms of 187.100 ms (86.3 %)",
        "CPU Sync: 0.1ms (global host-side blocking)",
        "Critical path is cpu-bound: 86%",
        "findings: 1 info, 2 warning",
    ]


def test_hta_answers_each_question_or_says_what_stopped_it(peers_page):
    said = peers_page.of_hta(HTA)
    assert (said.idle, said.unrounded) == (0.4, None)
    assert said.lines == [
        "temporal breakdown: idle 40.0 us of 100.0 us (40.0 %)",
        "the same with HTA_DISABLE_NS_ROUNDING=1: AssertionError in a.py: assert x",
        "idle time breakdown, all streams: host_wait 90.0 us, kernel_wait -724.0 us",
        "launch statistics: 3 kernels",
        "critical path: kernel-kernel overhead 75.0 %, CPU 25.0 %",
    ]
    assert peers_page.of_hta({"load": {"error": "no JSON"}}).lines == ["stops reading: no JSON"]


def test_the_page_holds_what_is_true_beside_what_is_said(peers_page):
    tools = {
        "HolisticTraceAnalysis": {"version": "0.5", "date": "2026-01-02", "said": {"a.json": HTA}},
        "traceinsight": {"version": "0.6", "date": "2026-01-02", "said": {"a.json": {"error": "stopped after 9 s"}}},
    }
    page = peers_page.page("python peers.py", "2026-01-03", {"a.json": TRUE, "b.json": {"error": "no <file>"}}, tools)
    assert "Made by `python peers.py` on 2026-01-03." in page
    assert "| HolisticTraceAnalysis | 0.5 | 2026-01-02 |" in page
    assert "| a.json | 25.0 % | 40.0 % | no answer |" in page
    assert "| HolisticTraceAnalysis 0.5 | 1 | 1 | 0 | 15.0 | 15.0 |" in page
    assert "idle 25.0 us of 100.0 us (25.0 %), 3 kernels<br>4 steps of 0.025 ms: busy 75.0 %, sync_stall 25.0 %" in page
    assert "at a &lt; b\\|c" in page
    assert "| traceinsight 0.6 | stopped after 9 s |" in page
    assert "no &lt;file&gt;" in page
    assert "nsys is missing" in page
    assert "finds the same for 1 of the 1" in page


def collect(folder, nsys, *options):
    """What peers.py collects of a bundled recording with this script in the place of nsys, and no package at hand."""
    program = folder / "nsys"
    program.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo NVIDIA Nsight Systems version 1.2 && exit\n{nsys}\n')
    program.chmod(0o755)
    recording = BUNDLED / "h200_qwen3_graph_whole.sqlite.gz"
    command = [sys.executable, "-I", "-S", str(ROOT / "benchmarks/peers.py"), str(recording), "--only", "nsys"]
    place = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    subprocess.run([*command, "--output", str(folder / "out.json"), *options], env=place, check=True)
    (ran,) = json.loads((folder / "out.json").read_text()).values()
    assert ran["version"] == "1.2"
    return ran["said"][recording.name]


def test_nsys_is_given_the_unpacked_recording(tmp_path):
    said = collect(tmp_path, 'echo "$@" && head -c 15 "$2"')
    assert said == {"text": "analyze h200_qwen3_graph_whole.sqlite\nSQLite format 3"}


def test_a_tool_that_fails_or_hangs_is_a_row(tmp_path):
    assert collect(tmp_path, "echo first >&2; echo bad file >&2; exit 3") == {"error": "exit code 3: bad file"}
    assert collect(tmp_path, "exec sleep 60", "--timeout", "0.5") == {"error": "stopped after 0.5 s"}

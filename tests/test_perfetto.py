"""The export for Perfetto, read back."""

import gzip
import json
from collections import defaultdict
from itertools import pairwise

import numpy as np
import pytest
from conftest import BUNDLED
from test_cli import DEMO, process, refused
from timelines import Recording

import ling_prof
from ling_prof.render.perfetto import GPU, LEDGER, STEPS, STREAMS, export
from ling_prof.timeline import CLASSES


def read(path):
    data = path.read_bytes()
    return json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)["traceEvents"]


def exported(trace, tmp_path):
    export(trace, tmp_path / "out.json.gz")
    return read(tmp_path / "out.json.gz")


def slices(found, pid=None):
    return [e for e in found if e["ph"] == "X" and (pid is None or e["pid"] == pid)]


def on_streams(found):
    return [e for e in slices(found) if e["pid"] >= GPU and e["tid"] >= STREAMS]


def assert_no_overlap(events):
    """What a viewer needs: on one track a slice ends before the next begins."""
    tracks = defaultdict(list)
    for event in events:
        tracks[event["pid"], event["tid"]].append((round(event["ts"] * 1e3), round((event["ts"] + event["dur"]) * 1e3)))
    for spans in tracks.values():
        spans.sort()
        assert all(one[1] <= other[0] for one, other in pairwise(spans))


def test_all_200_overlapping_kernels_are_kept(shared, tmp_path):
    found = exported(ling_prof.load(shared / "h200_triton_chain_pdl1.json.gz"), tmp_path)
    kernels = on_streams(found)
    assert len(kernels) == 200
    assert len({event["tid"] for event in kernels}) > 1
    assert_no_overlap(kernels)


@pytest.mark.parametrize("name", ["h200_ling_tiny_graph_nodes.sqlite.gz", "ladder/16-seam_fuse.json.gz"])
def test_every_op_step_and_idle_nanosecond_is_there(name, tmp_path):
    trace = ling_prof.load(BUNDLED / name)
    found, report = exported(trace, tmp_path), ling_prof.report(trace)
    kernels = on_streams(found)
    assert sorted(round(e["ts"] * 1e3) for e in kernels) == sorted(trace.gpu["start"])
    assert sum(round(e["dur"] * 1e3) for e in kernels) == int((trace.gpu["end"] - trace.gpu["start"]).sum())
    assert_no_overlap(kernels)
    gpu = slices(found, GPU)
    assert [e["name"] for e in gpu if e["tid"] == STEPS] == [step["name"] for step in report["steps"]]
    idle = [e for e in gpu if e["tid"] == LEDGER]
    assert {e["name"] for e in idle} <= {*CLASSES} - {"busy"}
    first, last = report["steps"][0]["start_ns"], report["steps"][-1]["end_ns"]
    inside = sum(round(e["dur"] * 1e3) for e in idle if first <= round(e["ts"] * 1e3) < last)
    assert inside == sum(step["wall_ns"] - step["ledger"]["busy"] for step in report["steps"])


def test_flows_lead_from_the_call_to_the_op(tmp_path):
    made = Recording().kernel("a", (0, 5), (10, 60), 1).kernel("b", (20, 25), (70, 90), 2)
    made.call("cudaGraphLaunch", 100, 120, corr=3)
    made.op("c", 130, 140, corr=3, graph_node=1).op("d", 145, 150, corr=3, graph_node=2)
    found = exported(made.trace(), tmp_path)
    begun, done = ([e for e in found if e["ph"] == phase] for phase in "sf")
    assert [e["ts"] for e in begun] == [0, 0.02, 0.1]
    assert [e["ts"] for e in done] == [0.01, 0.07, 0.13]
    assert [e["id"] for e in begun] == [e["id"] for e in done]


def test_names_stay_text(tmp_path):
    name = '<script>alert(1)</script> "quoted" \u00e9\n'
    found = exported(Recording().kernel(name, (0, 5), (10, 60), 1).trace(), tmp_path)
    assert name in {e["name"] for e in on_streams(found)}


def test_tracks_have_names_and_order(tmp_path):
    found = exported(ling_prof.load(DEMO), tmp_path)
    named = {(e["pid"], e["tid"]): e["args"]["name"] for e in found if e["name"] == "thread_name"}
    assert {(e["pid"], e["tid"]) for e in slices(found)} == set(named)
    assert named[GPU, LEDGER].startswith("ledger")
    assert np.unique([e["ts"] >= 0 for e in slices(found)]).tolist() == [True]


def test_the_command_writes_one_file_or_none(tmp_path):
    out = tmp_path / "out.json"
    assert "open it in ui.perfetto.dev" in process("export", DEMO, "--perfetto", str(out)).stdout
    assert len(on_streams(read(out))) > 4000
    assert "one of them" in refused("export", DEMO, "--perfetto", str(out), "--csv", str(tmp_path / "csv"))
    assert "its folder does not exist" in refused("export", DEMO, "--perfetto", str(tmp_path / "no" / "out.json"))
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]

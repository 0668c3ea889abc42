"""Two recordings compared: on timelines small enough to solve by hand, and exactly on every real one."""

import json
import random
import time
from dataclasses import replace
from itertools import combinations, pairwise, product

import pytest
from build import cpu_op, kineto
from conftest import BUNDLED, SHARED
from test_cli import DEMO, cli, process, refused
from timelines import Recording

import ling_prof
from ling_prof import Missing, Options, UserError, load
from ling_prof.align import align, common
from ling_prof.diff import diff, save
from ling_prof.diff import load as load_diff
from ling_prof.roles import family, same_name
from ling_prof.timeline import CLASSES
from ling_prof.trace import Trace

STEP = [("rms_norm", 5, 10), ("gemm_64x8", 2, 30), ("silu", 2, 8)]  # (name, gap before it, duration)
AHEAD = 1_000_000
QWEN = [BUNDLED / f"h200_qwen3_graph_{kind}" for kind in ("stacks.pt.trace.json.gz", "nodes.sqlite.gz")]
RECORDINGS = [row["file"] for row in json.loads((BUNDLED / "manifest.json").read_text())]
OTHERS = [p.name for p in sorted(SHARED.glob("h200_*")) if "whole" not in p.name]
LOUD = "LOUD: ../shared/traces is absent: recordings of other programs are NOT compared"


def loop(*steps: list[tuple[str, int, int]], phase: str = "decode") -> Trace:
    """Steps on one stream, every kernel queued long before it runs: all gaps are dependency, none before the first."""
    recording, now, corr = Recording(), AHEAD, 0
    for number, step in enumerate(steps):
        recording.inside("annotation", f"{phase}_step_{number}", 10 * corr, 10 * (corr + len(step)) - 1)
        for name, gap, duration in step:
            called, now = 10 * corr, now + gap
            corr += 1
            recording.kernel(name, (called, called + 5), (now, now + duration), corr)
            now += duration
    return replace(recording.trace(), devices={0: "NVIDIA H200"})


def twice(step: list[tuple[str, int, int]], **options: str) -> Trace:
    """A step that counts and a last one, which does not: its end is not shown."""
    return loop(step, step, **options)


def nonzero(rows: list[dict], key: str = "change_ns") -> dict[str, int]:
    return {row["name"]: row[key] for row in rows if row[key]}


def check(found: dict) -> None:
    """What every diff must satisfy."""
    change = found["wall"]["change_ns"]
    for side in ("a", "b"):
        wall = found[side]["step"]["wall_ns"]
        assert wall == found["wall"][f"{side}_ns"]
        for key in ("classes", "roles", "names", "kinds"):
            assert sum(row[f"{side}_ns"] for row in found[key]) == wall, (key, side)
        ops = [row[side] for row in found["kernels"] if row[side]]
        assert sum(sum(op["ledger"].values()) for op in ops) == wall
        assert [op["at_ns"] for op in ops] == sorted(op["at_ns"] for op in ops)
        assert sum(op["place"] == "inside" for op in ops) == found[side]["step"]["ops"]
    for row in found["classes"]:
        ledgers = [sum(k[s]["ledger"].get(row["name"], 0) for k in found["kernels"] if k[s]) for s in "ab"]
        assert ledgers == [row["a_ns"], row["b_ns"]]
    for row in (*found["roles"], *found["names"]):
        assert row["busy_change_ns"] + row["idle_change_ns"] == row["change_ns"]
    assert [row["name"] for row in found["classes"]] == list(CLASSES)
    assert sum(row["change_ns"] for row in found["kernels"]) == change
    assert sum(row["change_ns"] for row in found["edits"]) == sum(row["change_ns"] for row in found["kinds"][1:])
    assert sum(row["mean"]["change_ns"] for row in found["classes"]) == found["wall"]["mean"]["change_ns"]


def compared(a: Trace, b: Trace, **options: object) -> dict:
    found = diff(a, b, **options)
    check(found)
    return found


def test_a_step_against_itself_is_all_zero():
    found = compared(twice(STEP), twice(STEP))
    assert found["wall"] == {"name": "wall", "a_ns": 57, "b_ns": 57, "change_ns": 0, "mean": found["wall"]["mean"]}
    assert not any(row["change_ns"] for key in ("classes", "roles", "names", "kernels", "rounds") for row in found[key])
    assert [(row["name"], row["count"]) for row in found["kinds"] if row["count"]] == [("same", 3)]
    assert found["edits"] == []


def test_a_slower_kernel():
    found = compared(twice(STEP), twice([STEP[0], ("gemm_64x8", 2, 41), STEP[2]]))
    assert nonzero(found["classes"]) == {"busy": 11}
    assert nonzero(found["roles"]) == {"dense_gemm": 11}
    assert nonzero(found["names"], "busy_change_ns") == {"gemm_64x8": 11}
    assert [row["change_ns"] for row in found["kernels"]] == [0, 11, 0, 0]
    assert found["kernels"][1]["b"] == {
        "name": "gemm_64x8",
        "role": "dense_gemm",
        "place": "inside",
        "at_ns": 12,
        "ledger": {"busy": 41, "dependency": 2},
    }


def test_a_longer_gap_belongs_to_the_kernel_after_it():
    found = compared(twice(STEP), twice([*STEP[:2], ("silu", 9, 8)]))
    assert nonzero(found["classes"]) == {"dependency": 7}
    assert nonzero(found["names"], "idle_change_ns") == {"silu": 7}
    assert [row["change_ns"] for row in found["kernels"]] == [0, 0, 7, 0]


def test_the_gap_before_the_next_step_belongs_to_its_first_kernel():
    found = compared(twice(STEP), twice([("rms_norm", 25, 10), *STEP[1:]]))
    assert nonzero(found["classes"]) == {"dependency": 20}
    assert [(row["b"]["place"], row["change_ns"]) for row in found["kernels"]][-1] == ("after", 20)
    assert [(row["a_count"], row["b_count"]) for row in found["names"] if row["change_ns"]] == [(1, 1)]


@pytest.mark.parametrize(
    ("first", "kind"), [("gemv_kernel", "added"), ("rms_norm_fused<2>", "replaced"), ("rms_norm<2>", "renamed")]
)
def test_steps_that_begin_with_different_kernels(first, kind):
    """So the next step begins with another one too, whose gap is the step's: told apart, and counted once."""
    found = compared(twice([("rms_norm<1>", 5, 10), *STEP[1:]]), twice([(first, 25, 10), *STEP[1:]]))
    *inside, last = found["kernels"]
    pair = ["removed", "added"] if kind == "added" else [kind]
    assert [row["kind"] for row in inside] + [last["kind"]] == [*pair, "same", "same", *pair]
    counts = {row["name"]: row["count"] for row in found["kinds"] if row["count"]}
    assert counts == {"same": 2, **dict.fromkeys(pair, 1)}
    (edit,) = found["edits"]
    assert (edit["removed"], edit["added"], edit["count"]) == (["rms_norm<1>"], [first], 1)
    assert edit["change_ns"] == found["wall"]["change_ns"] == 20


def test_an_edit_that_only_reaches_into_the_step_is_not_counted():
    a, b = ([("gemm_64x8", 2, 30), ("silu", 2, 8)], [("rope", 9, 4), ("gemm_64x8", 2, 30), ("silu", 2, 8)])
    found = compared(loop(a, a), loop(a, b))
    assert [(row["removed"], row["added"], row["count"], row["change_ns"]) for row in found["edits"]] == [
        (["gemm_64x8"], ["rope"], 0, 7)
    ]


ROPE = [*STEP[:2], ("rope", 1, 4), STEP[2]]


def test_a_kernel_that_is_added_and_one_that_is_removed():
    found = compared(twice(STEP), twice(ROPE))
    assert [row["kind"] for row in found["kernels"]] == ["same", "same", "added", "same", "same"]
    assert found["wall"]["change_ns"] == 5
    assert nonzero(found["classes"]) == {"busy": 4, "dependency": 1}
    edit = {"removed": [], "added": ["rope"], "count": 1, "a_ns": 0, "b_ns": 5, "change_ns": 5}
    assert found["edits"] == [edit]
    back = compared(twice(ROPE), twice(STEP))
    assert [row["kind"] for row in back["kernels"]] == ["same", "same", "removed", "same", "same"]
    assert back["edits"] == [
        {"removed": ["rope"], "added": [], "count": 1, "a_ns": 5, "b_ns": 0, "change_ns": -5},
    ]


@pytest.mark.parametrize(("name", "kind"), [("gemm_128x8", "renamed"), ("nvjet_tst", "replaced"), ("rope", "")])
def test_another_kernel_in_its_place(name, kind):
    found = compared(twice(STEP), twice([STEP[0], (name, 3, 20), STEP[2]]))
    assert [row["kind"] for row in found["kernels"]][1:-2] == ([kind] if kind else ["removed", "added"])
    assert found["wall"]["change_ns"] == -9
    edit = {"removed": ["gemm_64x8"], "added": [name], "count": 1, "a_ns": 32, "b_ns": 23, "change_ns": -9}
    assert found["edits"] == [edit]
    assert nonzero(found["names"]) == {"gemm_64x8": -32, name: 23}


def test_a_fusion_in_every_layer_is_one_edit():
    layer = [("gemm_64x8", 2, 30), ("silu", 2, 8), ("mul_elementwise", 2, 6)]
    fused = [("gemm_64x8", 2, 30), ("silu_and_mul", 1, 9)]
    found = compared(twice(layer * 5), twice(fused * 5))
    assert found["edits"] == [
        {
            "removed": ["silu", "mul_elementwise"],
            "added": ["silu_and_mul"],
            "count": 5,
            "a_ns": 5 * 18,
            "b_ns": 5 * 10,
            "change_ns": 5 * -8,
        }
    ]
    assert found["wall"]["change_ns"] == -40


def late(call: tuple[int, int], second: tuple[int, int]) -> Trace:
    """k1 runs 100 to 200, then k2, launched by `call`; a next step begins at 400."""
    recording = Recording().kernel("k1", (10, 20), (100, 200), 1).kernel("k2", call, second, 2)
    recording.kernel("k1", (310, 320), (400, 500), 3).kernel("k2", (330, 340), (500, 600), 4)
    return recording.inside("annotation", "decode_0", 0, 300).inside("annotation", "decode_1", 301, 350).trace()


def test_a_gap_that_changes_its_class():
    found = compared(late((30, 40), (205, 300)), late((250, 260), (275, 300)))
    assert nonzero(found["classes"]) == {
        "busy": -70,
        "dependency": -5,
        "host_bound": 50,
        "launch_call": 10,
        "launch_latency": 15,
    }
    assert found["wall"]["change_ns"] == 0
    assert found["kernels"][1]["b"]["ledger"] == {
        "busy": 25,
        "host_bound": 50,
        "launch_call": 10,
        "launch_latency": 15,
    }


def test_a_kernel_that_runs_into_the_step():
    def trace(until: int) -> Trace:
        recording = (
            Recording().kernel("copy", (0, 5), (100, until), 1, stream=8).kernel("gemm", (20, 25), (180, 250), 2)
        )
        recording.kernel("gemm", (60, 65), (300, 350), 3)
        recording.inside("annotation", "decode_0", 0, 10).inside("annotation", "decode_1", 11, 50)
        return recording.inside("annotation", "decode_2", 51, 70).trace()

    options = Options(skip=1)
    found = compared(trace(200), trace(210), options=(options, options))
    assert [(row["a"]["name"], row["a"]["place"], row["change_ns"]) for row in found["kernels"]] == [
        ("copy", "before", 10),
        ("gemm", "inside", -10),
        ("gemm", "after", 0),
    ]
    assert [row["a_count"] for row in sorted(found["names"], key=lambda row: row["name"])] == [0, 1]


def test_the_median_step_stands_for_the_others():
    lengths = [40, 30, 31, 33, 35]
    steps = [[("rms_norm", 5, 10), ("gemm_64x8", 2, length)] for length in lengths]
    found = compared(loop(*steps, steps[0]), loop(*steps[1:3], steps[0]))
    assert found["a"]["step"] == {"index": [3], "phases": ["decode"], "wall_ns": 50, "ops": 2}
    assert found["b"]["step"]["index"] == [0]
    assert found["b"]["step"]["wall_ns"] == 47
    assert [(r["a_step"], r["b_step"], r["change_ns"]) for r in found["rounds"]] == [(0, 0, -10), (1, 1, 1)]


def test_rounds_of_several_parts_are_compared_whole():
    def trace(verify: int) -> Trace:
        recording, now = Recording(), AHEAD
        for number, (name, phase) in enumerate([("gemm", "draft"), ("fmha", "verify"), ("silu", "extend")] * 3):
            duration = verify if phase == "verify" else 10
            recording.inside("annotation", phase, 10 * number, 10 * number + 9)
            recording.kernel(name, (10 * number, 10 * number + 5), (now, now + duration), number + 1)
            now += duration + 2
        return recording.trace()

    found = compared(trace(50), trace(43))
    assert found["a"]["step"]["phases"] == ["draft", "verify", "extend"]
    assert (found["wall"]["a_ns"], found["wall"]["change_ns"]) == (76, -7)
    assert nonzero(found["roles"]) == {"mla": -7}
    with pytest.raises(UserError, match=r"differ in phase \(draft \+ verify \+ extend / decode\)"):
        diff(trace(50), twice(STEP))


def test_the_unprofiled_times_calibrate_both():
    found = compared(twice(STEP), twice(ROPE), options=(Options(unprofiled_tpot=57), Options(unprofiled_tpot=31)))
    assert found["wall"]["calibrated"] == {"a_ns": 57, "b_ns": 31, "change_ns": -26}
    assert sum(row["calibrated"]["change_ns"] for row in found["classes"]) == -26
    one = compared(twice(STEP), twice(ROPE), options=(Options(unprofiled_tpot=57), Options()))
    assert "calibrated" not in one["wall"]


def test_a_spread_larger_than_the_change_is_said_so():
    steps = [[("gemm", 5, length)] for length in (30, 40, 30)]
    assert any("may be chance" in line for line in diff(loop(*steps), loop(*steps))["warnings"])
    slower = [[("gemm", 5, length)] for length in (130, 140, 130)]
    assert diff(loop(*steps), loop(*slower))["warnings"] == []
    mixed = [[("gemm", 5, length)] for length in (30, 32, 31, 30, 33, 31, 32, 30, 31)]
    faster = [[("gemm", 5, length - 6)] for ((_, _, length),) in mixed]
    faster[3] = [("gemm", 5, 400)]  # one slow round among eight says nothing of the others
    assert diff(loop(*mixed), loop(*faster))["warnings"] == []
    assert diff(loop(*mixed), loop(*mixed[::-1]))["warnings"] == [
        "by their spread the median of the rounds changes by -1 ns to +2 ns (95 %): the change may be chance"
    ]
    assert "a single round" in diff(twice(STEP), twice(STEP))["warnings"][0]


def test_what_recordings_do_not_share_is_flagged():
    a = replace(twice(STEP), lock={"cuda_driver_version": 13000, "rank": 0, "cupti_version": 1})
    b = replace(twice(STEP), lock={"cuda_driver_version": "12080", "rank": 0}, format="nsys")
    assert diff(a, b)["warnings"][:3] == [
        "format differs: kineto in A, nsys in B",
        "cuda_driver_version differs: 13000 in A, 12080 in B",
        "cupti_version differs: 1 in A, none in B",
    ]
    assert "cupti_version differs: none in A, 1 in B" in diff(b, a)["warnings"]
    unnamed = replace(b, devices={})
    assert "GPU differs: NVIDIA H200 in A, none in B" in diff(a, unnamed)["warnings"]


def test_an_unknown_gpu_is_no_other_gpu():
    a = replace(twice(STEP), devices={0: "device 0"})
    assert diff(a, twice(STEP))["warnings"][0] == "GPU differs: none in A, NVIDIA H200 in B"
    assert diff(a, replace(a, devices={}))["a"]["gpu"] is None


def test_batches_of_step_names_are_flagged():
    def served(batch: int) -> Trace:
        trace = twice([("gemm", 5, 30)])
        names = trace.host["name"].cat.rename_categories(lambda name: f"step[DECODE bs={batch} {name}]")
        return replace(trace, tables={**trace.tables, "host": trace.host.assign(name=names)})

    assert diff(served(1), served(16))["warnings"][0] == "batch differs: 1 in A, 16 in B"


def test_different_gpus_and_phases_are_refused_unless_forced():
    a, b = replace(twice(STEP), path="a.json"), replace(twice(STEP), path="b.json", devices={0: "NVIDIA B200"})
    with pytest.raises(UserError) as error:
        diff(a, b)
    assert str(error.value) == (
        "a.json and b.json differ in GPU (NVIDIA H200 / NVIDIA B200); compare anyway with --force."
    )
    found = compared(a, b, force=True)
    assert found["warnings"][0] == "GPU differs: NVIDIA H200 in A, NVIDIA B200 in B"


def test_recordings_without_steps_are_refused_unless_forced():
    bare = replace(Recording().kernel("gemm", (0, 5), (10, 60), 1).trace(), path="bare.json")
    with pytest.raises(
        UserError, match=r"^bare\.json: found no step .* or compare the whole recording with --force\.$"
    ):
        diff(twice(STEP), bare)
    found = compared(bare, bare, force=True)
    assert found["wall"]["a_ns"] == 50
    assert "bare.json: no step was found" in found["warnings"][0]


@pytest.mark.parametrize("options", [Options(focus="prefill"), Options(skip=9)])
def test_no_step_that_counts_is_refused_always(options):
    with pytest.raises(UserError, match=r"^hand-made: no \w+ step to look at \(.+\); record more steps"):
        diff(twice(STEP), twice(STEP), options=(Options(), options), force=True)


def test_prefills_are_compared_when_asked_for():
    options = Options(focus="prefill")
    found = compared(twice(STEP, phase="prefill"), twice(ROPE, phase="prefill"), options=(options, options))
    assert (found["a"]["step"]["phases"], found["wall"]["change_ns"]) == (["prefill"], 5)


def test_a_diff_survives_its_file(tmp_path):
    path, found = tmp_path / "diff.json", diff(twice(STEP), twice(ROPE))
    save(found, path)
    assert load_diff(path) == found == json.loads(path.read_text())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data: data.update(schema="ling-prof.report/1"), "found ling-prof.report/1, not ling-prof.diff/1"),
        (lambda data: data.pop("edits"), "not a whole ling-prof.diff/1"),
        (lambda data: data["kernels"].pop(2), "its kernels do not add up to the change of the step, 5 ns"),
    ],
)
def test_a_file_that_holds_no_diff_is_refused(tmp_path, change, words):
    path, data = tmp_path / "diff.json", json.loads(json.dumps(diff(twice(STEP), twice(ROPE))))
    change(data)
    path.write_text(json.dumps(data))
    with pytest.raises(UserError) as error:
        load_diff(path)
    assert str(error.value).startswith(f"{path}: ")
    assert words in str(error.value)
    assert str(error.value).endswith("write it again with ling-prof diff --json.")


def longest(a: str, b: str) -> int:
    """The length of a longest common subsequence, by trying all."""
    subsequences = (set(combinations(a, size)) & set(combinations(b, size)) for size in range(len(a), -1, -1))
    return next(len(a) - i for i, both in enumerate(subsequences) if both)


def test_common_subsequences_are_longest():
    words = ["".join(letters) for size in range(5) for letters in product("xyz", repeat=size)]
    for a, b in random.Random(0).sample(list(product(words, words)), 3000):
        pairs = common(a, b)
        assert all(a[i] == b[j] for i, j in pairs)
        assert all(i < k and j < n for (i, j), (k, n) in pairwise(pairs))
        assert len(pairs) == longest(a, b)


def test_what_a_tier_leaves_is_aligned_by_the_next():
    assert align([["a1", "b1", "c"], ["a", "b", "c"]], [["b2", "c", "d"], ["b", "c", "d"]]) == [
        (0, -1, -1),
        (1, 0, 1),
        (2, 1, 0),
        (-1, 2, -1),
    ]
    assert align([[], []], [["x"], ["x"]]) == [(-1, 0, -1)]


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("void f<4, float>(float*)", "void f<(int)4, float>(T2 *)"),
        (
            "void n::(anonymous namespace)::g<n::O<2u>, true>(int)",
            "void n::<unnamed>::g<n::O<(unsigned int)2>, (bool)1>(T1)",
        ),
        (
            "f<k(T&)::{lambda()#3}::operator()() const::{lambda(float)#1} >(int)",
            "f<void k(T &)::[lambda() (instance 3)]::operator ()() const::[lambda(float) (instance 1)]>(T1)",
        ),
        ("Memcpy DtoH (Device -> Pinned)", "Memcpy DtoH"),
        ("reduce<float const*, 2ul>", "reduce<const float *, (unsigned long)2>"),
    ],
)
def test_names_of_two_demanglers_are_the_same(a, b):
    assert same_name(a) == same_name(b)


def test_names_that_differ_in_what_they_compute_are_not_the_same():
    assert same_name("f<4, {lambda(float)#1}>(int)") != same_name("f<4, {lambda(float)#2}>(int)")
    assert same_name("f<4>(int)") != same_name("f<8>(int)")
    assert family("f<4>(int)") == family("f<8>(float)")
    assert family("nvjet_64x8_bz") == family("nvjet_128x16_bz") != family("nvjet_64x8_TN")
    assert same_name("()") == "()"


def halves(recordings: list[str]) -> list[tuple[str, str]]:
    """Each recording against the next: every one is on both sides once."""
    return list(zip(recordings, recordings[1:] + recordings[:1], strict=True))


def test_the_ends_of_the_ladder_add_up_to_the_nanosecond():
    """All passes on against the baseline: every part of the diff holds the whole change."""
    a, b = (load(BUNDLED / "ladder" / name) for name in ("00-baseline.json.gz", "16-seam_fuse.json.gz"))
    found = compared(a, b)
    whole = found["wall"]["change_ns"]
    assert whole < -1_500_000
    for part in ("classes", "roles", "names", "kinds", "kernels"):
        assert sum(row["change_ns"] for row in found[part]) == whole, part


def compare_both_ways(a: Trace, b: Trace) -> None:
    zero = compared(a, a, force=True)
    assert not any(row["change_ns"] for key in ("classes", "names", "kernels", "rounds") for row in zero[key])
    assert sum(row["count"] for row in zero["kinds"]) == zero["kinds"][0]["count"]
    there, back = compared(a, b, force=True), compared(b, a, force=True)
    assert there["wall"]["change_ns"] == -back["wall"]["change_ns"]
    for key in ("classes", "roles"):
        ours, theirs = ({row["name"]: row["change_ns"] for row in found[key]} for found in (there, back))
        assert ours == {name: -change for name, change in theirs.items()}
    for side, other in ("ab", "ba"):
        kept = ("path", "step", "wall_ns", "rounds")
        assert {k: there[side][k] for k in kept} == {k: back[other][k] for k in kept}


@pytest.mark.parametrize(("a", "b"), halves(RECORDINGS))
def test_bundled_recordings_add_up_both_ways(a, b):
    compare_both_ways(load(BUNDLED / a), load(BUNDLED / b))


@pytest.mark.parametrize(("a", "b"), halves(OTHERS) or [pytest.param("", "", marks=pytest.mark.skip(LOUD))])
def test_other_recordings_add_up_both_ways(shared, a, b):
    compare_both_ways(load(shared / a), load(shared / b))


def test_two_profilers_recorded_the_same_kernels():
    found = compared(*(load(path) for path in QWEN))
    assert [(row["name"], row["count"]) for row in found["kinds"] if row["count"]] == [("same", 819)]
    assert all(row["a_count"] == row["b_count"] for row in found["names"])
    assert found["warnings"][0] == "format differs: kineto in A, nsys in B"


def test_a_graph_recorded_whole_is_said_so():
    found = compared(load(BUNDLED / "h200_qwen3_graph_whole.sqlite.gz"), load(QWEN[1]))
    assert any("A was recorded without the kernels inside its CUDA graphs" in line for line in found["warnings"])
    assert len(found["edits"]) == 1


def long_step(layer: list[str], layers: int) -> Trace:
    return twice([(name, 1, 2) for name in layer * layers])


def test_fifty_thousand_kernels_are_not_compared_each_with_each():
    layer = [f"gemm_kernel_{letter}" for letter in "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWX"]
    a, b = long_step(layer, 1000), long_step([*layer[:20], "fused_norm", *layer[23:]], 1000)
    begun = time.process_time()  # not what others do on these cores
    found = diff(a, b)
    assert time.process_time() - begun < 60  # comparing each with each, 2.4 billion pairs, takes minutes
    check(found)
    assert found["a"]["step"]["ops"] == 50_000
    assert [(row["count"], len(row["removed"]), len(row["added"])) for row in found["edits"]] == [(1000, 3, 1)]


def test_the_command_prints_text_and_json():
    done = process("diff", *map(str, QWEN), "--unprofiled-tpot", "2.223ms,2.2ms", "--top", "3")
    assert (done.returncode, done.stderr) == (0, "")
    assert "format differs: kineto in A, nsys in B" in done.stdout.splitlines()[2]
    for words in (
        "graph_dependency",
        "B unprofiled",
        "-5.4 %",
        "MLA / attention",
        "(top 3 of",
        "the next step's first",
    ):
        assert words in done.stdout
    found = json.loads(cli("diff", *map(str, QWEN), "--json", "--unprofiled-tpot", "2.223ms,2.2ms").stdout)
    assert found["schema"] == "ling-prof.diff/1"
    assert found["wall"]["calibrated"]["change_ns"] == -23_000
    check(found)


def test_the_command_shows_what_replaced_what(tmp_path):
    done = cli("diff", str(BUNDLED / "h200_qwen3_graph_whole.sqlite.gz"), DEMO)
    assert "CUDA graph 2 (opaque)   indexSelectSmallIndex<BFloat16, long,... + elementwise" in done.stdout


def test_the_time_per_token_is_shown_where_a_step_commits_several():
    assert "per token" not in cli("diff", DEMO, DEMO).stdout
    shown = cli("diff", DEMO, DEMO, "--accept-length", "1,2").stdout
    assert "per token, mean: A 3.492 ms, B 1.746 ms, -1.746 ms (-50.0 %)" in shown


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((DEMO, "nowhere.json"), "nowhere.json: no such file"),
        ((DEMO, DEMO, "--unprofiled-tpot", "2.2ms"), "one value for each recording"),
        ((DEMO, DEMO, "--unprofiled-tpot", "2.2ms,"), "one value for each recording"),
        ((DEMO, DEMO, "--unprofiled-tpot", "2.2ms,fast"), "'fast' is not a time"),
        ((DEMO, DEMO, "--accept-length", "1"), "one value for each recording"),
        ((DEMO, DEMO, "--accept-length", "1,x"), "is not two numbers"),
        ((DEMO, DEMO, "--accept-length", "1,nan"), "--accept-length takes"),
        ((DEMO, DEMO, "--device", "7"), f"{DEMO}: no activity on device 7"),
        ((DEMO, DEMO, "--steps", "no such range"), f"{DEMO}: "),
        ((DEMO, DEMO, "--skip", "99"), f"{DEMO}: no decode step to look at"),
        ((DEMO, DEMO, "--focus", "training"), "prefill"),
    ],
    ids=lambda value: " ".join(value[1:]) if isinstance(value, tuple) else "",
)
def test_a_wrong_option_ends_in_one_sentence(args, words):
    assert words in refused("diff", *args)


def test_a_recording_without_gpu_activity_says_so(tmp_path):
    path = kineto(tmp_path, [cpu_op("aten::mm", 0, 5)])
    with pytest.raises(Missing, match=f"^{path}: cannot say GPU times"):
        diff(load(QWEN[0]), load(path))


def test_the_package_offers_it():
    assert ling_prof.diff(twice(STEP), twice(STEP)) == diff(twice(STEP), twice(STEP))
    assert ling_prof.Diff.__required_keys__ >= {"schema", "wall", "kernels"}

"""The registry, applying and undoing, and every kernel of a pass against the operation it stands for."""

import json
import re
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from conftest import BUNDLED  # noqa: E402

from ling_prof import UserError, load  # noqa: E402
from ling_prof.errors import Missing  # noqa: E402
from optim import base  # noqa: E402
from optim.engine import compose, weights  # noqa: E402
from optim.engine.config import NANO, TINY  # noqa: E402
from optim.engine.generate import Engine  # noqa: E402
from optim.engine.graph import Edge  # noqa: E402
from optim.engine.sample import Sampling  # noqa: E402
from optim.kernels import launch, tiles  # noqa: E402

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
LAUNCHES = r"(\w+_kernel [1-9]\d* times(, )?)+"
KERNELS = [
    *("moe_align_pairs", "swiglu_epilogue", "kda_fused", "splitk_gemv", "moe_direct"),
    *("norm_fuse", "kda_out", "moe_fuse", "mla_fuse"),
]


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@pytest.fixture
def engine():
    return Engine(NANO, weights.random(NANO, 0, torch.bfloat16, DEVICE), 64)


@pytest.fixture(scope="module")
def trace():
    return load(BUNDLED / "h200_ling_tiny_graph_stacks.pt.trace.json.gz")


@pytest.mark.parametrize("name", base.passes())
def test_finds_its_sites_in_a_recording(name, trace):
    found = base.sites(name, trace)
    assert len(found) >= (name != "cuda_graph")
    assert (found["time_ns"] > 0).all()


def test_the_command_lists_them_without_torch(trace):
    """On a laptop: every pass with its sites, torch and triton not even imported."""
    code = "import sys; sys.modules.update(torch=None, triton=None); from ling_prof.cli import main; main()"
    path = str(BUNDLED / "h200_ling_tiny_graph_stacks.pt.trace.json.gz")
    done = subprocess.run([sys.executable, "-c", code, "passes", path, "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["schema"] == "ling-prof.passes/1"
    assert [row["pass"] for row in found["passes"]] == list(base.passes())
    assert all(row["sites"] or row["pass"] == "cuda_graph" for row in found["passes"])


def test_what_a_trace_cannot_say_is_told(trace, monkeypatch):
    def missing(_):
        raise Missing("the layer of a kernel", "nothing names it", "record it")

    monkeypatch.setattr(base.passes()["bf16_head"], "find", missing)
    row = next(row for row in base.found(trace) if row["pass"] == "bf16_head")
    assert (row["sites"], row["cannot_say"]) == (None, "cannot say the layer of a kernel: nothing names it; record it.")


def test_little_is_left_to_change_where_all_are_on():
    """Kernels that passes put in are none of their sites."""
    last = load(BUNDLED / "ladder/16-seam_fuse.json.gz")
    for name, module in base.passes().items():
        left = module.find(last)
        if name not in ("pdl", "proj_concat"):  # what is idle still; products out, which nothing joins
            assert left["count"].sum() < 3, (name, left)


def test_figures_of_sites(trace):
    """Two alignment launches in each of 23 layers; one head; 18 KDA layers of five products, 6 MLA layers of seven."""
    align = base.passes()["moe_align_pairs"].find(trace)
    assert align["count"].tolist() == [23, 23]
    assert base.passes()["kda_fused"].find(trace)["count"].tolist() == [18, 18, 18]
    head = base.passes()["bf16_head"].find(trace)
    assert head["count"].sum() == 1
    assert 150_000 < head["time_ns"].sum() < 300_000
    assert base.passes()["proj_concat"].find(trace)["count"].sum() == 18 * 5 + 6 * 7
    around = base.passes()["head_argmax"].find(trace)
    assert around["count"].tolist() == [1, 1, 1]
    assert sorted(re.search("rms_norm|direct_copy|reduce_kernel", site)[0] for site in around["site"]) == [
        *("direct_copy", "reduce_kernel", "rms_norm")
    ]
    (seam,) = base.passes()["seam_graph"].find(trace).to_dict("records")
    assert (round(11 * seam["count"]), seam["time_ns"]) == (57, 122_261)  # of 11 steps; 58,515 ns are not the seam's


def test_an_unknown_edit_or_column_is_refused(trace, monkeypatch):
    right = base.passes()["kda_fused"].find(trace)
    for wrong, words in ((right.assign(edit="fus"), "edits by fus"), (right.assign(cost=0), "cost")):
        monkeypatch.setattr(base.passes()["kda_fused"], "find", lambda _, wrong=wrong: wrong)
        with pytest.raises(TypeError, match=f"optim/passes/kda_fused.py .*{words}"):
            base.sites("kda_fused", trace)


@pytest.mark.parametrize(
    ("replaces", "words"),
    [("odl", "new.py replaces odl; there are later, new, old"), ("later", "new.py replaces later, whose rung 9 is")],
)
def test_a_pass_replaces_only_what_is_there_and_not_later(replaces, words):
    rungs = {"later": 9, "new": 5, "old": 3}
    there = {name: SimpleNamespace(rung=rung, replaces=("old",) * (rung > 3)) for name, rung in rungs.items()}
    assert list(base._ordered(there)) == ["old", "new", "later"]
    there["new"].replaces = ("old", replaces)
    with pytest.raises(TypeError, match=words):
        base._ordered(there)


def test_the_passes_are_looked_up_once(monkeypatch):
    there = base.passes()
    monkeypatch.setattr(base.pkgutil, "iter_modules", None)
    base.passes().clear()
    assert base.passes() == there


def test_an_unknown_pass_is_named_with_those_there_are():
    with pytest.raises(UserError, match="no pass pld; there are cuda_graph, host_run_ahead, "):
        base.named(["pld"])


@pytest.mark.parametrize("missing", [*base.NEEDED, "exact"])
def test_a_file_that_breaks_the_interface_fails(missing, monkeypatch):
    module = ModuleType("optim.passes.half", "A pass.")
    for name in {*base.NEEDED, "exact"} - {missing, "__doc__"}:
        setattr(module, name, {"exact": True, "lowers": "kda"}.get(name, print))
    if missing == "__doc__":
        module.__doc__ = None
    monkeypatch.setitem(sys.modules, "optim.passes.half", module)
    with pytest.raises(TypeError, match=f"optim/passes/half.py lacks {missing}"):
        base._checked("half")


def test_on_a_cpu_what_needs_a_gpu_is_blocked(engine):
    if GPU:
        pytest.skip("there is a GPU")
    blocked = {name for name, module in base.passes().items() if module.blocked(engine)}
    assert blocked == set(base.passes()) - {"proj_concat", "bf16_gate", "bf16_head"}
    with (
        pytest.raises(UserError, match="cuda_graph cannot be applied: a CUDA graph needs a GPU"),
        base.applied(engine, ["cuda_graph"]),
    ):
        pass


@pytest.mark.parametrize("fails", [False, True])
def test_undo_is_exact_also_after_an_error(engine, fails):
    before = engine.w.head, [vars(layer).copy() for layer in engine.w.layers], dict(vars(engine.model.decode_ops))
    text = list(engine.stream([1, 2, 3], 8))
    try:
        with base.applied(engine, ["bf16_head", "bf16_gate"]) as proofs:
            assert proofs == {"bf16_head": "the head is torch.bfloat16", "bf16_gate": "3 routers are torch.bfloat16"}
            list(engine.stream([1, 2, 3], 8))
            if fails:
                raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    assert engine.w.head is before[0]
    assert [vars(layer) for layer in engine.w.layers] == before[1]
    assert vars(engine.model.decode_ops) == before[2]
    assert list(engine.stream([1, 2, 3], 8)) == text


def test_a_request_ends_where_passes_begin_and_end(engine):
    before = engine.passes
    engine.prefill([1, 2, 3])
    with base.applied(engine, ["bf16_head"]):
        assert engine.passes == (*before, "bf16_head")
        with pytest.raises(UserError, match="no request"):
            engine.step()
        engine.prefill([1, 2, 3])
    assert engine.passes == before
    with pytest.raises(UserError, match="no request"):
        engine.step()


class Now:
    """A CUDA stream or event of a device that has done everything at once."""

    def __init__(self, *_):
        pass

    def record(self):
        pass

    wait = synchronize = record


def test_run_ahead_gives_each_token_once(engine, monkeypatch):
    """The bookkeeping, on a CPU: requests of odd and even length, one left early, one that fills the cache."""
    from optim.engine.relay import Relay

    prompts = [[1, 2, 3], [4, 5], [6], [7, 8, 9, 10]]
    plain = [list(engine.stream(prompt, most)) for prompt, most in zip(prompts, (7, 8, 64, 5), strict=True)]
    monkeypatch.setattr(torch.cuda, "Stream", Now)
    monkeypatch.setattr(torch.cuda, "Event", Now)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    zeros = torch.zeros
    monkeypatch.setattr(torch, "zeros", lambda *a, pin_memory=False, **k: zeros(*a, **k))
    with base.exchanged(engine, advance=Relay(engine)):
        for prompt, expected in zip(prompts, plain, strict=True):
            assert list(engine.stream(prompt, len(expected))) == expected
        engine.prefill(prompts[2])
        for expected in plain[2][1:]:
            assert engine.step() == expected
        with pytest.raises(UserError, match="the request fills its 64 tokens"):
            engine.step()


@pytest.fixture(scope="module")
def fast_engine():
    """Two layers on the Triton kernels, in the interpreter where there is no GPU."""
    c = replace(NANO, layers=2, dense_layers=0)
    return Engine(c, weights.random(c, 0, torch.bfloat16 if GPU else torch.float32, DEVICE), 32, "triton")


@pytest.mark.parametrize("name", KERNELS)
def test_an_exchanged_kernel_is_proved_by_its_launches(fast_engine, name, monkeypatch):
    monkeypatch.setattr(tiles, "asked", {})
    with base.applied(fast_engine, [name]) as proofs:
        assert re.search(rf"is that of optim\.kernels\.\w+\.\w+, which launched {LAUNCHES} while", proofs[name])
        assert fast_engine.passes[-1] == name
    assert GPU or all(key.endswith(" float32") for key in tiles.asked)  # none of those tuned for bf16


@pytest.mark.parametrize(
    ("name", "where"),
    [("norm_fuse", "linear.normed.norm_linears"), ("moe_fuse", "moe.fused.moe"), ("head_argmax", "linear.head.head")],
)
def test_a_function_that_leaves_the_work_to_others_proves_nothing(fast_engine, name, where, monkeypatch):
    plain = getattr(compose, where.rpartition(".")[2])
    monkeypatch.setattr(f"optim.kernels.{where}", lambda *of, token=None: plain(*of))
    with pytest.raises(base.NotOn, match="a decode step launches none of it"), base.applied(fast_engine, [name]):
        pass


@pytest.mark.parametrize("full", ["", "two_kernel to one_kernel"])
def test_every_edge_between_chained_kernels_must_be_programmatic(full, monkeypatch):
    """Those to and from other kernels count for nothing."""
    monkeypatch.setattr(launch, "launched", {"a": {"one_kernel": 1}, "b": {"two_kernel": 1}})
    edges = [Edge("cublas", "one_kernel", True), Edge("one_kernel", "two_kernel", True), Edge("two_kernel", "", False)]
    edges += [Edge("two_kernel", "one_kernel", not full), Edge("one_kernel", "cublas", False)]
    engine = SimpleNamespace(captured=True, graph_edges=lambda: edges)
    took_effect = base.passes()["pdl"].took_effect
    if full:
        with pytest.raises(base.NotOn, match=f"1 of 2 edges are full, such as {full}"):
            took_effect(engine)
        return
    assert took_effect(engine) == (
        "3 of 5 edges of the captured graph are programmatic, all 2 between two chained kernels among them"
    )
    monkeypatch.setattr(launch, "launched", {})
    with pytest.raises(base.NotOn, match="none of 5 edges"):
        took_effect(engine)


@pytest.mark.usefixtures("few_programs")
def test_all_kernels_together_decode_the_same(fast_engine, monkeypatch):
    """Whatever is not blocked here, at once: each shows its effect or names the pass that took its place."""
    monkeypatch.setattr(fast_engine.model, "prefill", lambda tokens, seen: fast_engine.w.head.sum(1))
    monkeypatch.setattr(tiles, "asked", {})
    names = [name for name, module in base.passes().items() if not module.blocked(fast_engine)]
    assert {"seam_fuse", "head_argmax", "moe_fuse", "mla_fuse", "kda_out", "norm_fuse"} <= set(names)
    plain = list(fast_engine.stream([1, 2, 3], 3))
    with base.applied(fast_engine, names) as proofs:
        assert set(proofs) == set(names)
        found = list(fast_engine.stream([1, 2, 3], 3))
        list(fast_engine.stream([4, 1, 2], 2, Sampling(1.0, 5)))
        assert list(fast_engine.stream([1, 2, 3], 3)) == found
    if not GPU:  # fp32: rounding decides nothing
        assert found == plain
        assert all(key.endswith(" float32") for key in tiles.asked)  # none of those tuned for bf16
    assert list(fast_engine.stream([1, 2, 3], 3)) == plain


@pytest.mark.parametrize("idle", ["moe_align_pairs", "swiglu_epilogue"])
def test_a_pass_that_another_replaces_is_left_out(fast_engine, idle):
    """moe_direct needs neither alignment nor the grouped product."""
    with base.applied(fast_engine, [idle, "moe_direct"]) as proofs:
        assert proofs[idle] == "idle: moe_direct takes its place"
        assert fast_engine.passes[-1:] == ("moe_direct",)
        assert not isinstance(fast_engine.model.decode_ops.moe_align, base.Exchanged)


def test_a_pass_without_effect_is_told(engine):
    for name in ("bf16_head", "bf16_gate", "cuda_graph", *KERNELS):
        if not GPU or name != "cuda_graph":
            with pytest.raises(base.NotOn):
                base.passes()[name].took_effect(engine)


EXACT = [name for name, module in base.passes().items() if module.exact]


@pytest.mark.skipif(not GPU, reason="no CUDA GPU: that exact passes keep every token is NOT tested")
@pytest.mark.parametrize("names", [*([name] for name in EXACT), EXACT], ids=str)
def test_exact_passes_keep_every_token(names):
    engine = Engine(TINY, weights.random(TINY), 1500)
    prompt = torch.randint(TINY.vocab, (1000,)).tolist()
    plain = list(engine.stream(prompt, 256))
    with base.applied(engine, names):
        assert list(engine.stream(prompt, 256)) == plain
        list(engine.stream(prompt, 32, Sampling(1.0, 5)))
        assert list(engine.stream(prompt, 256)) == plain
    assert list(engine.stream(prompt, 256)) == plain

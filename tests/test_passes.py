"""The registry, applying and undoing, and every kernel of a pass against the operation it stands for."""

import ast
import json
import re
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from types import ModuleType

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from conftest import BUNDLED  # noqa: E402

from ling_prof import UserError, load  # noqa: E402
from ling_prof.errors import Missing  # noqa: E402
from optim import base, kernels  # noqa: E402
from optim.engine import weights  # noqa: E402
from optim.engine.config import NANO, TINY  # noqa: E402
from optim.engine.generate import Engine  # noqa: E402
from optim.engine.sample import Sampling  # noqa: E402

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
KERNELS = ["moe_align_pairs", "swiglu_epilogue", "kda_fused", "gemv", "moe_direct"]
triton = kernels.load("triton")


def same(found, expected, bitwise=GPU):
    """Bitwise on a GPU; the interpreter's sums depend on the shapes of its blocks."""
    if bitwise:
        assert torch.equal(found, expected)
    else:
        rounding = 1e-5 if found.dtype == torch.float32 else 2e-2
        torch.testing.assert_close(found, expected, rtol=rounding, atol=rounding)


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
    found = base.passes()[name].find(trace)
    assert list(found.columns) == list(base.COLUMNS)
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


def test_figures_of_sites(trace):
    """Two alignment launches in each of 23 layers; one head."""
    align = base.passes()["moe_align_pairs"].find(trace)
    assert align["count"].tolist() == [23, 23]
    assert base.passes()["kda_fused"].find(trace)["count"].tolist() == [18, 18, 18]
    head = base.passes()["bf16_head"].find(trace)
    assert head["count"].sum() == 1
    assert 150_000 < head["time_ns"].sum() < 300_000


def test_an_unknown_pass_is_named_with_those_there_are():
    with pytest.raises(UserError, match="no pass pld; there are cuda_graph, host_run_ahead, "):
        base.named(["pld"])


@pytest.mark.parametrize("missing", [*base.NEEDED, "exact"])
def test_a_file_that_breaks_the_interface_fails(missing, monkeypatch):
    module = ModuleType("optim.passes.half", "A pass.")
    for name in {*base.NEEDED, "exact"} - {missing, "__doc__"}:
        setattr(module, name, True if name == "exact" else print)
    if missing == "__doc__":
        module.__doc__ = None
    monkeypatch.setitem(sys.modules, "optim.passes.half", module)
    with pytest.raises(TypeError, match=f"optim/passes/half.py lacks {missing}"):
        base._checked("half")


def test_on_a_cpu_what_needs_a_gpu_is_blocked(engine):
    if GPU:
        pytest.skip("there is a GPU")
    blocked = {name for name, module in base.passes().items() if module.blocked(engine)}
    assert blocked == {"cuda_graph", "seam_graph", "host_run_ahead", "pdl", *KERNELS}
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
    engine.prefill([1, 2, 3])
    with base.applied(engine, ["bf16_head"]):
        assert engine.passes == ("bf16_head",)
        with pytest.raises(UserError, match="no request"):
            engine.step()
        engine.prefill([1, 2, 3])
    assert engine.passes == ()
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
def test_an_exchanged_kernel_is_proved_by_its_calls(fast_engine, name):
    with base.applied(fast_engine, [name]) as proofs:
        assert re.search(r"is that of optim\.kernels\.\w+\.\w+, called [1-9]\d* times", proofs[name])
        assert fast_engine.passes[-1] == name


@pytest.mark.parametrize("idle", ["moe_align_pairs", "swiglu_epilogue"])
def test_a_pass_that_another_replaces_is_left_out(fast_engine, idle):
    """moe_direct needs neither alignment nor the grouped product."""
    with base.applied(fast_engine, [idle, "moe_direct"]) as proofs:
        assert proofs[idle] == "idle: moe_direct takes its place"
        assert fast_engine.passes[-1:] == ("moe_direct",)
        assert not isinstance(fast_engine.model.decode_ops.moe_align, base.Counted)


def test_a_pass_without_effect_is_told(engine):
    for name in ("bf16_head", "bf16_gate", "cuda_graph", *KERNELS):
        if not GPU or name != "cuda_graph":
            with pytest.raises(base.NotOn):
                base.passes()[name].took_effect(engine)


@pytest.mark.parametrize(("tokens", "k", "experts"), [(1, 8, 128), (1, 1, 1), (8, 8, 128), (5, 4, 16), (9, 8, 128)])
def test_moe_align_pairs(tokens, k, experts):
    from optim.kernels.moe.pairs import moe_align

    chosen = torch.rand(tokens, experts, device=DEVICE).argsort(-1)[:, :k].int()
    found, expected = moe_align(chosen, experts), kernels.load("naive").moe_align(chosen, experts)
    blocks = int(expected[2]) // (len(expected[0]) // len(expected[1]))
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1][:blocks], expected[1][:blocks])
    assert torch.equal(found[2], expected[2])


@pytest.mark.parametrize("limit", [None, 0.5])
@pytest.mark.parametrize(("hidden", "width"), [(64, 32), (70, 33)] + [(1536, 512)] * GPU)
def test_swiglu_epilogue_is_bitwise_the_same(limit, hidden, width):
    from optim.kernels.moe.epilogue import experts_up

    dtype = torch.bfloat16 if GPU else torch.float32
    x, weight = (torch.randn(*s, device=DEVICE).to(dtype) for s in ((1, hidden), (16, 2 * width, hidden)))
    order = triton.moe_align(torch.tensor([[3, 1, 9, 15]], dtype=torch.int32, device=DEVICE), 16)
    same(experts_up(x, weight, *order, 4, limit), triton.experts_up(x, weight, *order, 4, limit))


@pytest.mark.parametrize("heads_d", [(2, 32)] + [(16, 128)] * GPU)
@pytest.mark.parametrize("bound", [-5.0, None])
def test_kda_fused(heads_d, bound):
    from types import SimpleNamespace

    from optim.kernels.kda.fused import kda_decode

    heads, d = heads_d
    dtype = torch.bfloat16 if GPU else torch.float32

    def normal(*shape, of=dtype):
        return torch.randn(*shape, device=DEVICE).to(of)

    fp32 = torch.float32
    w = SimpleNamespace(conv=normal(3 * heads * d, 4, of=fp32), a_log=normal(heads, of=fp32))
    w.dt_bias, w.o_norm = normal(heads * d, of=fp32), normal(d)
    conv, state = normal(2, 3 * heads * d, 3), normal(2, heads, d, d, of=fp32)
    inputs = (normal(1, 3 * heads * d), normal(1, heads * d), normal(1, heads), normal(1, heads * d))
    row = torch.ones(1, dtype=torch.int32, device=DEVICE)
    results = []
    for decode in (triton.kda_decode, kda_decode):
        own = conv.clone(), state.clone()
        results.append((decode(*inputs, w, *own, row, bound, 1e-6), *own))
    for expected, found in zip(*results, strict=True):
        same(found, expected, bitwise=GPU and d == 128)  # of narrow heads the two tiles add up in another order


@pytest.mark.parametrize("dtype", [torch.float32] + [torch.bfloat16] * GPU, ids=str)
@pytest.mark.parametrize(("n", "depth"), [(16, 64), (300, 70), (37, 1536)] + [(157184, 1536), (6144, 1536)] * GPU)
def test_gemv(n, depth, dtype):
    from optim.kernels.linear.gemv import linear

    x, weight = torch.randn(1, depth, device=DEVICE).to(dtype), torch.randn(n, depth, device=DEVICE).to(dtype)
    found, expected = linear(x, weight).double(), x.double() @ weight.double().T
    assert (found - expected).norm() < (1e-6 if dtype == torch.float32 else 4e-3) * expected.norm()
    assert torch.equal(linear(x.expand(3, -1), weight), torch.nn.functional.linear(x.expand(3, -1), weight))


@pytest.mark.parametrize("limit", [None, 0.5])
@pytest.mark.parametrize(("hidden", "width"), [(64, 32), (70, 33)] + [(1536, 512)] * GPU)
def test_moe_direct(limit, hidden, width):
    from types import SimpleNamespace

    from optim.engine import moe
    from optim.kernels.moe.direct import routed

    naive, dtype = kernels.load("naive"), torch.bfloat16 if GPU else torch.float32
    w = SimpleNamespace(w13=torch.randn(16, 2 * width, hidden) * 0.1, w2=torch.randn(16, hidden, width) * 0.1)
    w = SimpleNamespace(**{name: tensor.to(DEVICE, dtype) for name, tensor in vars(w).items()})
    for tokens in (1, 3):
        x, shared = (torch.randn(tokens, hidden, device=DEVICE).to(dtype) for _ in range(2))
        experts = torch.rand(tokens, 16, device=DEVICE).argsort(-1)[:, :4].int()
        inputs = (x, w, torch.rand(tokens, 4, device=DEVICE), experts, shared, limit, naive)
        found, expected = routed(*inputs).double(), moe.routed(*inputs).double()
        assert (found - expected).norm() < (1e-2 if GPU else 1e-6) * expected.norm()


def test_every_chained_kernel_waits():
    """What `launch` starts calls chain(PDL) unconditionally: before anything but loads, and never inside a branch."""
    for path in (BUNDLED.parent / "optim/kernels").glob("*/*.py"):
        tree = ast.parse(path.read_text())
        launched = {
            call.args[0].id
            for call in ast.walk(tree)
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "launch"
        }
        for kernel in (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in launched):
            calls = [line for line in kernel.body if ast.unparse(line) == "chain(PDL)"]
            assert len(calls) == 1, kernel.name
            before = "\n".join(map(ast.unparse, kernel.body[: kernel.body.index(calls[0])]))
            assert "tl.store" not in before, kernel.name
            assert before.count("tl.load(") == (kernel.name == "gemv_kernel"), kernel.name  # its weights: constants
            assert "return" not in before, kernel.name
        assert launched <= {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


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

"""The kernels that passes put in place of others agree with what they stand for."""

import os
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when triton is imported

from optim import kernels
from optim.engine import compose, mla
from optim.engine.cache import Cache, Metadata
from optim.engine.config import NANO, TINY
from optim.kernels import tiles

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
DTYPE = torch.bfloat16 if GPU else torch.float32
CLOSE = 1e-2 if GPU else 1e-5
WIDE = "" if GPU else " float32"  # in keys of tiles
naive, triton = (compose.complete(kernels.load(kind)) for kind in ("naive", "triton"))


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def normal(*shape, of=DTYPE, scale=1.0):
    return (torch.randn(*shape, device=DEVICE) * scale).to(of)


def near(found, expected, most=CLOSE):
    found, expected = found.double(), expected.double()
    assert (found - expected).norm() <= most * expected.norm()


def same(found, expected, bitwise=GPU):
    """Bitwise on a GPU; the interpreter's sums depend on the shapes of its blocks."""
    if bitwise:
        assert torch.equal(found, expected)
    else:
        rounding = 1e-5 if found.dtype == torch.float32 else 2e-2
        torch.testing.assert_close(found, expected, rtol=rounding, atol=rounding)


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
    same(experts_up(x, weight, *order, 4, limit, triton), triton.experts_up(x, weight, *order, 4, limit, triton))


HEADS = [(2, 32, torch.float32)] if not GPU else [(2, 32, DTYPE), (16, 128, DTYPE)]


@pytest.mark.parametrize("values", [4, 8, 16, 32, 64, 128])
@pytest.mark.parametrize(("heads", "d", "dtype"), HEADS, ids=str)
@pytest.mark.parametrize("bound", [-5.0, None])
def test_kda_fused(heads, d, dtype, bound, values, monkeypatch):
    """Bitwise on a GPU, whatever the tile; of narrow heads the sums over keys go another way."""
    from optim.kernels.kda.fused import kda_core

    if values > d:
        pytest.skip("a head has fewer values")
    monkeypatch.setitem(tiles.trial, f"kda_step_fused {heads}x{d}{WIDE}", {"BV": values})
    fp32 = torch.float32
    w = SimpleNamespace(conv=normal(3 * heads * d, 4, of=fp32), a_log=normal(heads, of=fp32))
    w.dt_bias = normal(heads * d, of=fp32)
    ring, state = normal(2, 3 * heads * d, 4, of=dtype), normal(2, heads, d, d, of=fp32)
    meta = SimpleNamespace(
        row=torch.ones(1, dtype=torch.int32, device=DEVICE), position=torch.tensor([6], device=DEVICE)
    )
    for _ in range(30 if GPU else 1):  # a choice of the compiler may show in one number of a million
        inputs = (normal(1, 3 * heads * d, of=dtype), normal(1, heads * d, of=dtype), normal(1, heads, of=dtype))
        results = []
        for core in (compose.kda_core, kda_core):
            own = ring.clone(), state.clone()
            results.append((core(*inputs, w, *own, meta, bound, triton), *own))
        for expected, found in zip(*results, strict=True):
            same(found, expected, bitwise=GPU and d == 128)


@pytest.mark.parametrize("c", [NANO, replace(NANO, gate_bound=None), *([TINY] * GPU)], ids=lambda c: c.name)
def test_kda_out(c):
    from optim.kernels.kda.fused import kda

    heads, d, fp32 = c.heads, c.kda_dim, torch.float32
    w = SimpleNamespace(conv=normal(3 * heads * d, 4, of=fp32), a_log=normal(heads, of=fp32))
    w.dt_bias, w.o_norm, w.o = normal(heads * d, of=fp32), normal(d), normal(c.hidden, heads * d)
    ring, state = normal(2, 3 * heads * d, 4), normal(2, heads, d, d, of=fp32)
    inputs = normal(1, 3 * heads * d), normal(1, heads * d), normal(1, heads * d, scale=5), normal(1, heads)
    row, position = (torch.tensor([n], device=DEVICE) for n in (1, 6))
    meta = SimpleNamespace(row=row.int(), position=position)
    results = []
    for whole in (kda, compose.kda):
        own = ring.clone(), state.clone()
        results.append((whole(*inputs, w, *own, meta, c, naive), *own))
    for found, expected in zip(*results, strict=True):
        near(found, expected)


@pytest.mark.parametrize("dtype", [torch.float32] + [torch.bfloat16] * GPU, ids=str)
@pytest.mark.parametrize(("n", "depth"), [(16, 64), (300, 70), (37, 1536)] + [(157184, 1536), (6144, 1536)] * GPU)
def test_gemv(n, depth, dtype):
    from optim.kernels.linear.gemv import linear

    x, weight = normal(1, depth, of=dtype), normal(n, depth, of=dtype)
    near(linear(x, weight), x.double() @ weight.double().T, 1e-6 if dtype == torch.float32 else 4e-3)
    assert torch.equal(linear(x.expand(3, -1), weight), torch.nn.functional.linear(x.expand(3, -1), weight))


def test_matrices_are_joined_only_where_they_follow_each_other():
    from optim.kernels.linear.concat import adjacent, joined

    parts = normal(3, 8), normal(5, 8), normal(1, 8)
    moved = adjacent(parts)
    assert torch.equal(joined(moved), torch.cat(parts))
    assert all(map(torch.equal, moved, parts))
    assert joined(parts) is None
    assert joined((moved[0], moved[2])) is None
    assert joined((moved[1], moved[0])) is None
    assert torch.equal(joined(moved[1:]), torch.cat(parts[1:]))
    whole = normal(3 * 8 + 5 * 4)
    assert joined((whole[:24].view(3, 8), whole[24:].view(5, 4))) is None


@pytest.mark.parametrize("concatenated", [False, True])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("sizes", "depth"), [((300, 5), 70), ((37, 1), 1536)] + [((6144, 2048, 16), 1536)] * GPU)
def test_norm_linears(sizes, depth, stream, concatenated):
    from optim.kernels.linear.concat import adjacent
    from optim.kernels.linear.normed import norm_linears

    matrices, weight = tuple(normal(n, depth) for n in sizes), torch.rand(depth, device=DEVICE).to(DTYPE)
    if concatenated:
        matrices = adjacent(matrices)
    for tokens in (1, 3):
        x, residual = normal(tokens, depth), normal(tokens, depth) if stream else None
        found, total = norm_linears(x, residual, weight, matrices, 1e-6, naive)
        expected, summed = compose.norm_linears(x, residual, weight, matrices, 1e-6, naive)
        assert torch.equal(total, summed)
        for a, b in zip(found, expected, strict=True):
            near(a, b)


ROUTINGS = [
    NANO,
    replace(NANO, groups=1, kept_groups=1),
    replace(NANO, groups=16, kept_groups=8, top_k=3),
    *([TINY] * GPU),
]


def moe_weights(c, width):
    w = SimpleNamespace(router=normal(c.experts, c.hidden, of=torch.float32, scale=0.1))
    w.bias, w.mlp_norm = normal(c.experts, of=torch.float32, scale=0.01), normal(c.hidden)
    w.shared_gate_up, w.shared_down = normal(2 * width, c.hidden, scale=0.1), normal(c.hidden, width)
    w.w13, w.w2 = normal(c.experts, 2 * width, c.hidden, scale=0.1), normal(c.experts, c.hidden, width)
    return w


@pytest.mark.parametrize("limits", [(None, None), (0.4, 0.3)], ids=str)
@pytest.mark.parametrize("width", [32, 33])
@pytest.mark.parametrize("narrow", [False] + [True] * GPU)  # in fp32 there is nothing narrower
@pytest.mark.parametrize("c", ROUTINGS, ids=lambda c: f"{c.name} {c.groups} {c.top_k}")
@pytest.mark.usefixtures("few_programs")
def test_moe_fused(c, limits, width, narrow):
    from optim.kernels.moe.fused import moe

    w = moe_weights(c, width)
    if narrow:
        w.router = w.router.to(DTYPE)
    for tokens in (1, 3):
        x, residual = normal(tokens, c.hidden), normal(tokens, c.hidden)
        found, total = moe(x, residual, w, c, limits, naive)
        expected, summed = compose.moe(x, residual, w, c, limits, naive)
        assert torch.equal(total, summed)
        near(found, expected)


@pytest.mark.parametrize("tied", [(0, 1, 2, 3), (5, 4), (15, 3, 9), ()], ids=str)
def test_of_equal_experts_the_first_is_taken(tied):
    """Experts that differ in nothing but their number: any other choice gives another output."""
    from optim.kernels.moe.fused import moe

    w = moe_weights(NANO, 32)
    w.router[list(tied)] = 0
    w.bias.zero_()
    x, residual = normal(1, 64), normal(1, 64)
    near(*(f(x, residual, w, NANO, (None, None), naive)[0] for f in (moe, compose.moe)))


@pytest.mark.parametrize("limit", [None, 0.5])
@pytest.mark.parametrize(("hidden", "width", "inner"), [(64, 32, 32), (70, 33, 20)] + [(1536, 512, 512)] * GPU)
def test_moe_direct(limit, hidden, width, inner):
    from optim.kernels.moe.direct import experts

    w = SimpleNamespace(w13=normal(16, 2 * width, hidden, scale=0.1), w2=normal(16, hidden, width, scale=0.1))
    w.shared_down = normal(hidden, inner, scale=0.1)
    for tokens in (1, 3):
        x, shared = normal(tokens, hidden), normal(tokens, inner)
        chosen = torch.rand(tokens, 16, device=DEVICE).argsort(-1)[:, :4].int()
        inputs = (x, w, torch.rand(tokens, 4, device=DEVICE), chosen, shared, limit, naive)
        near(experts(*inputs), compose.experts(*inputs))


LAYERS = [
    NANO,
    replace(NANO, q_lora=None),
    replace(NANO, rope_theta=None, head_gate=False),
    replace(NANO, heads=17),
    replace(NANO, nope=24, v_dim=40),
    *([TINY] * GPU),
]


@pytest.mark.parametrize("seen", [0, 5, 31, 32, 300, 2100])
@pytest.mark.parametrize("c", LAYERS, ids=lambda c: f"{c.name} {c.heads} {c.q_lora} {c.rope_theta} {c.nope}")
@pytest.mark.usefixtures("few_programs")
def test_mla_fused(c, seen):
    attends_as_the_separate_kernels(c, seen)


def test_mla_fused_in_its_usual_tiles():
    attends_as_the_separate_kernels(NANO, 300)


def attends_as_the_separate_kernels(c, seen):
    """Slots in any order; the latent is stored as by them."""
    from optim.kernels.mla.fused import absorbed, mla_core

    cache = Cache(c, 2200, DTYPE, DEVICE)
    cache.latent.normal_()
    cache.slots.copy_(torch.randperm(2200))
    meta, table = Metadata(cache), mla.rope_table(c, 2200, DEVICE)
    meta.refill(cache, seen)
    w = SimpleNamespace(kv_norm=normal(c.kv_lora), q_norm=normal(c.q_lora or 1))
    w.kv_b = normal(c.heads * (c.nope + c.v_dim), c.kv_lora, scale=0.05)  # scores near 1: steep ones show bf16
    w.q_b = normal(c.heads * (c.nope + c.rope), c.q_lora or 1, scale=0.05)
    w.q_absorbed = None if c.q_lora is None else absorbed(w, c)
    q = normal(1, c.q_lora or c.heads * (c.nope + c.rope))
    kv, gate = normal(1, c.kv_lora + c.rope), [normal(1, c.heads)] * c.head_gate
    results = []
    for core in (mla_core, compose.mla_core):
        latent = cache.latent[0].clone()
        results.append((core(q, kv, gate, w, latent, table, meta, c, naive), latent))
    for found, expected in zip(*results, strict=True):
        near(found, expected)


@pytest.mark.parametrize("n", [5, 16, 17, 61] + [301, 1000] * GPU)
def test_head_argmax(n):
    """The token is that of its own logits; ties take the first."""
    from optim.kernels.linear.head import head

    token = torch.zeros(1, dtype=torch.int64, device=DEVICE)
    for matrix in (normal(n, 70), normal(n, 70, of=torch.float32), normal(1, 70).expand(n, -1).contiguous()):
        x, residual, norm = normal(1, 70), normal(1, 70), normal(70)
        logits, best = head(x, residual, norm, matrix, 1e-6, naive, token)
        near(logits, compose.head(x, residual, norm, matrix, 1e-6, naive)[0])
        assert best is token
        assert int(token) == int((logits[0] == logits.max()).nonzero()[0])


@pytest.mark.parametrize("seen", [0, 5, 127, 128, 1499])
def test_seam_in_the_first_launch(seen):
    from optim.kernels.embed.seam import begin

    cache = Cache(NANO, 1500, DTYPE, DEVICE)
    cache.slots.copy_(torch.randperm(1500))
    found, expected = Metadata(cache), Metadata(cache)
    token, counted = (torch.tensor([n], device=DEVICE) for n in (3, seen))
    table = normal(7, 1600)
    assert torch.equal(begin(token, table, counted, cache, found), table[3:4])
    assert int(counted) == seen + 1
    expected.refill(cache, seen)
    assert torch.equal(found.slots[: seen + 1], expected.slots[: seen + 1])
    for name in ("position", "slot", "length", "splits", "row"):
        assert torch.equal(getattr(found, name), getattr(expected, name)), name
    found.park(cache)
    begin(token, table, counted, cache, found)
    assert (int(found.position), int(found.row), int(found.slot)) == (0, 0, 1500)


@pytest.mark.skipif(GPU, reason="on a GPU nothing is interpreted")
def test_the_interpreter_gives_the_same_when_it_looks_every_time(monkeypatch):
    """As tests/conftest.py has it look once a launch."""
    from triton.runtime import interpreter

    from optim.kernels.linear.gemv import linear

    x, weight = normal(1, 64), normal(600, 64)
    found = linear(x, weight)
    monkeypatch.setattr(interpreter, "_patch_lang", interpreter._patch_lang.__wrapped__)
    assert torch.equal(linear(x, weight), found)

"""Every Triton kernel against its naive twin: fresh random inputs, odd shapes, extreme gates, poisoned memory.

On a GPU in bf16 and fp32 at real sizes; elsewhere in Triton's interpreter, in fp32 and small.
"""

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
GPU = torch.cuda.is_available()

from ling_prof.errors import UserError  # noqa: E402
from optim.engine.config import NANO  # noqa: E402
from optim.engine.generate import Engine  # noqa: E402
from optim.engine.weights import random  # noqa: E402
from optim.kernels import load  # noqa: E402
from optim.kernels.moe.naive import block_rows, padded_rows  # noqa: E402

DEVICE = "cuda" if GPU else "cpu"
naive, fast = load("naive"), load("triton")
real_empty, real_empty_like, real_new_empty = torch.empty, torch.empty_like, torch.Tensor.new_empty
DTYPES = (torch.float32, torch.bfloat16) if GPU else (torch.float32,)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
EXACT = {torch.float32: 2e-6, torch.bfloat16: 4e-3}  # one rounding apart
PRODUCT = {torch.float32: 2e-5, torch.bfloat16: 8e-3}


@pytest.fixture(autouse=True)
def poison(monkeypatch):
    """Memory that a kernel allocates begins as NaN, or as a huge index."""

    def fill(tensor):
        return tensor.fill_(float("nan") if tensor.is_floating_point() else 2**30)

    monkeypatch.setattr(torch, "empty", lambda *a, **k: fill(real_empty(*a, **k)))
    monkeypatch.setattr(torch, "empty_like", lambda *a, **k: fill(real_empty_like(*a, **k)))
    monkeypatch.setattr(torch.Tensor, "new_empty", lambda *a, **k: fill(real_new_empty(*a, **k)))


def normal(*shape, dtype=torch.float32, scale=1.0):
    return (torch.randn(*shape, device=DEVICE) * scale).to(dtype)


def row(number):
    return torch.tensor([number], dtype=torch.int32, device=DEVICE)


def close(got, expected, limit):
    assert got.shape == expected.shape
    assert got.dtype == expected.dtype
    assert got.isfinite().all()
    error = (got.double() - expected.double()).norm() / expected.double().norm().clamp(min=1e-30)
    assert error < limit, f"relative error {error:.2e}"


@every_dtype
@pytest.mark.parametrize(("tokens", "width"), [(1, 1536), (3, 2560), (5, 33)])
def test_rms_norm(dtype, tokens, width):
    x, weight = normal(tokens, width, dtype=dtype, scale=30), normal(width, dtype=dtype)
    close(fast.rms_norm(x, weight, 1e-6), naive.rms_norm(x, weight, 1e-6), EXACT[dtype])
    wide = normal(tokens, width + 7, dtype=dtype)[:, :width]  # rows further apart than they are long
    close(fast.rms_norm(wide, weight, 1e-6), naive.rms_norm(wide, weight, 1e-6), EXACT[dtype])


@every_dtype
@pytest.mark.parametrize(("tokens", "width"), [(1, 1536), (3, 100)])
def test_add_rms_norm(dtype, tokens, width):
    x, residual = normal(tokens, width, dtype=dtype), normal(tokens, width, dtype=dtype)
    weight = normal(width, dtype=dtype)
    got, expected = fast.add_rms_norm(x, residual, weight, 1e-6), naive.add_rms_norm(x, residual, weight, 1e-6)
    close(got[0], expected[0], EXACT[dtype])
    assert torch.equal(got[1], expected[1])


@every_dtype
@pytest.mark.parametrize("shape", [(1, 16, 128), (3, 5, 24)])
def test_gated_rms_norm(dtype, shape):
    x, gate, weight = normal(*shape, dtype=dtype), normal(*shape, dtype=dtype, scale=20), normal(shape[2], dtype=dtype)
    close(fast.gated_rms_norm(x, gate, weight, 1e-6), naive.gated_rms_norm(x, gate, weight, 1e-6), EXACT[dtype])


@every_dtype
@pytest.mark.parametrize("channels", [2048, 37])
def test_conv(dtype, channels):
    """Three prefills and two updates in a row agree with one long prefill; the row of another request stays."""
    x, weight = normal(150, channels, dtype=dtype), normal(channels, 4)
    state = normal(3, channels, 4, dtype=dtype)
    expected_state, before = state.clone(), state.clone()
    expected = naive.conv_prefill(x, weight, expected_state, row(1), 7)
    parts = [fast.conv_prefill(x[a:b], weight, state, row(1), 7 + a) for a, b in ((0, 1), (1, 83), (83, 148))]
    parts += [fast.conv_update(x[t : t + 1], weight, state, row(1), row(7 + t)) for t in (148, 149)]
    close(torch.cat(parts), expected, EXACT[dtype])
    assert torch.equal(state, expected_state)
    assert torch.equal(state[[0, 2]], before[[0, 2]])


@every_dtype
@pytest.mark.parametrize("bound", [-5.0, None])
@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_kda_gate(dtype, bound, scale):
    f, b = normal(3, 5 * 24, dtype=dtype, scale=scale), normal(3, 5, dtype=dtype, scale=scale)
    a_log, dt_bias = normal(5), normal(120)
    for got, expected in zip(
        fast.kda_gate(f, b, a_log, dt_bias, bound), naive.kda_gate(f, b, a_log, dt_bias, bound), strict=True
    ):
        close(got, expected, EXACT[torch.float32])


def kda_inputs(tokens, heads, d, dtype, decay):
    """Random q, k, v, g, beta; `decay` is a number for every g, or None for random ones down to -5."""
    q, k, v = normal(tokens, 3, heads, d, dtype=dtype).unbind(1)  # as one projection leaves them
    g = torch.rand(tokens, heads, d, device=DEVICE) * -5 if decay is None else normal(tokens, heads, d) * 0 + decay
    return q, k, v, g, torch.rand(tokens, heads, device=DEVICE)


@every_dtype
@pytest.mark.parametrize(("heads", "d"), [(16, 128), (3, 40)])
@pytest.mark.parametrize("decay", [None, 0.0, -5.0, -300.0])
def test_kda_step(dtype, heads, d, decay):
    inputs, state = kda_inputs(1, heads, d, dtype, decay), normal(3, heads, d, d)
    expected_state, before = state.clone(), state.clone()
    close(fast.kda_step(*inputs, state, row(2)), naive.kda_step(*inputs, expected_state, row(2)), PRODUCT[dtype])
    close(state[2], expected_state[2], 2e-5)
    assert torch.equal(state[:2], before[:2])


@every_dtype
@pytest.mark.parametrize(("tokens", "heads", "d"), [(1, 2, 32), (16, 1, 16), (37, 2, 32)] + [(1025, 16, 128)] * GPU)
@pytest.mark.parametrize("decay", [None, 0.0, -5.0])
def test_kda_chunk(dtype, tokens, heads, d, decay):
    """Agrees with the recurrence, one token at a time."""
    inputs, state = kda_inputs(tokens, heads, d, dtype, decay), normal(2, heads, d, d)
    expected_state = state.clone()
    steps = [naive.kda_step(*(x[t : t + 1] for x in inputs), expected_state, row(1)) for t in range(tokens)]
    for kernels in (naive, fast):
        own = state.clone()
        close(kernels.kda_chunk(*inputs, own, row(1)), torch.cat(steps), PRODUCT[dtype] * 2)
        close(own[1], expected_state[1], 1e-4)
        assert torch.equal(own[0], state[0])


@every_dtype
@pytest.mark.parametrize(("tokens", "heads"), [(1, 16), (5, 1), (3, 7)])
def test_rope(dtype, tokens, heads):
    x = normal(tokens, heads, 100, dtype=dtype)[..., 36:]  # the last 64 of each head, as MLA's query holds them
    positions = torch.randint(200, (tokens,), device=DEVICE)
    angles = torch.rand(200, 32, device=DEVICE) * 6.3
    table = torch.cat([angles.cos(), angles.sin()], -1)
    close(fast.rope(x, positions, table), naive.rope(x, positions, table), EXACT[dtype])


@every_dtype
def test_mla_store(dtype):
    cache, before = (normal(50, 48, dtype=dtype),) * 2
    before = cache.clone()
    latent, k_rope = normal(3, 32, dtype=dtype), normal(3, 20, dtype=dtype)[:, 4:]
    slot = torch.tensor([7, 49, 0], dtype=torch.int32, device=DEVICE)
    fast.mla_store(latent, k_rope, cache, slot)
    naive.mla_store(latent, k_rope, before, slot)
    assert torch.equal(cache, before)


@every_dtype
@pytest.mark.parametrize(("heads", "lora", "rope"), [(2, 32, 16), (20, 32, 16)] + [(16, 512, 64), (8, 512, 64)] * GPU)
@pytest.mark.parametrize(("length", "splits"), [(1, 1), (33, 2), (100, 64), (257, 3)] + [(9000, 64)] * GPU)
def test_mla_decode(dtype, heads, lora, rope, length, splits):
    """The slots are scattered; those behind the context and their cache rows hold poison."""
    cache = normal(length + 40, lora + rope, dtype=dtype).contiguous()
    slots = torch.full((length + 33,), 2**30, dtype=torch.int32, device=DEVICE)
    slots[:length] = torch.randperm(length + 40, device=DEVICE)[:length].int()
    unused = torch.ones(len(cache), dtype=torch.bool, device=DEVICE)
    unused[slots[:length].long()] = False
    cache[unused] = float("nan")
    q_latent, q_rope = normal(heads, lora, dtype=dtype, scale=3), normal(heads, rope, dtype=dtype, scale=3)
    arguments = (q_latent, q_rope, cache, slots, row(length), row(splits), 0.07)
    close(fast.mla_decode(*arguments), naive.mla_decode(*arguments), PRODUCT[dtype])


@every_dtype
def test_head_gate(dtype):
    """Also for heads first in memory, as the product before it leaves them."""
    for o in (normal(3, 5, 24, dtype=dtype), normal(5, 3, 24, dtype=dtype).transpose(0, 1)):
        gate = normal(3, 5, dtype=dtype, scale=20)
        close(fast.head_gate(o, gate), naive.head_gate(o, gate), EXACT[dtype])


@pytest.mark.parametrize(
    ("experts", "groups", "kept", "k"), [(128, 8, 4, 8), (16, 4, 2, 4), (4, 4, 2, 2), (512, 8, 4, 8)]
)
def test_route(experts, groups, kept, k):
    logits, bias = normal(40, experts), normal(experts, scale=0.1)
    for got, expected in zip(
        fast.route(logits, bias, groups, kept, k, 2.5), naive.route(logits, bias, groups, kept, k, 2.5), strict=True
    ):
        close(got, expected, 1e-6)


def test_route_ties_go_to_the_lowest_id():
    logits, bias = torch.zeros(3, 32, device=DEVICE), torch.zeros(32, device=DEVICE)
    logits[1, 9:11] = 1.0  # a group whose two best are equal
    logits[2, ::2] = 40.0  # sigmoid saturates: many equal ones
    expected = naive.route(logits, bias, 8, 4, 8, 1.0)
    assert torch.equal(fast.route(logits, bias, 8, 4, 8, 1.0)[1], expected[1])
    assert expected[1].tolist()[0] == list(range(8))
    assert expected[1].tolist()[1][:3] == [9, 10, 0]
    assert expected[1].tolist()[2] == [0, 2, 4, 6, 8, 10, 12, 14]


@pytest.mark.parametrize(("tokens", "k", "experts"), [(1, 8, 128), (1, 1, 1), (200, 4, 16), (300, 4, 16)])
def test_moe_align(tokens, k, experts):
    chosen = torch.rand(tokens, experts, device=DEVICE).argsort(-1)[:, :k].int()
    pairs, of_block, used = fast.moe_align(chosen, experts)
    expected = naive.moe_align(chosen, experts)
    assert int(used) == int(expected[2])
    block = block_rows(tokens * k, experts)
    assert len(pairs) == padded_rows(tokens * k, experts, block)
    assert len(of_block) == len(pairs) // block
    assert torch.equal(pairs, expected[0])
    assert torch.equal(of_block[: int(used) // block], expected[1][: int(used) // block])


@every_dtype
@pytest.mark.parametrize("limit", [None, 0.5])
@pytest.mark.parametrize(
    ("tokens", "k", "experts", "hidden", "width"),
    [(1, 4, 16, 64, 32), (100, 4, 16, 70, 33)] + [(1, 8, 128, 1536, 512), (700, 8, 32, 1536, 512)] * GPU,
)
def test_experts(dtype, limit, tokens, k, experts, hidden, width):
    """Sort, up-projection, activation, down-projection and sum: every stage agrees on the same inputs."""
    chosen = torch.rand(tokens, experts, device=DEVICE).argsort(-1)[:, :k].int()
    x, w13 = normal(tokens, hidden, dtype=dtype), normal(experts, 2 * width, hidden, dtype=dtype, scale=hidden**-0.5)
    w2 = normal(experts, hidden, width, dtype=dtype, scale=width**-0.5)
    order = naive.moe_align(chosen, experts)
    up = naive.grouped_gemm(x, w13, *order, k)
    close(fast.grouped_gemm(x, w13, *order, k), up, PRODUCT[dtype])
    active = naive.swiglu(up, limit)
    close(fast.swiglu(up, limit), active, EXACT[dtype])
    down = naive.grouped_gemm(active, w2, *order, 1)
    close(fast.grouped_gemm(active, w2, *order, 1), down, PRODUCT[dtype])
    weights, shared = torch.rand(tokens, k, device=DEVICE), normal(tokens, hidden, dtype=dtype)
    close(fast.combine(down, weights, shared), naive.combine(down, weights, shared), EXACT[dtype])


@pytest.mark.parametrize("bound", [-8.0, None])
def test_decays_beyond_the_chunk_kernel_take_the_reference(bound):
    """Sixteen of them would overflow fp32 where the kernel splits exp(G_i - G_j)."""
    c = replace(NANO, gate_bound=bound, layers=2)
    w = random(c, 0, torch.float32, DEVICE)
    w.layers[0].dt_bias.fill_(30.0)
    prompt = torch.arange(40, device=DEVICE)
    found = [Engine(c, w, 64, kind).model.prefill(prompt, 0) for kind in ("naive", "triton")]
    close(found[1], found[0], 1e-4)


def test_the_triton_engine_decodes_as_the_reference():
    c = replace(NANO, layers=2, dense_layers=0)
    w = random(c, 1, torch.float32, DEVICE)
    naive_text, fast_text = (list(Engine(c, w, 16, kind).stream([5, 6, 7, 8, 9], 3)) for kind in ("naive", "triton"))
    assert naive_text == fast_text


@pytest.mark.parametrize("field", ["kda_dim", "kv_lora", "rope"])
def test_sizes_that_triton_cannot_have_are_named(field):
    c = replace(NANO, **{field: 8 if field == "rope" else 24})
    with pytest.raises(UserError, match=f"{field} {getattr(c, field)}; take kind='naive'"):
        Engine(c, random(c, 0, torch.float32, DEVICE), 64, "triton")


def test_the_two_kinds_offer_the_same_operations():
    assert vars(naive).keys() == vars(fast).keys()
    assert len(vars(naive)) >= 15


def test_poison_is_seen():
    """The guard of this file itself: an output that nothing wrote does not pass."""
    with pytest.raises(AssertionError):
        close(torch.empty(4, device=DEVICE), torch.ones(4, device=DEVICE), 1.0)


@pytest.mark.skipif(not GPU, reason="no CUDA GPU: the kernels ran in the interpreter only, small and in fp32")
def test_real_sizes_and_bf16_were_among_the_cases():
    assert torch.bfloat16 in DTYPES

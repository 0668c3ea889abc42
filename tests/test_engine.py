"""The engine against the formulas in float64, against transformers' kimi_linear, and against itself."""

import math
from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

import reference  # noqa: E402

from ling_prof.errors import UserError  # noqa: E402
from optim import kernels  # noqa: E402
from optim.engine import compose, generate, kda, mla, weights  # noqa: E402
from optim.engine.cache import REQUEST, Cache, Metadata  # noqa: E402
from optim.engine.config import FLASH, MODELS, NANO, TINY, named  # noqa: E402
from optim.engine.generate import Engine  # noqa: E402
from optim.engine.moe import moe  # noqa: E402
from optim.engine.sample import Sampling, sample  # noqa: E402

ROUNDING = 1e-5  # relative, fp32 against fp32 or fp64
EXTREME = 1e-4  # where log decays of a chunk sum to -80 and their differences matter
DIFFERS = 1e-2  # what leaving a feature out must change at least
ODD = replace(  # no two sizes alike: a mistaken one cannot fit
    NANO,
    name="odd",
    hidden=48,
    layers=7,
    layer_group=3,
    heads=3,
    q_lora=20,
    experts=24,
    top_k=5,
    groups=6,
    kept_groups=3,
    moe_intermediate=18,
    shared_intermediate=22,
    dense_intermediate=30,
    dense_layers=2,
    vocab=301,
    kda_dim=26,
    conv=3,
    kv_lora=28,
    nope=12,
    rope=8,
    v_dim=10,
    routed_scaling=1.7,
    gate_bound=-3.0,
    rope_theta=1e3,
    expert_limits=(None,) * 4 + (0.3,) * 3,
    shared_limits=(None,) * 5 + (0.4, 0.5),
)
KIMI = replace(NANO, gate_bound=None, rope_theta=None, head_gate=False, expert_limits=(), shared_limits=())
SAMPLED = Sampling(temperature=0.8, seed=3)
ROW = torch.tensor([REQUEST], dtype=torch.int32)
NAIVE = kernels.load("naive")
compose.complete(NAIVE)
BARE = SimpleNamespace(**vars(NAIVE))  # layers without the norm before them, as other implementations have them
BARE.norm_linears = lambda x, residual, weight, matrices, eps, ops: (ops.linears(x, matrices, ops), residual)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Tensors of this size are slower on many."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def close(got, expected, limit=ROUNDING):
    """Row by row, so that one wrong token cannot hide among many right ones."""
    assert got.shape == expected.shape
    worst = float(distance(got, expected).max())
    assert worst < limit, f"relative error {worst:.2e}"


def distance(got, expected):
    return (got.double() - expected.double()).norm(dim=-1) / expected.double().norm(dim=-1)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def tokens(count, c=NANO, seed=0):
    return torch.randint(c.vocab, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


@cache
def model(c):
    """Random weights whose norms and biases matter too."""
    w, generator = weights.random(c, 0, torch.float32, "cpu"), torch.Generator().manual_seed(1)
    for layer, _, field, spec in weights.specs(c):
        if spec.init in ("one", "bias"):
            low, high = {"one": (0.5, 1.5), "bias": (-0.3, 0.3)}[spec.init]
            getattr(w.layers[layer] if layer >= 0 else w, field).uniform_(low, high, generator=generator)
    return w


@cache
def truth(c=NANO, count=60):
    """The reference's logits after each of tokens(count, c)."""
    return reference.logits(c, model(c), tokens(count, c))


def engine(c=NANO, capacity=128, w=None):
    return Engine(c, w or model(c), capacity)


def logits(e, prompt, then=()):
    """What the engine computes after the prompt and after each token of `then`, which it is made to take."""
    seen, forced = [], iter([*then, 0])

    def take(logits, *_):
        seen.append(logits.clone())
        return torch.tensor(next(forced))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generate, "sample", take)
        e.prefill(prompt)
        for _ in then:
            e.step()
    return torch.stack(seen)


def one_sentence(found):
    text = str(found.value)
    assert text.endswith(".")
    assert ". " not in text
    assert "\n" not in text


# --- against transformers -------------------------------------------------------------------------------------------


def kimi(c=KIMI):
    """transformers' modelling module, and its config that says what `c` says."""
    modeling = pytest.importorskip("transformers.models.kimi_linear.modeling_kimi_linear")
    config = modeling.KimiLinearConfig(
        vocab_size=c.vocab,
        hidden_size=c.hidden,
        num_hidden_layers=c.layers,
        layer_types=["full_attention" if c.is_mla(i) else "linear_attention" for i in range(c.layers)],
        mlp_layer_types=["dense" if c.is_dense(i) else "sparse" for i in range(c.layers)],
        num_attention_heads=c.heads,
        num_key_value_heads=c.heads,
        q_lora_rank=c.q_lora,
        kv_lora_rank=c.kv_lora,
        qk_nope_head_dim=c.nope,
        qk_rope_head_dim=c.rope,
        v_head_dim=c.v_dim,
        intermediate_size=c.dense_intermediate,
        moe_intermediate_size=c.moe_intermediate,
        num_experts=c.experts,
        num_experts_per_token=c.top_k,
        num_expert_group=c.groups,
        topk_group=c.kept_groups,
        routed_scaling_factor=c.routed_scaling,
        linear_head_dim=c.kda_dim,
        linear_num_heads=c.heads,
        linear_conv_kernel_dim=c.conv,
        rms_norm_eps=c.eps,
        pad_token_id=None,
        attn_implementation="eager",
    )
    return modeling, config


def drawn(module):
    """Its parameters drawn anew: matrices that keep sizes, norms around 1, gates that forget slowly and fast."""
    ranges = {"A_log": (-0.5, 0.5), "dt_bias": (-6.0, 0.0), "e_score_correction_bias": (-0.3, 0.3)}
    generator = torch.Generator().manual_seed(7)
    for name, tensor in module.state_dict().items():
        if tensor.squeeze().dim() > 1:
            tensor.normal_(0, 1 if "embed" in name else tensor.shape[-1] ** -0.5, generator=generator)
        else:
            tensor.uniform_(*ranges.get(name.split(".")[-1], (0.5, 1.5)), generator=generator)
    return module.eval().requires_grad_(False)


def from_kda(module):
    """Its low-rank gates multiplied out."""
    p = module.state_dict()
    f, g = (
        (p[f"{x}b_proj.weight"].double() @ p[f"{x}a_proj.weight"].double()).float() for x in ("forget_gate.f_", "g_")
    )
    return {
        "qkv": torch.cat([p[f"{x}_proj.weight"] for x in "qkv"]),
        "conv": p["conv1d.weight"].squeeze(1),
        "f": f,
        "g": g,
        "b": p["b_proj.weight"],
        "a_log": p["forget_gate.A_log"].flatten(),
        "dt_bias": p["forget_gate.dt_bias"],
        "o_norm": p["o_norm.weight"],
        "o": p["o_proj.weight"],
    }


def from_mla(module):
    names = {"q_proj": "q", "q_a_proj": "q_a", "q_a_layernorm": "q_norm", "q_b_proj": "q_b", "o_proj": "o"}
    names |= {"kv_a_proj_with_mqa": "kv_a", "kv_a_layernorm": "kv_norm", "kv_b_proj": "kv_b"}
    return {names[name.removesuffix(".weight")]: tensor for name, tensor in module.state_dict().items()}


def from_mlp(module):
    return {
        "gate_up": torch.cat([module.gate_proj.weight, module.up_proj.weight]),
        "down": module.down_proj.weight,
    }


def from_moe(module):
    return {
        "router": module.gate.weight,
        "bias": module.gate.e_score_correction_bias,
        "w13": module.experts.gate_up_proj,
        "w2": module.experts.down_proj,
        **{f"shared_{name}": tensor for name, tensor in from_mlp(module.shared_experts).items()},
    }


def from_layer(layer, c, i):
    attention = (from_mla if c.is_mla(i) else from_kda)(layer.self_attn)
    feed_forward = (from_mlp if c.is_dense(i) else from_moe)(layer.mlp)
    norms = {"attn_norm": layer.input_layernorm.weight, "mlp_norm": layer.post_attention_layernorm.weight}
    return SimpleNamespace(**attention, **feed_forward, **norms)


def our_kda(w, x, sizes, c):
    """x (T, hidden) in parts of the given sizes: those of 1 by decode, the others by prefill."""
    memory = Cache(c, len(x), torch.float32, "cpu")
    meta, ring, state = Metadata(memory), memory.conv[0], memory.state[0]
    out, seen, w.attn_norm = [], 0, None
    for part in x.split(sizes):
        meta.refill(memory, seen)
        if len(part) > 1:
            out.append(kda.prefill(part, None, w, ring, state, ROW, seen, c, BARE)[0])
        else:
            out.append(kda.decode(part, None, w, ring, state, meta, c, BARE)[0])
        seen += len(part)
    return torch.cat(out)


@pytest.mark.parametrize("length", [2, 5, 16, 17, 63, 64, 65, 130])
def test_kda_prompt_is_kimis(length):
    modeling, config = kimi()
    theirs = drawn(modeling.KimiLinearDeltaAttention(config, 0))
    x = normal(length, KIMI.hidden)
    close(our_kda(SimpleNamespace(**from_kda(theirs)), x, [length], KIMI), theirs(x[None])[0])


@pytest.mark.parametrize("sizes", [[1] * 40, [37, 21, 1, 1, 1, 1, 1], [3, 1, 18, 1, 2]], ids=str)
def test_kda_picked_up_is_kimis(sizes):
    """Theirs with its cache: recurrent for one token, chunked for more; and theirs in one go."""
    modeling, config = kimi()
    theirs, memory = drawn(modeling.KimiLinearDeltaAttention(config, 0)), modeling.DynamicCache(config=config)
    x = normal(sum(sizes), KIMI.hidden)
    ours = our_kda(SimpleNamespace(**from_kda(theirs)), x, sizes, KIMI)
    close(ours, torch.cat([theirs(part[None], cache_params=memory)[0] for part in x.split(sizes)]))
    close(ours, theirs(x[None])[0])


def our_mla(w, x, sizes, c):
    memory = Cache(c, len(x), torch.float32, "cpu")
    meta, table = Metadata(memory), mla.rope_table(c, len(x), "cpu")
    out, seen, w.attn_norm = [], 0, None
    for part in x.split(sizes):
        if len(part) > 1:
            out.append(mla.prefill(part, None, w, memory.latent[0], table, memory, seen, c, BARE)[0])
        else:
            meta.refill(memory, seen)
            out.append(mla.decode(part, None, w, memory.latent[0], table, meta, c, BARE)[0])
        seen += len(part)
    return torch.cat(out)


@pytest.mark.parametrize("sizes", [[37], [20, 13, 4], [1] * 9, [21, 1, 1, 6, 1]], ids=str)
@pytest.mark.parametrize("q_lora", [KIMI.q_lora, None])
def test_mla_is_kimis(sizes, q_lora):
    c = replace(KIMI, q_lora=q_lora)
    modeling, config = kimi(c)
    theirs = drawn(modeling.KimiLinearAttention(config, 1))
    x = normal(sum(sizes), c.hidden)
    causal = torch.full((len(x), len(x)), float("-inf")).triu(1)
    close(our_mla(SimpleNamespace(**from_mla(theirs)), x, sizes, c), theirs(x[None], causal)[0][0])


@pytest.mark.parametrize("length", [1, 3, 40, 100, 300])
@pytest.mark.parametrize("groups", [(4, 2), (4, 4), (1, 1), (2, 1)], ids=str)
def test_moe_is_kimis(length, groups):
    c = replace(KIMI, groups=groups[0], kept_groups=groups[1])
    modeling, config = kimi(c)
    theirs = drawn(modeling.KimiLinearMoE(config))
    x = normal(length, c.hidden)
    bare = SimpleNamespace(**vars(NAIVE) | {"rms_norm": lambda x, weight, eps: x})
    close(moe(x, None, SimpleNamespace(mlp_norm=None, **from_moe(theirs)), 2, c, bare)[0], theirs(x[None])[0])


def test_model_is_kimis():
    """Norms, residuals, dense layers and the head as well."""
    modeling, config = kimi()
    theirs = drawn(modeling.KimiLinearForCausalLM(config))
    layers = [from_layer(layer, KIMI, i) for i, layer in enumerate(theirs.model.layers)]
    top = {"embed": theirs.model.embed_tokens.weight, "norm": theirs.model.norm.weight, "head": theirs.lm_head.weight}
    ids = tokens(40)
    ours = logits(engine(KIMI, w=SimpleNamespace(layers=layers, **top)), ids[:29], ids[29:])
    close(ours, theirs(torch.tensor([ids])).logits[0, 28:])


# --- against the formulas -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 2, 3, 4, 15, 16, 17, 33, 60])
def test_prompt_of_any_length(length):
    close(logits(engine(), tokens(60)[:length])[0], truth()[length - 1])


@pytest.mark.parametrize(
    "change",
    [
        {"q_lora": None},
        {"gate_bound": None},
        {"rope_theta": None},
        {"head_gate": False},
        {"expert_limits": (), "shared_limits": ()},
        {"groups": 1, "kept_groups": 1},
        {"dense_layers": 0},
        {"layers": 3, "dense_layers": 3},
        {"layer_group": 1},
        {"layer_group": 9},
    ],
    ids=str,
)
@pytest.mark.parametrize("base", [NANO, ODD], ids=lambda c: c.name)
def test_every_kind_of_model(base, change):
    c = replace(base, **change)
    ids = tokens(24, c)
    close(logits(engine(c), ids[:19], ids[19:]), truth(c, 24)[18:])


@pytest.mark.parametrize(
    "change",
    [
        {"gate_bound": None},
        {"rope_theta": None},
        {"rope_theta": 1e4},
        {"head_gate": False},
        {"expert_limits": ()},
        {"shared_limits": ()},
        {"expert_limits": (None, None, None, 0.5)},
        {"kept_groups": 4},
        {"groups": 1, "kept_groups": 1},
        {"top_k": 3},
        {"routed_scaling": 1.0},
        {"eps": 1e-2},
    ],
    ids=str,
)
def test_every_feature_matters(change):
    """The agreement above says something only where the result is another one without the feature."""
    off = logits(engine(replace(NANO, **change), w=model(NANO)), tokens(60))[0]
    assert distance(off, truth()[-1]) > (DIFFERS if "eps" not in change else 1e-3)


def test_neighbours_are_rotated_not_halves(monkeypatch):
    order = torch.cat([torch.arange(0, NANO.rope, 2), torch.arange(1, NANO.rope, 2)])
    rope = NAIVE.rope

    def halves(x, positions, table):
        return rope(x[..., order.argsort()], positions, table)[..., order]

    monkeypatch.setattr("optim.kernels.rope.naive.rope", halves)
    assert distance(logits(engine(), tokens(60))[0], truth()[-1]) > DIFFERS


def test_rotation_far_out_is_exact():
    c = replace(FLASH, rope=8)
    x, positions = normal(3, 2, c.rope), torch.tensor([1, 131071, c.max_positions - 1])
    speed = c.rope_theta ** (-torch.arange(0, c.rope, 2, dtype=torch.float64) / c.rope)
    angle = (positions[:, None] * speed)[:, None]
    turned = torch.view_as_complex(x.double().view(3, 2, -1, 2)) * torch.polar(torch.ones_like(angle), angle)
    found = NAIVE.rope(x, positions, mla.rope_table(c, c.max_positions, "cpu"))
    close(found, torch.view_as_real(turned).flatten(-2))


@pytest.mark.parametrize("bound", [-5.0, -1.0, None])
@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_gates_wide_open_and_shut(bound, scale):
    c = replace(NANO, gate_bound=bound)
    w = SimpleNamespace(**vars(model(NANO).layers[0]))
    w.dt_bias, w.a_log = normal(c.kda_width, seed=2) * scale, torch.tensor([-2.0, 2.0])
    x = normal(50, c.hidden) * scale
    expected = reference.kda(x.double(), reference.double(w), c)
    close(our_kda(w, x, [50], c), expected, EXTREME)
    close(our_kda(w, x, [1] * 50, c), expected, EXTREME)


def test_gate_at_its_limits():
    f = torch.tensor([[-1e4, -30.0, 0.0, 30.0, 1e4]])
    g, beta = NAIVE.kda_gate(f, torch.tensor([[-200.0]]), torch.tensor([3.0]), torch.zeros(5), -5.0)
    torch.testing.assert_close(g[0, 0], torch.tensor([0.0, 0.0, -2.5, -5.0, -5.0]))
    assert beta.item() == 0
    g, _ = NAIVE.kda_gate(f, torch.zeros(1, 1), torch.tensor([0.0]), torch.zeros(5), None)
    torch.testing.assert_close(g[0, 0], torch.tensor([0.0, 0.0, -math.log(2), -30.0, -1e4]))


def test_silent_channels_stay_finite():
    """q and k of zero have no direction; the epsilon of their norm decides."""
    w = SimpleNamespace(**vars(model(NANO).layers[0]))
    w.qkv = w.qkv * torch.tensor([1e-4, 0.0, 1.0]).repeat_interleave(NANO.kda_width)[:, None]
    x = normal(20, NANO.hidden)
    w.qkv[NANO.kda_width : NANO.kda_width + NANO.kda_dim] = normal(NANO.kda_dim, NANO.hidden) * 1e-4
    expected = reference.kda(x.double(), reference.double(w), NANO)
    assert expected.norm() > 0
    close(our_kda(w, x, [20], NANO), expected)
    close(our_kda(w, x, [1] * 20, NANO), expected)


def test_limits_are_those_of_ling():
    """silu(gate) from above only, up from both sides."""
    x = torch.tensor([[-9.0, 9.0, 9.0, 0.5, 3.0, 9.0, -9.0, 0.5]])
    silu = [v / (1 + math.exp(-v)) for v in (-9.0, 0.5)]
    expected = torch.tensor([[silu[0] * 3.0, 16.0, -16.0, silu[1] * 0.5]])
    torch.testing.assert_close(NAIVE.swiglu(x, 4.0), expected)


@pytest.mark.parametrize("c", [NANO, ODD, replace(NANO, kept_groups=4), replace(NANO, groups=1, kept_groups=1)])
@pytest.mark.parametrize("tied", [False, True])
def test_router(c, tied):
    """Tied: few different scores, so that ids decide among experts and among groups."""
    scores, bias = normal(200, c.experts) * 2, normal(c.experts, seed=1) * 0.3
    if tied:
        scores, bias = scores.clamp(0, 2).round(), bias.clamp(0, 0.1).mul(10).round() / 10
    found, experts = NAIVE.route(scores, bias, c.groups, c.kept_groups, c.top_k, c.routed_scaling)
    for row, weight, ids in zip(scores, found, experts, strict=True):
        expected = reference.route(row.double(), bias.double(), c)
        assert ids.tolist() == list(expected)
        torch.testing.assert_close(weight, torch.tensor(list(expected.values())))


def test_vanishing_scores_route_somewhere():
    weight, ids = NAIVE.route(torch.full((1, 16), -200.0), torch.zeros(16), 4, 2, 4, 2.5)
    assert weight.isfinite().all()
    assert ids.tolist() == [[0, 1, 2, 3]]


def test_bf16_is_near():
    """A whole model in the dtype that it is served in; the head's products are fp32."""
    w = weights.random(NANO, 0, torch.bfloat16, "cpu")
    expected = reference.logits(NANO, w, tokens(24))
    found = logits(engine(w=w), tokens(24)[:12], tokens(24)[12:])
    assert w.head.dtype == torch.bfloat16  # the caller's weights stay as they were
    assert found.dtype == torch.float32
    assert not torch.equal(found, found.bfloat16().float())
    assert distance(found, expected[11:]).max() < 0.03


# --- against itself -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [1, 2, 5, 16, 37])
def test_decode_is_the_full_forward(first):
    ids = tokens(60)
    found = logits(engine(), ids[:first], ids[first:])
    close(found, truth()[first - 1 :])
    close(found[-1], logits(engine(), ids)[0])


@pytest.mark.parametrize("chunk", [1, 2, 7, 16, 59])
def test_chunks_of_the_prompt_do_not_matter(chunk, monkeypatch):
    ids = tokens(60)
    monkeypatch.setattr(generate, "CHUNK", chunk)
    close(logits(engine(), ids[:55], ids[55:]), truth()[54:])


def test_slots_may_lie_anywhere():
    e, ids = engine(), tokens(60)
    for seed in (1, 2):  # the second request elsewhere than the first
        e.cache.slots.copy_(torch.randperm(128, generator=torch.Generator().manual_seed(seed)))
        close(logits(e, ids[:50], ids[50:]), truth()[49:])


def test_long_context_in_a_full_cache():
    ids = tokens(300)
    e = engine(capacity=300)
    found = logits(e, ids[:280], ids[280:])
    for n in (281, 299, 300):
        close(found[n - 280], logits(engine(capacity=301), ids[:n])[0])
    with pytest.raises(UserError) as caught:
        e.step()
    one_sentence(caught)


@pytest.mark.parametrize(("seen", "splits"), [(0, 1), (127, 1), (128, 2), (8191, 64), (20000, 64)])
def test_metadata(seen, splits):
    memory = Cache(replace(NANO, max_positions=1 << 15), 20001, torch.float32, "cpu")
    memory.slots.copy_(torch.arange(20001).flip(0))
    meta = Metadata(memory)
    meta.refill(memory, seen)
    found = [int(x) for x in (meta.position, meta.slot, meta.length, meta.splits, meta.row)]
    assert found == [seen, 20000 - seen, seen + 1, splits, REQUEST]
    assert torch.equal(meta.slots[: seen + 1], memory.slots[: seen + 1])
    meta.park(memory)
    assert int(meta.slot) == 20001
    assert int(meta.row) != REQUEST
    assert int(meta.length) == 1


def test_greedy_repeats_and_keeps_no_state():
    e, first, second = engine(), tokens(20), tokens(9, seed=1)
    fresh = [list(engine().stream(prompt, 12)) for prompt in (first, second)]
    assert fresh[0] != fresh[1]
    assert [list(e.stream(prompt, 12)) for prompt in (first, first, second, first)] == [fresh[i] for i in (0, 0, 1, 0)]
    list(e.stream(second, 12, SAMPLED))
    assert list(e.stream(first, 12)) == fresh[0]
    list(e.stream(second, 3, SAMPLED))  # left before its end
    assert list(e.stream(second, 12)) == fresh[1]


def test_greedy_takes_the_likeliest():
    ids = tokens(20)
    found = list(engine().stream(ids, 8))
    expected = reference.logits(NANO, model(NANO), ids + found[:-1])[19:]
    assert found == expected.argmax(-1).tolist()


def test_sampling_repeats_by_seed():
    e, ids = engine(), tokens(20)
    runs = [list(e.stream(ids, 12, Sampling(0.8, seed))) for seed in (3, 3, 4, 3)]
    assert runs[0] == runs[1] == runs[3] == list(engine().stream(ids, 12, SAMPLED))
    assert runs[0] != runs[2]
    assert list(e.stream(ids, 12, Sampling(1e-6, 3))) == list(e.stream(ids, 12))


class Rehearsed:
    """Stands for a CUDA graph: runs the work a few times before the first replay, and keeps the sampling it saw."""

    def __init__(self, run, generator):
        self.run, self.engine, self.sampling = run, run.__self__, run.__self__.sampling
        for _ in range(3):
            run()

    def __call__(self):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self.engine, "sampling", self.sampling)
            self.run()


def test_capture_leaves_no_trace(monkeypatch):
    ids, ways = tokens(20), (Sampling(), SAMPLED, Sampling(), SAMPLED, SAMPLED)
    plain = [list(engine().stream(ids, 8, how)) for how in ways]
    monkeypatch.setattr(generate, "Graph", Rehearsed)
    e = engine()
    e.use_graph = True
    assert [list(e.stream(ids, 8, how)) for how in ways] == plain


def test_capture_within_a_request(monkeypatch):
    """Tokens alone would hide a small difference: the logits of the last step as well."""
    ids, seen = tokens(20), []
    monkeypatch.setattr(generate, "Graph", Rehearsed)
    e = engine()
    e.use_graph = True
    found = [e.prefill(ids)]
    for _ in range(4):
        e.capture()
        found += [e.step(), e.step()]
    assert found == list(engine().stream(ids, 9))
    monkeypatch.setattr(generate, "sample", lambda logits, *_: seen.append(logits) or torch.tensor(0))
    e.step()
    close(seen[0], reference.logits(NANO, model(NANO), ids + found)[-1])


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_frequencies_are_the_softmax(temperature):
    scores, generator, draws = normal(8) * 1.5, torch.Generator().manual_seed(5), 10000
    how = Sampling(temperature, 0)
    counts = torch.stack([sample(scores, how, generator) for _ in range(draws)]).bincount(minlength=8)
    expected = torch.softmax(scores / temperature, -1) * draws
    assert ((counts - expected) ** 2 / expected).sum() < 24.3  # chi-square, 7 degrees of freedom: one in a thousand


def test_temperature_towards_zero_is_greedy():
    generator = torch.Generator().manual_seed(5)
    for seed in range(50):
        scores = normal(512, seed=seed)
        assert sample(scores, Sampling(1e-5), generator) == sample(scores, Sampling(), generator) == scores.argmax()


@pytest.mark.parametrize("temperature", [-0.1, 1e-40, float("inf"), float("nan")])
def test_no_such_temperature(temperature):
    with pytest.raises(UserError) as caught:
        Sampling(temperature)
    one_sentence(caught)


def test_stream_ends():
    ids = tokens(20)
    whole = list(engine().stream(ids, 12))
    for most in (0, 1, 2, 12):
        assert list(engine().stream(ids, most)) == whole[:most]
    for n in (0, 1, 5):
        eos = replace(NANO, eos=whole[n])
        assert list(engine(eos, w=model(NANO)).stream(ids, 12)) == whole[: whole.index(whole[n]) + 1]


@pytest.mark.parametrize("prompt", [[], [512], [3, -1], [1] * 16, [1] * 40])
def test_prompts_that_cannot_be(prompt):
    """The request before goes on as if nothing had been asked."""
    e = engine(capacity=16)
    found = [e.prefill(tokens(9)), e.step()]
    with pytest.raises(UserError) as caught:
        e.prefill(prompt, SAMPLED)
    one_sentence(caught)
    found += [e.step(), e.step()]
    assert found == list(engine().stream(tokens(9), 4))


def test_decoding_needs_a_prompt():
    with pytest.raises(UserError) as caught:
        engine().step()
    one_sentence(caught)


def test_weights_that_are_no_numbers():
    w = SimpleNamespace(**vars(model(NANO)))
    w.norm = w.norm.clone()
    e = engine(w=w)
    e.prefill([1])
    w.norm.fill_(float("nan"))
    for run in (lambda: e.prefill([1]), e.step):  # and no request is left behind
        with pytest.raises(UserError) as caught:
            run()
        one_sentence(caught)


def test_decoding_ends_with_the_capacity():
    e = engine(capacity=16)
    e.prefill(tokens(12))
    found = [e.step() for _ in range(4)]
    with pytest.raises(UserError) as caught:
        e.step()
    one_sentence(caught)
    assert found == list(engine().stream(tokens(12), 5))[1:]


def test_capacity_beyond_the_model():
    assert engine(replace(NANO, max_positions=40), 40, model(NANO)).prefill([1]) >= 0
    with pytest.raises(UserError) as caught:
        engine(replace(NANO, max_positions=40), 41, model(NANO))
    one_sentence(caught)


# --- weights and sizes ----------------------------------------------------------------------------------------------


def tensors(w):
    return [x for part in (w, *w.layers) for x in vars(part).values() if isinstance(x, torch.Tensor)]


def test_random_weights_by_seed():
    a, b, other = (tensors(weights.random(NANO, seed, torch.bfloat16, "cpu")) for seed in (0, 0, 1))
    assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
    assert all(torch.equal(x, y) == bool((x == 1).all()) for x, y in zip(a, other, strict=True))
    assert sum(x.numel() for x in a) == total(NANO)


def test_random_weights_keep_activations_sane(monkeypatch):
    c, seen = replace(NANO, layers=42, layer_group=6, dense_layers=2, expert_limits=(), shared_limits=()), []

    def watched(x, residual, weight, eps):
        seen.append(x + residual)
        return NAIVE.add_rms_norm(x, residual, weight, eps)

    monkeypatch.setattr("optim.kernels.norm.naive.add_rms_norm", watched)
    found = logits(engine(c, w=weights.random(c, 0, torch.float32, "cpu")), tokens(40), tokens(3, seed=1))
    rms = torch.stack([x[-1].square().mean().sqrt() for x in seen])
    assert len(rms) == 4 * 2 * c.layers
    assert rms.min() > 0.5
    assert rms.max() < 5
    assert found.std() == pytest.approx(1, abs=0.2)


def total(c):
    return sum(math.prod(spec.shape) for *_, spec in weights.specs(c))


def test_published_totals():
    assert f"{total(FLASH) / 1e9:.1f} {total(TINY) / 1e9:.2f}" == "124.4 7.89"
    assert (total(FLASH), total(TINY)) == (124_414_211_552, 7_893_392_800)


@pytest.mark.parametrize(("c", "kda_layers", "mla_layers"), [(FLASH, 35, 7), (TINY, 18, 6)], ids=["flash", "tiny"])
def test_layer_pattern(c, kda_layers, mla_layers):
    assert (c.kda_layers, c.mla_layers) == (kda_layers, mla_layers)
    fields = [weights.layer_specs(c, i) for i in range(c.layers)]
    assert [i for i, f in enumerate(fields) if "kv_b" in f] == list(range(c.layer_group - 1, c.layers, c.layer_group))
    assert [i for i, f in enumerate(fields) if "router" not in f] == list(range(c.dense_layers))


def test_published_numbers():
    """What the engine and the reference both take from Config."""
    both = {
        "kda_dim": 128,
        "conv": 4,
        "gate_bound": -5,
        "kv_lora": 512,
        "nope": 128,
        "rope": 64,
        "v_dim": 128,
        "top_k": 8,
    }
    both |= {"groups": 8, "kept_groups": 4, "rope_theta": 6e6, "routed_scaling": 2.5, "eps": 1e-6, "head_gate": True}
    both |= {"vocab": 157184, "pad": 156892}
    flash = {"heads": 32, "experts": 512, "q_lora": None, "max_positions": 262144, "eos": 156895}
    tiny = {"heads": 16, "experts": 128, "q_lora": 256, "max_positions": 131072, "eos": None}
    for c, own in ((FLASH, flash), (TINY, tiny)):
        assert {field: getattr(c, field) for field in both | own} == both | own


def test_limits_of_flash():
    assert [i for i, limit in enumerate(FLASH.expert_limits) if limit] == list(range(35, 42))
    assert FLASH.expert_limits[35:] == (4.0,) * 7
    assert FLASH.shared_limits == (None,) * 34 + (5.0,) * 6 + (7.0,) * 2
    assert TINY.expert_limits == TINY.shared_limits == ()


@pytest.mark.parametrize("c", [FLASH, TINY], ids=["flash", "tiny"])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_rank_holds_its_part(c, ranks):
    whole = {"attn_norm", "mlp_norm", "norm", "o_norm", "q_a", "q_norm", "kv_a", "kv_norm", "router", "bias"}
    pairs = zip(weights.specs(c), weights.specs(c.shard(ranks)), strict=True)
    for (*_, field, one), (*_, part) in pairs:
        assert math.prod(one.shape) == math.prod(part.shape) * (1 if field in whole else ranks), field
    assert c.shard(ranks).ranks == ranks
    assert MODELS["ling-3.0-flash-tp4-rank"] == FLASH.shard(4)


def test_uneven_ranks_are_refused():
    for ranks, fields in (
        (3, "heads"),
        (64, "heads"),
        (7, "heads, moe_intermediate"),
        (0, "0 ranks"),
        (-2, "-2 ranks"),
    ):
        with pytest.raises(UserError, match=fields) as caught:
            FLASH.shard(ranks)
        one_sentence(caught)


def test_a_rank_runs():
    c = NANO.shard(2)
    assert len(list(engine(c).stream(tokens(9, c), 4))) == 4


def test_unknown_model():
    assert named("ling-3.0-tiny") is TINY
    with pytest.raises(UserError, match="nano") as caught:
        named("ling-4")
    assert str(caught.value).endswith(".")

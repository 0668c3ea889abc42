"""The gate: what passes must show before their speed is, with passes made for these tests. They are shared."""

import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from optim import base, distance, gate, kernels, witness  # noqa: E402
from optim.engine import compose, weights  # noqa: E402
from optim.engine.config import FLASH, NANO, TINY  # noqa: E402
from optim.engine.generate import Engine  # noqa: E402
from optim.gate import Gate  # noqa: E402
from optim.kernels.norm import naive  # noqa: E402
from optim.witness import MOST_HALF, MOST_TWIN, Twin  # noqa: E402

PROMPT = list(range(1, 33))
GPU = torch.cuda.is_available()


def made(advance: Callable[[Engine, Callable[[], int]], Callable[[], int]], exact=True, rung=90) -> SimpleNamespace:
    """A pass that puts advance(engine, the advance before) in its place."""

    @contextmanager
    def apply(engine):
        with base.exchanged(engine, advance=advance(engine, engine.advance)):
            yield

    about = {"removes": "nothing", "exact": exact, "rung": rung, "find": print, "took_effect": lambda _: "it is on"}
    return SimpleNamespace(**about, blocked=lambda _: "", apply=apply)


def keeping(engine, advance):
    """Exact: the step as it was."""
    return lambda: advance()


def lying(engine, advance):
    """Another token from the fourth new one on, whatever it claims."""
    return lambda: other(engine, advance) if engine.steps >= 2 else advance()


def staining(engine, advance):
    """Exact until a sampled request leaves something behind."""
    stains = []

    def step():
        stains.extend([1] * bool(engine.sampling.temperature))
        return other(engine, advance) if stains and not engine.sampling.temperature else advance()

    return step


def slow(engine, advance):
    """40 ms more a step."""
    return lambda: time.sleep(0.04) or advance()


def other(engine, advance):
    token = (advance() + 1) % engine.c.vocab
    engine.token.fill_(token)
    return token


def lying_beside(engine, advance):
    """Exact by itself; another token beside a rounding pass."""
    return lambda: other(engine, advance) if "bf16_head" in engine.passes else advance()


def worth(engine, factor):
    """A head of other weights: another model's logits, or none."""
    head = torch.randn(engine.w.head.shape, generator=torch.Generator().manual_seed(7))
    ops = engine.model.decode_ops
    return base.exchanged(ops, head=lambda x, *of: (x.float() @ head.T * factor, None))


def exchanging(bind) -> SimpleNamespace:
    """A pass that claims to round, and puts what bind(operations) gives in the place of operations."""
    fake = made(keeping, exact=False, rung=102)
    fake.apply = lambda engine: base.exchanged(engine.model.decode_ops, **bind(engine.model.decode_ops))
    return fake


def experts(change):
    """Routed experts whose (weights, chosen, shared) go through `change` first."""
    return lambda ops: {"experts": lambda x, w, *of: ops_experts(ops, x, w, change, *of)}


def ops_experts(ops, x, w, change, weights, chosen, shared, limit, all_ops):
    return compose.experts(x, w, *change(weights, chosen, shared), limit, all_ops)


def but_last(weights):
    return torch.cat([weights[:, :-1], torch.zeros_like(weights[:, -1:])], 1)


def undecayed(ops):
    def gate(*of, kda_gate=ops.kda_gate):
        decay, beta = kda_gate(*of)
        return torch.zeros_like(decay), beta

    return {"kda_gate": gate}


def without_newest(ops):
    def attend(q, rope, cache, slots, length, *of, mla_decode=ops.mla_decode):
        return mla_decode(q, rope, cache, slots, length - (length > 1).int(), *of)

    return {"mla_decode": attend}


SABOTAGES = {
    "no routed experts": experts(lambda weights, chosen, shared: (0 * weights, chosen, shared)),
    "the wrong experts": experts(lambda weights, chosen, shared: (weights, (chosen + 1) % NANO.experts, shared)),
    "no shared expert": experts(lambda weights, chosen, shared: (weights, chosen, 0 * shared)),
    "the last expert dropped": experts(lambda weights, chosen, shared: (but_last(weights), chosen, shared)),
    "no decay": undecayed,
    "no MLA": lambda ops: {"mla_core": lambda *of, core=ops.mla_core: 0 * core(*of)},
    "no head gate": lambda ops: {"head_gate": lambda o, gate: o.contiguous()},
    "no rope": lambda ops: {"rope": lambda x, *of: x},
    "the newest token not attended to": without_newest,
}


def in_fp32(ops):
    """Rounds once where the engine rounds twice: the norm stays in fp32 until it is multiplied."""

    def norm_linears(x, residual, weight, matrices, eps, ops):
        total = x if residual is None else x + residual
        normed = naive.rms_norm(total.float(), weight, eps)
        return tuple((normed @ matrix.float().T).to(x.dtype) for matrix in matrices), total

    return {"norm_linears": norm_linears}


def in_two_sums(ops):
    """Products summed in another order."""

    def linear(x, weight):
        half = weight.shape[1] // 2
        parts = [x[:, at].float() @ weight[:, at].float().T for at in (slice(half), slice(half, None))]
        return (parts[0] + parts[1]).to(x.dtype)

    return {"linear": linear}


def another_token(engine):
    """The right logits, and a token that is not theirs."""
    token = engine.token
    return base.exchanged(
        engine.model.decode_ops,
        head=lambda *of, head=engine.model.decode_ops.head: (head(*of)[0], token.copy_((token + 1) % NANO.vocab)),
    )


def exhausting(engine, advance):
    class OutOfResources(Exception):
        pass

    raise OutOfResources("shared memory,\nRequired: 262144")


def breaking(engine, advance):
    raise ZeroDivisionError("in apply")


def off(engine):
    raise base.NotOn("nothing changed.")


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    """Here and in commands: two threads on busy cores only wait for each other."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def made_passes(monkeypatch):
    """The registry with these tests' passes beside the real ones; gives them by name."""
    fakes = {
        "keeps": made(keeping),
        "lies": made(lying, rung=91),
        "stains": made(staining, rung=92),
        "slow": made(slow, rung=93),
        "breaks": made(breaking, rung=94),
        "stains_rounding": made(staining, exact=False, rung=95),
    }
    fakes |= {"lies_beside": made(lying_beside, rung=99), "exhausts": made(exhausting, rung=100)}
    for name, factor in {"ruins": 1.0, "spoils": torch.nan}.items():
        fakes[name] = made(keeping, exact=False, rung=101)
        fakes[name].apply = lambda engine, factor=factor: worth(engine, factor)
    binds = {**SABOTAGES, "in_fp32": in_fp32, "in_two_sums": in_two_sums}
    fakes |= {name: exchanging(bind) for name, bind in binds.items()}
    fakes["misleads"] = made(keeping, exact=False, rung=103)
    fakes["misleads"].apply = another_token
    fakes |= {"still": made(keeping, rung=97), "calm": made(keeping, rung=98)}
    fakes["is_off"] = SimpleNamespace(**{**vars(made(keeping)), "took_effect": off, "rung": 96})
    there = base.passes()
    monkeypatch.setattr(base, "passes", lambda: {**there, **fakes})
    return fakes


@pytest.fixture
def engine():
    return Engine(NANO, weights.random(NANO, 0, torch.bfloat16, "cpu"), len(PROMPT) + 16, "naive")


@pytest.fixture
def judge(made_passes, engine):
    return Gate(engine, PROMPT, tokens=12, positions=10).judge


def test_exact_passes_keep_every_token(judge):
    for names in ([], ["keeps"]):
        found = judge(names)
        assert (found.ok, found.tokens, found.verdict) == (True, 12, "12 tokens equal, again after a sampled request")
        assert (found.first_difference, found.top1_agreement, found.kl_mean, found.positions) == (None,) * 4
    assert found.proof == "it is on"


def test_the_first_differing_token_is_named(judge, engine):
    plain = gate.decode(engine, PROMPT, 12)
    found = judge(["keeps", "lies"])
    assert (found.ok, found.first_difference) == (False, 3)
    assert found.verdict == f"token 3 is {(plain[3] + 1) % NANO.vocab}, without the passes {plain[3]}"


def test_exact_passes_keep_every_token_beside_rounding_ones(judge, engine, monkeypatch):
    with base.applied(engine, ["bf16_head"]):
        alone = gate.decode(engine, PROMPT, 12)
    found = judge(["lies_beside", "bf16_head"])
    assert (found.ok, found.first_difference) == (False, 1)
    assert found.verdict == f"token 1 is {(alone[1] + 1) % NANO.vocab}, with the rounding passes alone {alone[1]}"
    assert judge(["lies_beside"]).ok
    decoded, decode = [], gate.decode
    monkeypatch.setattr(gate, "decode", lambda engine, *of: decoded.append(engine.passes) or decode(engine, *of))
    assert judge(["keeps", "bf16_head"]).ok
    assert {len(on) for on in decoded} == {2}  # the text of bf16_head alone is known by now


@pytest.mark.parametrize("name", ["stains", "stains_rounding"])
def test_what_a_sampled_request_leaves_behind_is_found(judge, name):
    found = judge([name])
    assert (found.ok, found.first_difference) == (False, 1)
    assert "after a sampled request" in found.verdict


def test_rounding_is_declared_in_figures(judge):
    found = judge(["bf16_head", "bf16_gate"])
    assert found.ok
    assert (found.positions, found.first_difference) == (10, None)
    assert 0.8 <= found.top1_agreement <= 1
    assert 0 < found.kl_mean <= found.kl_max < 1e-2
    assert found.verdict.startswith("rounding, declared: top-1 equal at ")
    assert "the head is torch.bfloat16" in found.proof


def test_a_rounding_pass_stays_near(judge):
    found = judge(["ruins"])
    assert (found.ok, found.positions) == (False, 10)
    assert (found.top1_agreement, found.kl_mean) == (pytest.approx(0, abs=0.2), pytest.approx(5, abs=4.9))
    said = (
        f"top-1 equal at {100 * found.top1_agreement:.2f} % of 10 positions, KL {found.kl_mean:.1e}, {found.kl_max:.1e}"
    )
    bounds = "at least 50 %, at most 0.1, 0.5 at one"
    assert found.verdict == f"{said} at one of them: too far from the engine without passes ({bounds})"


def test_the_engine_is_held_to_the_bound_of_one_position(judge, monkeypatch):
    monkeypatch.setattr(distance, "MOST_KL_MAX", 1e-9)
    found = judge(["bf16_head", "bf16_gate"])
    assert not found.ok
    said = f"KL {found.kl_mean:.1e}, {found.kl_max:.1e} at one of them: too far from the engine without passes"
    assert found.verdict.endswith(f"{said} (at least 50 %, at most 0.1, 1e-09 at one)")


@pytest.fixture(scope="module")
def long_gate():
    """Of more positions; its engine's logits and twin are made once."""
    prompt = torch.randint(NANO.vocab, (200,), generator=torch.Generator().manual_seed(1)).tolist()
    return Gate(Engine(NANO, weights.random(NANO, 0, torch.bfloat16, "cpu"), 240, "naive"), prompt, 4, 40)


@pytest.mark.parametrize("name", SABOTAGES)
def test_what_is_wrong_does_not_pass_for_rounding(made_passes, long_gate, name):
    """Both witnesses see it, where neither KL nor the likeliest token tells."""
    found = long_gate.judge([name])
    assert found.kl_mean <= distance.MOST_KL_MEAN
    assert found.top1_agreement >= distance.LEAST_TOP1
    assert found.twin_error > 100 * MOST_TWIN
    assert found.half_error > 2 * MOST_HALF
    assert not found.ok
    assert found.verdict.endswith(": more than rounding moves them (at most 0.0001, 0.05)")


ROUNDING = [["in_two_sums"], ["in_fp32"], ["proj_concat"], ["bf16_gate", "bf16_head"], ["bf16_head", "in_two_sums"]]


@pytest.mark.parametrize("names", ROUNDING, ids="+".join)
def test_what_only_rounds_passes(made_passes, long_gate, names):
    found = long_gate.judge(names)
    assert found.ok
    assert found.half_error < MOST_HALF / 4
    assert found.twin_error is None or found.twin_error < MOST_TWIN / 20
    narrow = [name for name in names if name.startswith("bf16")]
    assert (found.twin_error is None) == (narrow == names)
    words = (
        "fp32 twin none in fp32, "
        if narrow == names
        else f" without {', '.join(narrow)}, half layer "
        if narrow
        else ""
    )
    assert words in found.verdict


@pytest.mark.parametrize("c", [NANO, TINY, FLASH], ids=lambda c: c.name)
def test_a_twin_has_the_parts_of_its_model_and_no_experts_that_nearly_tie(c):
    """Otherwise rounding alone could choose another expert."""
    twin = Twin(SimpleNamespace(c=c, token=torch.zeros(1), has_triton=False, use_graph=False))
    assert (twin.engine.c.q_lora is None) == (c.q_lora is None)
    assert (twin.engine.c.rope_theta, twin.engine.c.head_gate) == (c.rope_theta, c.head_gate)
    ops, dice, same = twin.engine.model.decode_ops, torch.Generator().manual_seed(0), []

    def route(logits, *of, route=ops.route):
        noise = 1e-4 * torch.randn(logits.shape, generator=dice)
        chosen = [route(x, *of)[1].sort().values for x in (logits, logits + noise)]
        same.append(torch.equal(*chosen))
        return route(logits, *of)

    with base.exchanged(ops, route=route):
        assert twin.distance([]) == 0
    assert all(same)
    assert len(same) > 100


ROUNDING_KERNELS = [name for name, one in base.passes().items() if not one.exact]


@pytest.mark.parametrize(
    "names", [[name] for name in ROUNDING_KERNELS] if GPU else [["moe_direct", "kda_out"]], ids=str
)
@pytest.mark.usefixtures("few_programs")
def test_kernels_of_passes_only_round(names, monkeypatch):
    """In Triton; in its interpreter few and short ones."""
    c, device = NANO, "cuda" if GPU else "cpu"
    if not GPU:
        monkeypatch.setattr(witness, "CONTEXTS", (3,))
        monkeypatch.setattr(witness, "TWIN_STEPS", 2)
        monkeypatch.setattr(witness, "small", lambda c: replace(c, layers=2, dense_layers=0))
    twin = Twin(Engine(c, weights.random(c, 0, torch.bfloat16, device), 8, "triton"))
    if not GPU:
        twin.engine.model.prefill_ops = compose.complete(kernels.load("naive"))
    judged = twin.judges(names)
    assert judged == [name for name in names if not name.startswith("bf16")]
    assert twin.distance(judged) < MOST_TWIN / 3


def test_a_pass_that_takes_another_token_than_its_logits_say_fails(judge):
    found = judge(["misleads"])
    assert (found.ok, found.verdict) == (False, "token 1 of a text it is given is not the likeliest by its own logits")


def test_the_engine_without_passes_is_held_to_its_own_text(engine):
    tested = Gate(engine, PROMPT, tokens=12, positions=10)
    expected = list(tested.text)
    engine.w.head = -engine.w.head
    found = tested.judge([])
    assert not found.ok
    assert found.verdict.endswith(f", without the passes {expected[found.first_difference]}")


def test_what_the_gpu_has_too_little_for_fails(judge):
    assert judge(["exhausts"]).verdict == (
        "the GPU has too little for it (OutOfResources: shared memory, Required: 262144)"
    )
    assert "OutOfMemoryError: 3 GB" in gate.refusal(torch.cuda.OutOfMemoryError("3 GB"))
    with pytest.raises(ValueError, match="other"):
        gate.refusal(ValueError("other"))


def test_logits_that_are_no_numbers_fail(judge):
    found = judge(["spoils"])
    assert (found.ok, found.verdict, found.kl_mean) == (False, "the logits are not finite", None)


def test_a_pass_without_effect_or_blocked_fails_with_its_sentence(judge):
    assert (judge(["is_off"]).ok, judge(["is_off"]).verdict) == (False, "nothing changed.")
    assert judge(["cuda_graph"]).verdict == (
        "cuda_graph cannot be applied: a CUDA graph needs a GPU and the Triton kernels."
    )


def test_an_error_inside_apply_leaves_the_engine_as_it_was(judge, engine):
    plain, before = gate.decode(engine, PROMPT, 12), engine.advance
    with pytest.raises(ZeroDivisionError):
        judge(["bf16_head", "keeps", "breaks"])
    assert (engine.advance, engine.passes, engine.w.head.dtype) == (before, (), torch.float32)
    assert gate.decode(engine, PROMPT, 12) == plain


def test_lengths_are_lowered_to_the_room_there_is(engine):
    found = Gate(engine, PROMPT)
    assert (found.tokens, found.positions) == (16, 16)
    assert len(found.text) == 16
    assert found.logits.shape == (16, NANO.vocab)
    found.release()
    assert "logits" not in vars(found)


def test_divergence_by_hand():
    """p = (1/2, 1/2), q = (1/4, 3/4): KL is log(2 / sqrt 3)."""
    p, q = torch.zeros(1, 2), torch.tensor([[0.25, 0.75]]).log()
    kl, agrees = distance.divergence(torch.cat([p, q]), torch.cat([q, q]))
    assert kl.tolist() == pytest.approx([0.143841, 0], abs=1e-6)
    assert agrees.tolist() == [False, True]


def test_a_row_is_what_the_report_holds(judge):
    from ling_prof.ablation_report import Gate as Row

    assert judge(["keeps"]).row().keys() == Row.__annotations__.keys()

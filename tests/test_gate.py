"""The gate: what passes must show before their speed is, with passes made for these tests. They are shared."""

import time
from collections.abc import Callable
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from optim import base, gate  # noqa: E402
from optim.engine import weights  # noqa: E402
from optim.engine.config import NANO  # noqa: E402
from optim.engine.generate import Engine  # noqa: E402
from optim.gate import Gate  # noqa: E402

PROMPT = list(range(1, 33))


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
    """10 ms more a step."""
    return lambda: time.sleep(0.01) or advance()


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
    said = f"top-1 equal at {100 * found.top1_agreement:.2f} % of 10 positions, KL {found.kl_mean:.1e}: too far from"
    assert found.verdict == f"{said} the engine without passes (at least 50 %, at most 0.1)"


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
    kl, agrees = gate.divergence(torch.cat([p, q]), torch.cat([q, q]))
    assert kl.tolist() == pytest.approx([0.143841, 0], abs=1e-6)
    assert agrees.tolist() == [False, True]


def test_a_row_is_what_the_report_holds(judge):
    from ling_prof.ablation_report import Gate as Row

    assert judge(["keeps"]).row().keys() == Row.__annotations__.keys()

"""The protocol: windows, order, voids and clock, at nano size on a CPU."""

import gc
import itertools
import re
from contextlib import suppress

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from test_gate import PROMPT, engine, made_passes, one_thread  # noqa: E402, F401

from ling_prof import UserError  # noqa: E402
from optim import gate, measure  # noqa: E402
from optim.engine.generate import Engine  # noqa: E402
from optim.measure import AGAIN, ALL_AGAIN, WARM_UP, Protocol  # noqa: E402

COMBINATIONS = [(), ("keeps",), ("bf16_head",), ("keeps", "bf16_head")]


@pytest.fixture
def protocol(made_passes, engine):  # noqa: F811
    return Protocol(engine, PROMPT, COMBINATIONS, count=2, steps=4)


class Clock:
    """ns: every step takes 1000, after what the engine is told to take more."""

    def __init__(self, monkeypatch, more=lambda _: 0):
        self.now, step = 0, Engine.step

        def stepped(one):
            self.now += 1000 + more(one)
            return step(one)

        monkeypatch.setattr(Engine, "step", stepped)
        monkeypatch.setattr(measure.time, "perf_counter_ns", lambda: self.now)


def test_every_combination_is_visited_in_every_window_the_baseline_and_all_on_twice(protocol):
    found = list(protocol.windows())
    assert [window.number for window in found] == [0, 1]
    for window in found:
        assert window.times.keys() == {AGAIN, ALL_AGAIN, 0, 1, 2, 3}
        assert not window.voids
        assert min(window.times.values()) > 1e5  # ns: no step of a model is faster


def test_a_visit_gives_the_time_of_one_token(protocol, monkeypatch):
    Clock(monkeypatch, lambda one: 500 * ("bf16_head" in one.passes))
    window = next(protocol.windows())
    assert window.times == {AGAIN: 1000, ALL_AGAIN: 1500, 0: 1000, 1: 1000, 2: 1500, 3: 1500}


def test_windows_follow_the_text_of_the_base_engine(protocol, monkeypatch):
    """Whatever rounding passes decode, each window begins where the base engine stands."""
    plain = gate.decode(protocol.engine, PROMPT, 8 + WARM_UP + 1)
    texts = []
    judged = Protocol._judged
    monkeypatch.setattr(Protocol, "_judged", lambda *of: texts.append(of[3]) or judged(*of))
    list(protocol.windows())
    assert texts == [plain[1:9], plain[5:13]]


def test_the_order_is_drawn_anew_and_the_same_after_a_restart(protocol, monkeypatch):
    visited = []
    visit = Protocol._visit
    monkeypatch.setattr(Protocol, "_visit", lambda *of: visited.append(of[2]) or visit(*of))
    list(protocol.windows())
    first, second = visited[:6], visited[6:]
    assert sorted(first) == sorted(second)
    assert first != second
    visited.clear()
    list(protocol.windows(done={0}))
    assert visited == second


def test_an_exact_pass_that_decodes_something_else_is_void_from_there_on(protocol):
    protocol.combinations = [(), ("lies",), ("keeps",)]
    plain = gate.decode(protocol.engine, PROMPT, 4)
    first, second = protocol.windows()
    assert first.times.keys() == second.times.keys() == {AGAIN, ALL_AGAIN, 0, 2}
    assert first.voids[1] == f"token 3 is {(plain[3] + 1) % 512}, without the passes {plain[3]}"
    assert (list(first.voids), second.voids) == ([1], {})
    assert next(protocol.windows(void={1, 2})).times.keys() == {AGAIN, 0}


def test_exact_passes_repeat_what_the_rounding_ones_beside_them_decode_alone(protocol):
    protocol.combinations = [(), ("lies_beside",), ("bf16_head",), ("lies_beside", "bf16_head")]
    first, second = protocol.windows()
    assert first.voids.keys() == {3}
    assert re.fullmatch(r"token 1 is \d+, with bf16_head alone \d+", first.voids[3])
    assert second.times.keys() == {AGAIN, 0, 1, 2}
    protocol.combinations = [(), ("lies_beside", "bf16_head")]  # nothing to compare it with
    assert not next(protocol.windows()).voids
    assert measure.reference(("lies_beside", "bf16_head"), protocol.combinations) is None


def test_passes_that_cannot_be_on_together_are_void(protocol):
    protocol.combinations = [(), ("keeps", "is_off"), ("bf16_head",)]
    first, second = protocol.windows()
    assert first.times.keys() == second.times.keys() == {AGAIN, ALL_AGAIN, 0, 2}
    assert (first.voids, second.voids) == ({1: "nothing changed."}, {})


def test_passes_that_the_gpu_has_too_little_for_are_void(protocol):
    protocol.combinations = [(), ("exhausts",)]
    assert "OutOfResources: shared memory" in next(protocol.windows()).voids[1]


def test_a_base_engine_that_does_not_repeat_itself_ends_it(protocol):
    protocol.combinations = [()]
    count = itertools.count()
    advance = protocol.engine.advance

    def step():
        token = (advance() + next(count)) % 512
        protocol.engine.token.fill_(token)
        return token

    protocol.engine.advance = step
    with pytest.raises(UserError, match="the engine without passes does not repeat itself"):
        list(protocol.windows())


def test_progress_rises_to_one(protocol):
    shares = []
    list(protocol.windows(progress=shares.append))
    assert shares == sorted(shares)
    assert (shares[0], shares[-1], len(shares)) == (0, 1, 2 * 7)


def test_nothing_is_collected_while_time_is_taken():
    with measure.undisturbed():
        assert not gc.isenabled()
    with suppress(ZeroDivisionError), measure.undisturbed():
        raise ZeroDivisionError
    assert gc.isenabled()

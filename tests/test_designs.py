"""What a design measures and how it weighs the times, against games solved by hand."""

from fractions import Fraction
from functools import cache
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ling_prof.errors import UserError
from ling_prof.render.ablation import within_noise
from optim import options
from optim.designs import DESIGNS, estimate, label, make, noise_floor

EXACT = ["factorial", "ladder", "sampled"]


def players(n: int) -> list[tuple[str, ...]]:
    return [(name,) for name in "abcdefghijk"[:n]]


@cache
def designed(name: str, n: int):
    return make(name, players(n))


def gains(design, time) -> dict[str, Fraction]:
    """Exact gains by label, where `time` gives the time of a set of passes."""
    times = [Fraction(time(frozenset(passes))) for passes in design.combinations]
    return {label(p): sum(w * times[i] for i, w in weights.items()) for p, weights in design.contrasts.items()}


def interactions(design, time) -> dict[str, Fraction]:
    times = [Fraction(time(frozenset(passes))) for passes in design.combinations]
    return {label(a + b): sum(w * times[i] for i, w in ws.items()) for (a, b), ws in design.interactions.items()}


def additive(on: frozenset) -> int:
    """a saves 5, b 7, c 11 of 100."""
    return 100 - sum({"a": 5, "b": 7, "c": 11}[name] for name in on)


def glove(on: frozenset) -> int:
    """a and b hold left gloves, c a right one; a pair saves 6."""
    return 10 - 6 * ("c" in on and bool(on & {"a", "b"}))


def tangled(on: frozenset) -> int:
    """Every set of passes has a time of its own."""
    return 1000 - 10 * len(on) ** 2 - sum(ord(name) * len(on) for name in on) % 37


@pytest.mark.parametrize("name", DESIGNS)
def test_what_does_not_interact_has_the_same_gain_in_every_design(name):
    assert gains(make(name, players(3)), additive) == {"a": 5, "b": 7, "c": 11}


def test_the_shapley_values_of_the_glove_game():
    """c is worth something in four orders of six, a and b in one each."""
    assert gains(make("factorial", players(3)), glove) == {"a": 1, "b": 1, "c": 4}


def test_the_shapley_values_of_a_weighted_majority():
    """Votes 3, 1, 1, 1; 4 of 6 save 12. Of the four places in an order, a decides unless it is first."""
    votes = {"a": 3, "b": 1, "c": 1, "d": 1}
    found = gains(make("factorial", players(4)), lambda on: 50 - 12 * (sum(votes[name] for name in on) >= 4))
    assert found == {"a": 9, "b": 1, "c": 1, "d": 1}


def test_shapley_values_are_means_over_all_orders():
    found = gains(make("factorial", players(4)), tangled)
    orders = list(permutations("abcd"))
    for name in "abcd":
        before = [frozenset(order[: order.index(name)]) for order in orders]
        assert found[name] == Fraction(sum(tangled(on) - tangled(on | {name}) for on in before), 24)


def test_the_interaction_of_two():
    """Alone they save 10 and 20, together 35: 5 more. Where they replace each other, 20 instead of 30: -10."""
    times = {"": 100, "a": 90, "b": 80, "ab": 65}
    design = make("factorial", players(2))
    assert interactions(design, lambda on: times["".join(sorted(on))]) == {"a+b": 5}
    assert interactions(design, lambda on: (times | {"ab": 80})["".join(sorted(on))]) == {"a+b": -10}


def test_the_interactions_of_three():
    """Gloves: S of {} and the third count half each. a, c: 6 alone, 0 beside b; a, b: 0 alone, -6 beside c."""
    assert interactions(make("factorial", players(3)), glove) == {"a+b": -3, "a+c": 3, "b+c": 3}
    assert set(interactions(make("factorial", players(3)), additive).values()) == {0}


@pytest.mark.parametrize("n", range(1, 9))
@pytest.mark.parametrize("name", EXACT)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_gains_add_up_to_baseline_minus_all_on(name, n, data):
    design = designed(name, n)
    size = len(design.combinations)
    times = data.draw(st.lists(st.integers(1, 10**9), min_size=size, max_size=size))
    total = sum(w * times[i] for weights in design.contrasts.values() for i, w in weights.items())
    assert total == times[0] - times[-1]


@pytest.mark.parametrize("name", DESIGNS)
@pytest.mark.parametrize("n", [1, 2, 5, 9])
def test_a_design_measures_each_combination_once_from_none_to_all(name, n):
    design = make(name, players(n))
    assert design.combinations[0] == ()
    assert design.combinations[-1] == tuple("abcdefghijk"[:n])
    assert len(set(design.combinations)) == len(design.combinations)
    assert all(list(passes) == sorted(passes) for passes in design.combinations)
    used = {i for weights in design.contrasts.values() for i in weights}
    assert used | {0, len(design.combinations) - 1} == set(range(len(design.combinations)))


def test_passes_of_one_player_are_switched_together():
    design = make("leave-one-out", [("x",), ("y", "z"), ("w",)])
    assert design.combinations == [(), ("x", "y", "z"), ("x", "w"), ("y", "z", "w"), ("x", "y", "z", "w")]
    assert [label(player) for player in design.players] == ["x", "y+z", "w"]


def test_leave_one_out_asks_what_is_lost_without():
    times = {"": 9, "bc": 3, "ac": 5, "ab": 4, "abc": 2}
    assert gains(make("leave-one-out", players(3)), lambda on: times["".join(sorted(on))]) == {"a": 1, "b": 3, "c": 2}


def test_the_ladder_takes_them_in_their_order():
    times = {"": 9, "b": 8, "ab": 4, "abc": 2}
    design = make("ladder", [("b",), ("a",), ("c",)])
    assert design.combinations == [(), ("b",), ("b", "a"), ("b", "a", "c")]
    assert gains(design, lambda on: times["".join(sorted(on))]) == {"b": 1, "a": 4, "c": 2}


def test_beyond_seven_a_factorial_goes_on_as_a_ladder():
    design = make("factorial", players(9))
    assert len(design.combinations) == 2**7 + 2
    assert list(design.methods.values()) == ["shapley"] * 7 + ["ladder"] * 2
    assert design.combinations[-3:] == [tuple("abcdefg"), tuple("abcdefgh"), tuple("abcdefghi")]
    assert len(design.interactions) == 21
    found = gains(design, tangled)
    assert found["i"] == tangled(frozenset("abcdefgh")) - tangled(frozenset("abcdefghi"))
    assert [found[name] for name in "abcdefg"] == list(gains(make("factorial", players(7)), tangled).values())


def test_samples_come_from_orders_and_their_reverse():
    """A pair of orders alone: each player is in front of another in one of both, so two players are solved exactly."""
    times = {"": 100, "a": 90, "b": 80, "ab": 65}
    for seed in range(8):
        design = make("sampled", players(2), seed, permutations=4)
        assert gains(design, lambda on: times["".join(sorted(on))]) == {"a": Fraction(25, 2), "b": Fraction(45, 2)}
        assert len(design.pairs) == 2


def test_many_samples_approach_the_exact_values():
    exact = gains(make("factorial", players(5)), tangled)

    def farthest(count: int) -> float:
        """Root mean square over seeds."""
        runs = [gains(make("sampled", players(5), seed, count), tangled) for seed in range(20)]
        return float(np.sqrt(np.mean([float(run[name] - exact[name]) ** 2 for run in runs for name in exact])))

    few, many = farthest(4), farthest(256)
    assert few > 1
    assert many < few / 4  # the square root of 64 says 8


def test_the_error_of_samples_is_that_of_their_pairs():
    design = make("sampled", players(4), seed=3)
    times = np.array([[1e3 * tangled(frozenset(passes)) for passes in design.combinations]])
    found = estimate(design, times)
    for player, row in zip(design.players, found["attribution"], strict=True):
        alone = [float(sum(w * int(times[0, i]) for i, w in pair[player].items())) / 1e3 for pair in design.pairs]
        assert row["error_us"] == pytest.approx(np.std(alone, ddof=1) / 2)  # four pairs
        assert row["gain_us"] == pytest.approx(np.mean(alone))
    assert any(row["error_us"] > 0 for row in found["attribution"])
    plain = make("sampled", players(3))
    same = np.array([[1e3 * additive(frozenset(passes)) for passes in plain.combinations]])
    assert [row["error_us"] for row in estimate(plain, same)["attribution"]] == pytest.approx([0, 0, 0])


def test_a_seed_decides_the_orders():
    big = players(8)
    assert make("sampled", big, seed=1).combinations == make("sampled", big, seed=1).combinations
    assert make("sampled", big, seed=1).combinations != make("sampled", big, seed=2).combinations


@pytest.mark.parametrize(
    ("name", "given_players", "permutations", "words"),
    [
        ("full", players(2), 8, "no design 'full'; there are factorial, ladder, leave-one-out, sampled."),
        ("ladder", [], 8, "there is no pass to measure; name one or more."),
        ("ladder", [("a",), ()], 8, "there is no pass to measure; name one or more."),
        ("ladder", [("a",), ("b", "a")], 8, "a is named twice; name each pass once."),
        ("sampled", players(2), 2, "an even number of permutations, 4 or more, not 2."),
        ("sampled", players(2), 7, "an even number of permutations, 4 or more, not 7."),
    ],
)
def test_what_cannot_be_designed_is_refused(name, given_players, permutations, words):
    with pytest.raises(UserError) as error:
        make(name, given_players, permutations=permutations)
    assert str(error.value).endswith(words)


def measured(design, windows: int, noise: float = 1e3, drift: float = 0.0, seed: int = 1) -> np.ndarray:
    """Windows of the additive game, in units of 10 us; noise of each time and drift of each window in ns."""
    dice = np.random.default_rng(seed)
    truth = np.array([1e4 * additive(frozenset(passes)) for passes in design.combinations])
    shape = (windows, len(truth))
    return truth + dice.normal(0, noise, shape) + dice.normal(0, drift, (windows, 1))


def test_an_estimate_in_units():
    design = make("factorial", players(2))
    times = np.array([[4e6, 3e6, 2e6, 1e6], [4e6, 3e6, 2e6, 1e6]])
    found = estimate(design, times)
    assert found["rows"] == [{"tpot_ms": t, "low": t, "high": t} for t in (4.0, 3.0, 2.0, 1.0)]
    a, b = found["attribution"]
    assert a == {"pass": "a", "gain_us": 1e3, "low": 1e3, "high": 1e3, "gain_pct": 25.0} | {
        "method": "shapley",
        "error_us": None,
    }
    assert (b["gain_us"], b["gain_pct"]) == (2e3, 50.0)
    assert found["interactions"] == [{"a": "a", "b": "b", "us": 0.0, "low": 0.0, "high": 0.0}]


def test_a_time_is_the_median_of_its_windows():
    times = np.array([[5e6, 1e6], [6e6, 2e6], [90e6, 3e6]])
    found = estimate(make("ladder", players(1)), times)
    assert [row["tpot_ms"] for row in found["rows"]] == [6.0, 2.0]
    assert found["attribution"][0]["gain_us"] == pytest.approx(4e3)


def test_intervals_hold_the_truth_about_as_often_as_they_say():
    design = make("factorial", players(3))
    held = [
        row["low"] <= true <= row["high"]
        for seed in range(40)
        for row, true in zip(
            estimate(design, measured(design, 25, seed=seed), resamples=400)["attribution"], (50, 70, 110), strict=True
        )
    ]
    assert 0.85 < np.mean(held) < 1  # 95 % of 120, less what 25 windows lack


def test_more_windows_narrow_the_intervals():
    design = make("factorial", players(3))

    def width(windows: int) -> float:
        rows = estimate(design, measured(design, windows))["attribution"]
        return float(np.mean([row["high"] - row["low"] for row in rows]))

    assert width(256) < width(16) / 2  # the square root of 16 says 4
    assert width(1) == pytest.approx(0, abs=1e-9)


def test_drift_of_whole_windows_cancels():
    design = make("factorial", players(3))
    calm, stormy = (estimate(design, measured(design, 31, 1e3, drift)) for drift in (0, 1e5))

    def widths(found: dict, section: str) -> float:
        return float(np.mean([row["high"] - row["low"] for row in found[section]]))

    assert widths(stormy, "rows") > 50 * widths(calm, "rows")
    assert widths(stormy, "attribution") < 6 * widths(calm, "attribution")  # a single window decides each median


def test_missing_windows_do_not_count():
    design = make("ladder", players(3))
    times = measured(design, 5)
    holes = np.insert(times, [0, 2], np.nan, axis=0)
    assert estimate(design, holes) == estimate(design, times)


def test_a_failed_gate_voids_just_what_needs_it():
    design = make("ladder", players(4))
    times = np.array([[5e6, 4e6, np.nan, 2e6, 1e6]] * 3)
    found = estimate(design, times, failed={2})
    assert [row["tpot_ms"] for row in found["rows"]] == [5.0, 4.0, None, 2.0, 1.0]
    assert [row["gain_us"] for row in found["attribution"]] == [pytest.approx(1e3), None, None, pytest.approx(1e3)]
    assert (found["attribution"][1]["gain_pct"], found["attribution"][1]["low"]) == (None, None)


def test_a_failed_gate_voids_the_interactions_and_errors_that_need_it():
    design = make("factorial", players(8))
    times = np.full((2, len(design.combinations)), 1e6)
    found = estimate(design, times, failed={1})
    assert {row["us"] for row in found["interactions"]} == {None}
    assert [row["gain_us"] for row in found["attribution"]] == [None] * 7 + [0.0]
    sampled = make("sampled", players(3))
    lost = estimate(sampled, np.full((2, len(sampled.combinations)), 1e6), failed={len(sampled.combinations) - 1})
    assert [(row["gain_us"], row["error_us"]) for row in lost["attribution"]] == [(None, None)] * 3


@pytest.mark.parametrize(
    ("times", "failed", "words"),
    [
        ([[3e6, np.nan]], set(), "a window holds no time for some of its combinations; measure it again."),
        ([[3e6, 0.0]], set(), "a window holds no time for some"),
        ([[3e6, np.inf]], set(), "a window holds no time for some"),
        ([[np.nan, np.nan]], set(), "no window has been measured; take at least one."),
        (np.empty((0, 2)), set(), "no window has been measured; take at least one."),
        ([[3e6, 2e6]], {0}, "the baseline failed its own gate"),
    ],
)
def test_times_that_say_nothing_are_refused(times, failed, words):
    with pytest.raises(UserError, match=words):
        estimate(make("ladder", players(1)), np.array(times), failed=failed)


def test_times_of_another_design_are_a_mistake():
    with pytest.raises(ValueError, match="for 3 combinations"):
        estimate(make("ladder", players(2)), np.ones((2, 2)))


def test_the_noise_floor_is_what_medians_of_pairs_differ_by():
    a = np.array([1.0, 2.0, 9.0])
    assert noise_floor(a, 1.01 * a) == pytest.approx((1.0, 1.0))  # drift of whole windows cancels
    assert noise_floor(np.array([2.0, 7.0]), np.array([1.99, np.nan])) == pytest.approx((0.5, 0.5))
    first, second = np.median(pair(16, 0), axis=0)
    floor, high = noise_floor(*pair(16, 0).T)
    assert 100 * abs(second / first - 1) == pytest.approx(floor)
    assert floor < high < 3
    with pytest.raises(UserError, match="no window holds the A/A pair"):
        noise_floor(np.array([1.0]), np.array([np.nan]))


def pair(windows: int, seed: int, columns: int = 2) -> np.ndarray:
    """Times of combinations that take equally long, with 1 % noise."""
    return np.random.default_rng(seed).normal(1e6, 1e4, (windows, columns))


def test_a_pass_that_does_nothing_reads_within_noise():
    design, said = make("ladder", players(1)), []
    for seed in range(100):
        times = pair(16, seed, 3)
        (row,) = estimate(design, times[:, :2], resamples=400)["attribution"]
        said.append(within_noise(row, noise_floor(times[:, 0], times[:, 2], resamples=400)[0]))
    assert np.mean(said) >= 0.9


def test_a_gain_beyond_noise_is_one():
    (row,) = estimate(make("ladder", players(1)), pair(16, 0) * [1, 0.95])["attribution"]
    assert not within_noise(row, noise_floor(*pair(16, 1).T)[0])
    assert within_noise(row, 9.0)
    assert within_noise(row | {"low": -1.0}, 0.0)  # its interval holds 0
    assert not within_noise(row | {"gain_pct": None, "low": None, "high": None}, 1.0)


def test_options_know_the_designs():
    assert tuple(DESIGNS) == options.DESIGNS

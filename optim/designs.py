"""Which combinations of passes an ablation measures, and what each pass is worth by their times.

A player is a tuple of passes that are switched together. Players stand in the order of the ladder; a combination is an
int inside this file, bit i set where player i is on, so that in ascending order the baseline is first and all on last.
Gains are linear in the times of the combinations: a design holds their exact weights, `estimate` applies them.
"""

import random
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import chain, combinations
from math import comb
from typing import Any

import numpy as np

from ling_prof.errors import UserError

AFFORDABLE = 7  # players of a full factorial: 128 combinations
INTERVAL = (2.5, 97.5)  # percentiles

Player = tuple[str, ...]
Weights = dict[int, Fraction]  # combination -> weight of its time


@dataclass(frozen=True)
class Design:
    """What to measure and how to weigh it.

    combinations: names of the passes that are on, in the players' order; the first is (), the last has all.
    contrasts, interactions: index of a combination -> weight of its time. methods: 'shapley', 'ladder',
    'leave-one-out' or 'sampled'. pairs: of a sampled design the contrasts by each pair of permutations alone.
    """

    name: str
    players: tuple[Player, ...]
    combinations: list[Player]
    contrasts: dict[Player, Weights]
    interactions: dict[tuple[Player, Player], Weights]
    methods: dict[Player, str]
    pairs: list[dict[Player, Weights]]


@dataclass(frozen=True)
class _Plan:
    """A design in numbers: players by index, combinations by their bits."""

    gains: dict[int, Weights]
    methods: list[str]
    interactions: dict[tuple[int, int], Weights] = field(default_factory=dict)
    pairs: list[dict[int, Weights]] = field(default_factory=list)


def make(name: str, players: Sequence[Player], seed: int = 0, permutations: int = 8) -> Design:
    """The design of this name, one of `DESIGNS`, over players in the order of the ladder.

    factorial: exact Shapley values of the first seven players and their pairwise interactions, from all their
    combinations; the others are added one by one on top. ladder: all are added one by one. leave-one-out: the full
    set without each. sampled: Shapley values estimated from `permutations` random orders, each with its reverse.
    Raises UserError for an unknown design, no players, a pass named twice, permutations that make no two pairs.
    """
    if name not in DESIGNS:
        raise UserError(f"no design {name!r}; there are {', '.join(DESIGNS)}.")
    _check(players)
    if name == "sampled" and (permutations < 4 or permutations % 2):
        raise UserError(f"a sampled design takes an even number of permutations, 4 or more, not {permutations}.")
    return _named(name, tuple(players), DESIGNS[name](len(players), seed, permutations))


def _check(players: Sequence[Player]) -> None:
    if not players or not all(players):
        raise UserError("there is no pass to measure; name one or more.")
    names = [name for player in players for name in player]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(f"{', '.join(twice)} is named twice; name each pass once.")


def _factorial(n: int, seed: int, permutations: int) -> _Plan:
    m = min(n, AFFORDABLE)
    gains = {i: _index(1 << i, m) for i in range(m)} | _ladder(range(m, n), on=2**m - 1)
    interactions = {(i, j): _index(1 << i | 1 << j, m) for i, j in combinations(range(m), 2)}
    return _Plan(gains, ["shapley"] * m + ["ladder"] * (n - m), interactions)


def _one_by_one(n: int, seed: int, permutations: int) -> _Plan:
    return _Plan(_ladder(range(n)), ["ladder"] * n)


def _leave_one_out(n: int, seed: int, permutations: int) -> _Plan:
    full = 2**n - 1
    return _Plan({i: _ladder([i], on=full ^ 1 << i)[i] for i in range(n)}, ["leave-one-out"] * n)


def _sampled(n: int, seed: int, permutations: int) -> _Plan:
    dice = random.Random(seed)
    orders = [dice.sample(range(n), n) for _ in range(permutations // 2)]
    pairs = [_mean([_ladder(order), _ladder(order[::-1])]) for order in orders]
    return _Plan(_mean(pairs), ["sampled"] * n, pairs=pairs)


DESIGNS: dict[str, Callable[[int, int, int], _Plan]] = {
    "factorial": _factorial,
    "ladder": _one_by_one,
    "leave-one-out": _leave_one_out,
    "sampled": _sampled,
}


def _ladder(order: Sequence[int], on: int = 0) -> dict[int, Weights]:
    """Time before minus time after each player, as they join those that are on."""
    gains = {}
    for player in order:
        after = on | 1 << player
        gains[player] = {on: Fraction(1), after: Fraction(-1)}
        on = after
    return gains


def _index(of: int, m: int) -> Weights:
    """The Shapley value of one of `m` players, or the Shapley interaction index of two, in time saved.

    sum over the S without T of s! (m-s-t)! / (m-t+1)! sum over the L in T of (-1)^(t-l) v(S with L)
    (Grabisch & Roubens, Int. J. Game Theory 28, 1999), where v is minus the time; for one player that is Shapley's
    value (1953). An interaction above 0: the two save more together than apart.
    """
    t = of.bit_count()

    def weight(on: int) -> Fraction:
        inside = (on & of).bit_count()
        return Fraction((-1) ** (t - inside + 1), (m - t + 1) * comb(m - t, on.bit_count() - inside))

    return {on: weight(on) for on in range(2**m)}


def _mean(ladders: list[dict[int, Weights]]) -> dict[int, Weights]:
    return {player: _sum([ladder[player] for ladder in ladders], Fraction(1, len(ladders))) for player in ladders[0]}


def _sum(terms: list[Weights], factor: Fraction) -> Weights:
    total: Weights = {}
    for on, weight in chain.from_iterable(term.items() for term in terms):
        total[on] = total.get(on, Fraction(0)) + factor * weight
    return total


def _named(name: str, players: tuple[Player, ...], plan: _Plan) -> Design:
    """Indices become players, bits the index of a combination."""
    measured = sorted({0, 2 ** len(players) - 1}.union(*plan.gains.values()))
    place = {on: index for index, on in enumerate(measured)}

    def placed(weights: Weights) -> Weights:
        return {place[on]: weight for on, weight in sorted(weights.items())}

    def of_players(gains: dict[int, Weights]) -> dict[Player, Weights]:
        return {players[i]: placed(gains[i]) for i in range(len(players))}

    return Design(
        name=name,
        players=players,
        combinations=[_passes(players, on) for on in measured],
        contrasts=of_players(plan.gains),
        interactions={(players[i], players[j]): placed(weights) for (i, j), weights in plan.interactions.items()},
        methods=dict(zip(players, plan.methods, strict=True)),
        pairs=[of_players(pair) for pair in plan.pairs],
    )


def _passes(players: Sequence[Player], on: int) -> Player:
    return tuple(name for i, player in enumerate(players) if on >> i & 1 for name in player)


def label(player: Player) -> str:
    """('bf16_gate', 'bf16_head') -> 'bf16_gate+bf16_head', as the command line writes it."""
    return "+".join(player)


def estimate(
    design: Design, times: np.ndarray, seed: int = 0, resamples: int = 2000, failed: Set[int] = frozenset()
) -> dict[str, list[dict[str, Any]]]:
    """What the times of a design say, in the keys of `ling_prof.ablation_report`.

    times: float (windows, combinations), ns per token; a window that is missing is NaN throughout. failed: indices of
    combinations without a time; what needs one of them is None. A combination's time is its median over the windows.
    low, high: 95 % percentile bootstrap (Efron & Tibshirani, 1993), widened to hold the figure where they do not;
    windows are drawn jointly for all combinations, so that what slows a whole window cancels. rows: tpot_ms;
    attribution: gain_us, gain_pct of the baseline, error_us of sampled gains (standard error over the pairs of
    permutations); interactions: us. Raises UserError for a window that is not whole, none at all, a failed baseline.
    """
    sample = _Sample(_whole(design, times, failed), failed, seed, resamples)
    return {
        "rows": [sample.figure("tpot_ms", {i: 1}, unit=1e6) for i in range(len(design.combinations))],
        "attribution": [_attribution(design, player, sample) for player in design.players],
        "interactions": [
            {"a": label(a), "b": label(b), **sample.figure("us", weights)}
            for (a, b), weights in design.interactions.items()
        ],
    }


class _Sample:
    """Median times, as measured and of each resampling of the windows."""

    def __init__(self, times: np.ndarray, failed: Set[int], seed: int, resamples: int):
        windows = len(times)
        drawn = np.random.default_rng(seed).integers(windows, size=(resamples, windows))
        self.failed = failed
        self.median = np.median(times, axis=0)
        self.resampled = np.stack([np.median(column[drawn], axis=1) for column in times.T], axis=1)

    def figure(self, name: str, weights: Mapping[int, Fraction | int], unit: float = 1e3) -> dict[str, Any]:
        """The weighted sum of the times and its interval, in units of `unit` ns; None where one of them failed."""
        if self.failed & weights.keys():
            return {name: None, "low": None, "high": None}
        index, factors = list(weights), np.array([float(weight) for weight in weights.values()]) / unit
        value = float(self.median[index] @ factors)
        low, high = np.percentile(self.resampled[:, index] @ factors, INTERVAL)
        return {name: value, "low": min(float(low), value), "high": max(float(high), value)}


def _attribution(design: Design, player: Player, sample: _Sample) -> dict[str, Any]:
    gain = sample.figure("gain_us", design.contrasts[player])
    return {
        "pass": label(player),
        **gain,
        "gain_pct": None if gain["gain_us"] is None else 1e5 * gain["gain_us"] / float(sample.median[0]),
        "method": design.methods[player],
        "error_us": _error([sample.figure("gain_us", pair[player])["gain_us"] for pair in design.pairs]),
    }


def _error(gains: list[float | None]) -> float | None:
    """Standard error of their mean, for a sampled design."""
    known = [gain for gain in gains if gain is not None]
    return float(np.std(known, ddof=1) / len(known) ** 0.5) if known and len(known) == len(gains) else None


def _whole(design: Design, times: np.ndarray, failed: Set[int]) -> np.ndarray:
    """The windows that were measured; 1 stands for the time of a combination that failed."""
    if times.ndim != 2 or times.shape[1] != len(design.combinations):
        raise ValueError(f"times of shape {times.shape} for {len(design.combinations)} combinations")
    if 0 in failed:
        raise UserError("the baseline failed its own gate, so that no gain can be said; look at its verdict first.")
    counted = [i not in failed for i in range(times.shape[1])]
    there = np.where(counted, times, 1.0)[~np.isnan(times[:, counted]).all(axis=1)]
    if not (np.isfinite(there) & (there > 0)).all():
        raise UserError("a window holds no time for some of its combinations; measure it again.")
    if not len(there):
        raise UserError("no window has been measured; take at least one.")
    return there


def noise_floor(a: np.ndarray, a_again: np.ndarray, seed: int = 0, resamples: int = 2000) -> tuple[float, float]:
    """How far the medians of one combination measured twice lie apart, and may by chance: percent of the first.

    By chance is the 97.5th percentile of the distance over resamplings of the windows, each drawn with both its times.
    a, a_again: float (windows,), ns per token, NaN where a window is missing. Raises UserError when no pair is left.
    """
    pairs = np.stack([a, a_again], axis=1)
    pairs = pairs[~np.isnan(pairs).any(axis=1)]
    if not len(pairs):
        raise UserError("no window holds the A/A pair; measure at least one.")
    drawn = np.random.default_rng(seed).integers(len(pairs), size=(resamples, len(pairs)))
    measured, resampled = _apart(pairs), _apart(pairs[drawn])
    return float(measured), max(float(measured), float(np.percentile(resampled, INTERVAL[1])))


def _apart(pairs: np.ndarray) -> np.ndarray:
    """(..., windows, 2) -> the distance of the two medians, percent of the first (...)."""
    first, second = np.moveaxis(np.median(pairs, axis=-2), -1, 0)
    return 100 * abs(second - first) / first

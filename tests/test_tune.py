"""The search for tiles: every kernel takes its fastest choice, and none that does not fit."""

import math
from contextlib import suppress
from types import SimpleNamespace

import pytest
import torch
from test_cli import refused

from ling_prof.errors import UserError
from optim import base, tune, witness
from optim.engine import weights
from optim.engine.config import NANO
from optim.engine.generate import Engine
from optim.kernels import tiles

CHOICES = [{"R": 1}, {"R": 2}, {"R": 4}]


def searched(monkeypatch, us, wrong=(), said=None):
    """The search over one kernel whose choice R makes the step take us[R]; the table knows R = 2.

    Those in `wrong` compute something else.
    """
    monkeypatch.setattr(tiles, "trial", {})
    monkeypatch.setattr(tiles, "asked", {})
    monkeypatch.setattr(tiles, "table", lambda: {tiles.gpu(): {"gemv 8x8": {"R": 2}}})

    def now(*_):
        return tiles.tile("gemv", (8, 8), CHOICES, torch.bfloat16)["R"]

    monkeypatch.setattr(tune, "replay_us", lambda *_: us[now()])
    monkeypatch.setattr(tune, "steps", now)
    monkeypatch.setattr(tune, "distance", lambda found, first: math.nan if found in wrong else 1e-3)
    return tune.search(SimpleNamespace(save=lambda: None), say=[].append if said is None else said.append)


@pytest.mark.parametrize(
    ("us", "best"),
    [
        ({1: 100.0, 2: 80.0, 4: 90.0}, 2),
        ({1: 70.0, 2: 80.0, 4: 90.0}, 1),
        ({1: math.inf, 2: 80.0, 4: 60.0}, 4),
        ({1: 100.0, 2: 99.99, 4: 99.98}, 1),  # less than noise: the first stays
    ],
)
def test_the_fastest_choice_is_taken(monkeypatch, us, best):
    assert searched(monkeypatch, us) == {"gemv 8x8": {"R": best}}


def test_a_fast_tile_that_computes_something_else_is_left_out(monkeypatch):
    said = []
    assert searched(monkeypatch, {1: 100.0, 2: 80.0, 4: 90.0}, wrong={2}, said=said) == {"gemv 8x8": {"R": 4}}
    assert said[0] == "gemv 8x8: {'R': 2} is left out: half a layer differs by nan from that of the first tile"


@pytest.mark.parametrize("us", [100.0, math.inf])
def test_nothing_of_a_search_stays_on_trial(monkeypatch, us):
    with suppress(UserError):
        searched(monkeypatch, dict.fromkeys((1, 2, 4), us))
    assert tiles.trial == {}


def test_where_none_fits_it_is_said(monkeypatch):
    with pytest.raises(UserError, match="gemv 8x8: no tile fits this GPU"):
        searched(monkeypatch, dict.fromkeys((1, 2, 4), math.inf))


def test_the_tiles_of_an_engine_are_told_apart_by_its_steps(monkeypatch):
    """A real engine, on whose decode a tile does too much."""
    engine = Engine(NANO, weights.random(NANO, 0, torch.bfloat16, "cpu"), 32, "naive")
    engine.prefill([1, 2, 3])
    saved, ops = engine.save(), engine.model.decode_ops
    first = tune.steps(engine, saved)
    assert witness.distance(tune.steps(engine, saved, first), first) == 0
    with base.exchanged(ops, swiglu=lambda x, limit, right=ops.swiglu: 1.2 * right(x, limit)):
        assert witness.distance(tune.steps(engine, saved, first), first) > witness.MOST_HALF


def test_a_pattern_that_is_none_ends_in_one_sentence():
    assert refused("tune", "--model", "nano", "--only", "(").startswith(
        "ling-prof: --only '(' is no regular expression ("
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_one_sentence():
    assert (
        refused("tune", "--model", "nano")
        == "ling-prof: tiles are searched on a CUDA GPU, and torch finds none here.\n"
    )

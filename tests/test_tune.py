"""The search for tiles: every kernel takes its fastest choice, and none that does not fit."""

import math
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from ling_prof.errors import UserError
from optim import tune
from optim.kernels import tiles

CHOICES = [{"R": 1}, {"R": 2}, {"R": 4}]


def searched(monkeypatch, us):
    """The search over one kernel whose choice R makes the step take us[R]; the table knows R = 2."""
    monkeypatch.setattr(tiles, "trial", {})
    monkeypatch.setattr(tiles, "asked", {})
    monkeypatch.setattr(tiles, "table", lambda: {tiles.gpu(): {"gemv 8x8": {"R": 2}}})
    monkeypatch.setattr(
        tune, "replay_us", lambda engine, saved: us[tiles.tile("gemv", (8, 8), CHOICES, torch.bfloat16)["R"]]
    )
    return tune.search(SimpleNamespace(save=lambda: None), say=lambda line: None)


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


def test_where_none_fits_it_is_said(monkeypatch):
    with pytest.raises(UserError, match="gemv 8x8: no tile fits this GPU"):
        searched(monkeypatch, dict.fromkeys((1, 2, 4), math.inf))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_one_sentence():
    done = subprocess.run([sys.executable, "-m", "optim.tune", "--model", "nano"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "ling-prof: tiles are searched on a CUDA GPU, and torch finds none here.\n"

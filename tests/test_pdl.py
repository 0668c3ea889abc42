"""Programmatic dependent launch: no kernel reads too early, in its machine code and under delays that would show it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when triton is imported

from ling_prof.errors import UserError
from optim import base
from optim.engine import weights
from optim.engine.config import TINY
from optim.engine.generate import Engine
from optim.kernels import launch

GPU = torch.cuda.is_available()
on_a_gpu = pytest.mark.skipif(not GPU, reason="no CUDA GPU: that chained kernels wait for each other is NOT tested")
STREAMING = ("experts_up_kernel", "experts_up_direct_kernel")  # which experts it reads, the kernel before says
REPLAYS = 2000


@pytest.fixture(scope="module")
def orders():
    """Kernel -> the order of its memory instructions, compiled for Hopper."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    program = Path(__file__).with_name("sass.py")
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, env=environment, check=True)
    return json.loads(done.stdout)


def test_machine_code_waits_before_it_writes_and_after_it_asked_for_weights(orders):
    assert len(orders) >= 12
    for name, order in orders.items():
        assert order.count("wait") == order.count("release") == 1, name
        wait = order.index("wait")
        assert order.index("release") > wait, name
        assert "store" not in order[:wait], name
        assert {"load", "weight"} & set(order[wait:]), name  # what the kernel before wrote
        early = [at for at, what in enumerate(order) if what == "weight"]
        assert all((at < wait) != (name in STREAMING) for at in early), name


def everything(engine):
    free = [name for name, module in base.passes().items() if name != "pdl" and not module.blocked(engine)]
    return [name for name in free if name not in ("host_run_ahead", "cuda_graph", *base.replaced(free))]


@pytest.fixture(scope="module")
def engine():
    return Engine(TINY, weights.random(TINY), 1100 + REPLAYS)


@pytest.fixture(scope="module")
def prompt():
    return torch.randint(TINY.vocab, (1000,), generator=torch.Generator().manual_seed(1)).tolist()


def text_and_state(engine, prompt, tokens):
    text = list(engine.stream(prompt, tokens))
    return text, [engine.logits.clone(), *engine.cache.saved(), engine.cache.latent[:, :-1].clone()]  # without scratch


@on_a_gpu
def test_2000_replays_are_bitwise_the_same(engine, prompt):
    names = everything(engine)
    with base.applied(engine, names):
        text, state = text_and_state(engine, prompt, REPLAYS)
    with base.applied(engine, [*names, "pdl"]):
        edges, programmatic = engine.graph_edges()
        assert programmatic > 0.9 * edges
        chained, own = text_and_state(engine, prompt, REPLAYS)
    assert chained == text
    assert all(map(torch.equal, own, state))


@on_a_gpu
@pytest.mark.parametrize("way", ["SLEEPS", "HASTY"])
def test_delayed_kernels_are_waited_for(engine, prompt, way):
    """Every kernel lets the next begin, sleeps 20 us and works then: nothing changes, unless the wait is left out."""
    names = everything(engine)
    with base.applied(engine, names):
        text, state = text_and_state(engine, prompt, 16)
    try:
        with base.exchanged(launch, chained=getattr(launch, way)), base.applied(engine, names):
            delayed, own = text_and_state(engine, prompt, 16)
        same = delayed == text and all(map(torch.equal, own, state))
    except UserError as error:  # what was read too early made no numbers
        same = "finite" not in str(error)
    assert same == (way == "SLEEPS")


@on_a_gpu
def test_the_baseline_chains_as_well(engine, prompt):
    with base.applied(engine, []):
        text, state = text_and_state(engine, prompt, 64)
    for way in (launch.WAITS, launch.SLEEPS):
        with base.exchanged(launch, chained=way), base.applied(engine, []):
            delayed, own = text_and_state(engine, prompt, 64)
        assert delayed == text
        assert all(map(torch.equal, own, state))

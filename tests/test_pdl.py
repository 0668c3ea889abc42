"""Programmatic dependent launch: no kernel reads too early, in its machine code and under delays that would show it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when triton is imported

from test_early import EARLY, KERNELS

from ling_prof.errors import UserError
from optim import base
from optim.engine import weights
from optim.engine.config import TINY
from optim.engine.generate import Engine
from optim.kernels import launch

ROOT = Path(__file__).resolve().parents[1]
GPU = torch.cuda.is_available()
on_a_gpu = pytest.mark.skipif(not GPU, reason="no CUDA GPU: that chained kernels wait for each other is NOT tested")
STREAMING = ("experts_up_kernel", "experts_up_direct_kernel")  # which experts it reads, the kernel before says
REPLAYS = 2000


BEFORE = {  # weights and other loads that the code asks for before its wait, and the loads behind it, as sass.py has it
    "experts_down_direct_kernel": {(40, 8, 10)},
    "experts_down_kernel": {(40, 2, 10)},
    "gemv_kernel": {(16, 0, 4)},
    "gemv_split_kernel": {(4, 0, 4)},
    "head_argmax_kernel": {(16, 4, 8)},
    "kda_out_kernel": {(4, 0, 6)},
    "kda_step_fused_kernel BOUNDED": {(0, 41, 5), (0, 146, 21)},  # Triton 3.9; 3.6, with narrower loads
    "kda_step_fused_kernel BOUNDED GATED": {(0, 42, 6), (0, 162, 37)},
    "mla_absorb_kernel": {(8, 0, 8)},
    "mla_join_kernel": {(0, 1, 132)},
    "mla_query_kernel ROTATED": {(1, 1, 9)},
    "mla_split_kernel ROTATED": {(0, 41, 57)},
    "mla_values_kernel GATED": {(2, 0, 2)},
    "moe_front_kernel": {(48, 4, 8)},
    "moe_front_kernel LIMITED": {(48, 4, 8)},
    "norm_gemv_kernel": {(16, 4, 4)},
    "norm_gemv_kernel ADD": {(16, 4, 8)},
}
MUTATIONS = {  # file: the read of what the kernel before wrote, behind which its kernel's wait goes
    "linear/normed.py": "    parts = summed(x, residual, depth, ADD, W, BK)\n",
    "moe/triton.py": "    gate = tl.load(x + row * 2 * half + col, inside, 0.0).to(tl.float32)\n",
}


def compiled(*only, where=ROOT):
    """Variant of a kernel -> the order of its memory instructions, compiled for Hopper from the sources at `where`."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(map(str, (where, ROOT, os.environ.get("PYTHONPATH", ""))))
    command = [sys.executable, ROOT / "tests/sass.py", *only]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    return json.loads(done.stdout)


def fault(name, order):
    """What is wrong with a kernel's machine code; empty where nothing is."""
    wait = order.index("wait") if "wait" in order else len(order)
    early = order[:wait].count("weight"), order[:wait].count("load"), order[wait:].count("load")
    kernel = name.split()[0]
    if (order.count("wait"), order.count("release"), order[:wait].count("release")) != (1, 1, 0):
        return "it does not wait once and then release"
    if "store" in order[:wait]:
        return "it writes before its wait"
    if early not in BEFORE.get(name, {(0, 0, early[2])}) or not early[2]:
        return f"it loads {early}"
    if ("weight" in order[wait:]) != (kernel in STREAMING):
        return "weights are asked for behind the wait" if kernel not in STREAMING else "no weights behind the wait"
    return ""


@pytest.fixture(scope="module")
def orders():
    return compiled()


def test_every_kernel_is_compiled(orders):
    """Those of the baseline and of every pass: all that the sources launch."""
    assert {name.split()[0] for name in orders} == set(KERNELS)
    assert set(BEFORE) == {name for name in orders if name.split()[0] in EARLY}


def test_machine_code_waits_before_it_writes_and_after_it_asked_for_weights(orders):
    assert {name: said for name, order in orders.items() if (said := fault(name, order))} == {}


def test_a_read_before_the_wait_is_found(tmp_path):
    """The same sources with two waits too late."""
    shutil.copytree(ROOT / "optim", tmp_path / "optim")
    for file, read in MUTATIONS.items():
        path = tmp_path / "optim/kernels" / file
        before, behind = path.read_text().split(read)
        kernel, wait, rest = before.rpartition("    chain(PDL)\n")
        path.write_text(kernel + rest + read + wait + behind)
    found = compiled("norm_gemv_kernel", "swiglu_kernel", "gemv_split_kernel", where=tmp_path)
    assert {name for name, order in found.items() if "it loads" in fault(name, order)} == {
        *("norm_gemv_kernel", "norm_gemv_kernel ADD", "swiglu_kernel", "swiglu_kernel LIMITED")
    }
    assert fault("gemv_split_kernel", found["gemv_split_kernel"]) == ""


def test_the_length_is_read_by_every_warp_before_one_writes_it(orders):
    assert "load barrier store" in " ".join(orders["seam_embed_kernel"])


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
        edges = engine.graph_edges()
        assert sum(edge.programmatic for edge in edges) > 0.9 * len(edges)
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

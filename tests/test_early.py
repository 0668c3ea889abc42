"""What a chained kernel reads before its wait: by its code, and by addresses in a decode step."""

import ast
import copy
import itertools
import os
import sys
from dataclasses import replace

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when triton is imported

from conftest import BUNDLED

from optim import base
from optim.engine import weights
from optim.engine.config import NANO
from optim.engine.generate import Engine
from optim.kernels import launch

GPU = torch.cuda.is_available()
EARLY = {  # what a kernel reads before its wait: weights, and what is older than the kernel before it
    "gemv_kernel": {"weight"},
    "gemv_split_kernel": {"weight"},
    "norm_gemv_kernel": {"matrix", "weight"},
    "head_argmax_kernel": {"matrix", "weight"},
    "kda_step_fused_kernel": {"gain", "conv_weight", "a_log", "dt_bias", "ring", "state", "index", "position"},
    "moe_front_kernel": {"router", "gate_up", "norm"},
    "experts_down_kernel": {"weight", "shared_down", "logits", "bias"},
    "experts_down_direct_kernel": {"weight", "shared_down", "chosen", "weights"},
    "mla_query_kernel": {"q_b", "q_norm"},
    "mla_absorb_kernel": {"kv_b"},
    "mla_split_kernel": {"latent", "slots", "length"},  # but for the newest
    "kda_out_kernel": {"matrix"},
    "mla_join_kernel": {"length"},
    "mla_values_kernel": {"kv_b"},
}
COUNTS = {  # arguments that are no addresses
    *("n", "eps", "heads", "lora", "stride", "q_stride", "kv_stride", "scale", "bound", "width", "scaling", "limit"),
    *("half", "hidden", "inner", "nope", "values", "experts"),
}
ATOMIC = {f"tl.atomic_{what}" for what in ("add", "and", "cas", "max", "min", "or", "xchg", "xor")}
FILES = [ast.parse(path.read_text()) for path in (BUNDLED.parent / "optim/kernels").glob("*/*.py")]
FUNCTIONS = [node for tree in FILES for node in tree.body if isinstance(node, ast.FunctionDef)]
JIT = {node.name: node for node in FUNCTIONS if "triton.jit" in map(ast.unparse, node.decorator_list)}


def calls(code):
    """The functions that are called, anywhere inside."""
    return [ast.unparse(node.func) for node in ast.walk(code) if isinstance(node, ast.Call)]


def callers(*wanted):
    """These functions, and every jit function that calls one of them, itself or through others."""
    found = {*wanted}
    while more := {name for name, node in JIT.items() if found & {*calls(node)}} - found:
        found |= more
    return found


READERS, WRITERS = callers("tl.load", *ATOMIC), callers("tl.store", *ATOMIC)


def launched():
    for call in (node for tree in FILES for node in ast.walk(tree) if isinstance(node, ast.Call)):
        if ast.unparse(call.func) == "launch":
            yield call.args[0].id


KERNELS = {name: JIT[name] for name in launched()}


def check(kernel):
    """It calls chain(PDL) unconditionally, before it writes, and reads before it only what it may."""
    waits = [line for line in kernel.body if ast.unparse(line) == "chain(PDL)"]
    assert len(waits) == 1, "waits"
    before = ast.Module(kernel.body[: kernel.body.index(waits[0])], [])
    assert not WRITERS & {*calls(before)}, "writes"
    assert "return" not in ast.unparse(before), "returns"
    if kernel.name in EARLY:
        assert read_from(before, kernel) == EARLY[kernel.name], "reads"
    else:
        assert not READERS & {*calls(before)}, "reads"


@pytest.mark.parametrize("name", KERNELS)
def test_every_chained_kernel_waits(name):
    check(KERNELS[name])


def test_helpers_are_known_by_what_they_do():
    assert {"rows_of", "summed", "rivals", "turn", "turned", "mixed", "one_expert", "window_of"} <= READERS
    assert {"keep", "turn", "mixed", "one_expert"} <= WRITERS
    assert not {"product", "largest", "chain", "share_of"} & (READERS | WRITERS)


@pytest.mark.parametrize(
    ("name", "behind", "fault"),
    [
        ("norm_gemv_kernel", "parts = summed(", "reads"),
        ("norm_gemv_kernel", "if ADD:", "writes"),
        ("swiglu_kernel", "gate = tl.load(", "reads"),
        ("kda_step_fused_kernel", "q_new, k_new, v_new", "reads"),
        ("mla_split_kernel", "qr = turned(", "returns"),
        ("experts_up_kernel", "order = rivals(", "reads"),
        ("experts_up_direct_kernel", "one_expert(", "writes"),
        ("experts_down_kernel", "mixed(", "writes"),
        ("mla_query_kernel", "if first < n:", "writes"),
    ],
)
def test_a_wait_too_late_is_found(name, behind, fault):
    kernel = copy.deepcopy(KERNELS[name])
    lines = [ast.unparse(line) for line in kernel.body]
    wait = kernel.body.pop(lines.index("chain(PDL)"))
    kernel.body.insert(next(at for at, line in enumerate(lines) if behind in line), wait)
    with pytest.raises(AssertionError, match=fault):
        check(kernel)


def read_from(code, kernel):
    """The kernel's pointers from which `code` reads, followed through its own variables."""
    means = meanings(code, kernel)
    found = set()
    for call in (node for node in ast.walk(code) if isinstance(node, ast.Call)):
        if ast.unparse(call.func) in READERS:
            given = [*call.args, *(keyword.value for keyword in call.keywords)]
            found |= {name for value in given for n in names_in(value) for name in means.get(n, set())}
    return found & pointers(kernel)


def meanings(code, kernel):
    """Variable -> the kernel's arguments that its value depends on."""
    means = {argument.arg: {argument.arg} for argument in kernel.args.args if argument.annotation is None}
    lines = [line for line in ast.walk(code) if isinstance(line, ast.Assign | ast.AugAssign)]
    for _ in lines:  # as often as one may hang on another
        for line in lines:
            depends = set().union(*(means.get(name, set()) for name in names_in(line.value)))
            for target in line.targets if isinstance(line, ast.Assign) else [line.target]:
                for name in names_in(target):
                    means[name] = means.get(name, set()) | depends
    return means


def names_in(node):
    return [child.id for child in ast.walk(node) if isinstance(child, ast.Name)]


def pointers(kernel):
    """Arguments that are addresses: something is loaded from them or stored to them."""
    return {argument.arg for argument in kernel.args.args if argument.annotation is None} - COUNTS


@pytest.mark.skipif(GPU, reason="the interpreter runs launches one by one; on a GPU tests/test_pdl.py delays them")
@pytest.mark.parametrize(
    ("without", "q_lora"), [((), 32), ((), None), (("moe_fuse", "kda_out", "norm_fuse", "proj_concat"), 32)]
)
@pytest.mark.usefixtures("few_programs")
def test_nothing_of_the_launch_before_is_read_before_the_wait(without, q_lora, monkeypatch):
    """By addresses, in a decode step: what a launch changed against what the next one reads early."""
    c = replace(NANO, layers=2, dense_layers=0, q_lora=q_lora)
    engine = Engine(c, weights.random(c, 0, torch.float32, "cpu"), 32, "triton")
    engine.model.prefill = lambda tokens, seen: torch.zeros(c.vocab)  # the prompt does not matter
    names = [n for n, module in base.passes().items() if n not in without and not module.blocked(engine)]
    with base.applied(engine, names):
        engine.prefill([1, 2, 3])
        seen = watched(monkeypatch)
        engine.step()
    assert {"experts_down_kernel", "experts_down_direct_kernel"} & {kernel for kernel, _, _ in seen}
    for kernel, arguments in ((kernel, arguments) for kernel, arguments, _ in seen if kernel in EARLY):
        assert pointers(KERNELS[kernel]) >= {n for n, value in arguments.items() if isinstance(value, torch.Tensor)}
    for (_, _, written), (kernel, arguments, _) in itertools.pairwise(seen):
        for name in EARLY.get(kernel, set()) - {"latent" if kernel == "mla_split_kernel" else ""}:
            assert not any(overlap(arguments[name], one) for one in written), (kernel, name)


def watched(monkeypatch):
    """Of every launch from now on: the kernel's name, its arguments by name, and those tensors that it changed."""
    seen = []

    def watch(kernel, grid):
        def run(*values, **constants):
            arguments = dict(zip(kernel.arg_names, values, strict=False))
            tensors = [value for value in arguments.values() if isinstance(value, torch.Tensor)]
            before = [tensor.clone() for tensor in tensors]
            launch.launch(kernel, grid)(*values, **constants)
            changed = [t for t, old in zip(tensors, before, strict=True) if not torch.equal(t, old)]
            seen.append((kernel.fn.__name__, arguments, changed))

        return run

    for module in list(sys.modules.values()):
        kernels_there = getattr(module, "__name__", "").startswith("optim.kernels.") and module is not launch
        if kernels_there and callable(getattr(module, "launch", None)):
            monkeypatch.setattr(module, "launch", watch)
    return seen


def overlap(a, b):
    return a.data_ptr() < b.data_ptr() + b.nbytes and b.data_ptr() < a.data_ptr() + a.nbytes

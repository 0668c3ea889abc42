"""Prints, as JSON, the order of memory instructions of every launched kernel, or of those named after it.

Needs no GPU, and no TRITON_INTERPRET. Engines decode a step by each set of passes; launches are only noted. What was
noted is compiled for Hopper as PDL launches it, once for every set of flags: "norm_gemv_kernel ADD".
"""

import json
import re
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from optim import base
from optim.engine import weights
from optim.engine.config import NANO
from optim.engine.generate import Engine
from optim.kernels import launch

TYPES = {torch.bfloat16: "*bf16", torch.float32: "*fp32", torch.int32: "*i32", torch.int64: "*i64"}
OPTIONS = ("num_warps", "num_stages", "maxnreg")
KINDS = {
    r"LDG\S*\.EF": "weight",
    r"LDG": "load",
    r"STG|RED(?!UX)|ATOM": "store",
    r"BAR\.SYNC": "barrier",
    r"ACQBULK": "wait",
    r"PREEXIT": "release",
}
SIZES = {"kda_dim": 64, "hidden": 512, "kv_lora": 64, "experts": 32, "groups": 4}
C = replace(NANO, **SIZES, moe_intermediate=256, shared_intermediate=256, dense_intermediate=512)


def launches():
    """(kernel, arguments, constants) of every launch: without passes, with each alone, and with all."""
    notes = []
    note_in_place_of_launch(notes)
    for c in (C, replace(C, q_lora=None)):
        engine = Engine(c, weights.random(c, 0, torch.bfloat16, "cpu"), 64, "triton")
        free = [name for name, module in base.passes().items() if not module.blocked(engine)]
        for names in ([], *([name] for name in free), free):
            with base.applied(engine, names):
                pass
    return notes


def note_in_place_of_launch(notes):
    def note(kernel, grid):
        launch.note(kernel)
        return lambda *arguments, **constants: notes.append((kernel, arguments, constants))

    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").startswith("optim.kernels") and callable(getattr(module, "launch", None)):
            module.launch = note


def variants(notes):
    """The first launch of each kernel with each set of flags, by 'kernel FLAG FLAG'."""
    found = {}
    for kernel, arguments, constants in notes:
        flags = sorted(name for name, value in constants.items() if value is True)
        found.setdefault(" ".join([kernel.__name__, *flags]), (kernel, arguments, constants))
    return found


def compiled(kernel, arguments, constants):
    options = {name: constants[name] for name in OPTIONS if name in constants}
    values = dict(zip(kernel.arg_names, arguments, strict=False)) | constants | {"PDL": launch.WAITS}
    constant = [p.name for p in kernel.params if p.is_constexpr or values[p.name] is None]
    signature = {name: "constexpr" if name in constant else kind(values[name]) for name in kernel.arg_names}
    fixed = {(kernel.arg_names.index(name),): values[name] for name in constant}
    source = ASTSource(fn=kernel, signature=signature, constexprs=fixed)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options={**options, "launch_pdl": True})


def kind(value):
    return TYPES[value.dtype] if isinstance(value, torch.Tensor) else "fp32" if isinstance(value, float) else "i32"


def order(cubin):
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        tool = Path(triton.__file__).parent / "backends/nvidia/bin/nvdisasm"
        text = subprocess.run([tool, "-c", file.name], capture_output=True, text=True, check=True).stdout
    found = []
    for line in text.splitlines():
        operation = re.search(r"(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]+)", line.partition("*/")[2])
        found += [name for pattern, name in KINDS.items() if operation and re.match(pattern, operation[1])][:1]
    return found


def main(only):
    chosen = {name: note for name, note in variants(launches()).items() if not only or name.split()[0] in only}
    print(json.dumps({name: order(compiled(*note).asm["cubin"]) for name, note in chosen.items()}))


if __name__ == "__main__":
    main(sys.argv[1:])

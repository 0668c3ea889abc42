"""Stands in for optim.sglang.worker in tests: speaks its protocol, leaves its proofs, takes its time by arithmetic.

FAKE in the environment is JSON: base (ns a token), gains (by pass), trace (a recording), and passes that, when on, stop
the start (void), change a token (changes), do so after a sampled request (leaks), or end the process at a measured
request (dies; after: how many are served before); lies is one whose proof is wrong; with never, the server without
passes does not start; facts: what it says of itself beside the usual; slow: s that a start takes; logits: by pass what
they are: "near", "far", "nan", or a fault in its own words ("none": without passes; all: "exact"); odd: what is other
in the answers to measured requests (null: it lacks that), line: what it prints instead; file: where it says its
recording is.
"""

import json
import os
import shutil
import sys
import time
from pathlib import Path

import numpy as np

from optim.sglang import engine, proof, selection
from optim.sglang.registry import passes

FAKE = json.loads(os.environ["FAKE"])
SELECTION = selection.asked()
ON = [name for name, on in SELECTION.items() if on]
ENGINE = json.loads(sys.argv[1])["kind"] == "engine"
ON += ["engine"] * ENGINE
sampled, served = False, 0


def say(answer: dict) -> None:
    print(json.dumps(answer), flush=True)


def prove() -> None:
    rows = [
        {
            "pass": name,
            "asked": SELECTION.get(name, ENGINE or None),
            "default": module.default,
            "on": None if FAKE.get("lies") == name else SELECTION.get(name, module.default or ENGINE),
            "evidence": f"{name} is seen",
            "exact": module.exact,
        }
        for name, module in ({"engine": engine} if ENGINE else passes()).items()
    ]
    proof.save(proof.made("TP-0", rows))


def generate(isl: int, osl: int, seed: int = 0, temperature: float = 0.0) -> dict:
    global sampled, served
    served += osl == int(FAKE["osl"])
    if served > FAKE.get("after", 0) and FAKE.get("dies") in ON:
        sys.exit("Error: the GPU fell off")
    sampled |= temperature > 0
    tokens = [(7 * i + seed) % 1000 for i in range(osl)]
    if FAKE.get("changes") in ON or (FAKE.get("leaks") in ON and sampled):
        tokens[3] = -1
    ns = FAKE["base"] - sum(FAKE["gains"].get(name, 0) for name in ON)
    ends = [1_000_000 + i * ns for i in range(osl)]
    found = {"tokens": tokens, "ttft_ms": 1.0, "ends_ns": ends, "sizes": [1] * osl, "accept_length": 1.0}
    if osl != FAKE["osl"]:
        return found
    if "line" in FAKE:
        print(FAKE["line"], flush=True)
    found |= FAKE.get("odd", {})
    return {name: value for name, value in found.items() if value is not None}


def logits(isl: int, text: list[int], file: str, seed: int = 0) -> dict:
    """Flat but for the token, and for what the passes that are on move."""
    how = [FAKE.get("logits", {}).get(name, "exact") for name in ON or ["none"]]
    if faults := [one for one in how if one not in ("exact", "near", "far", "nan")]:
        return {"error": faults[0]}
    rows = np.zeros((len(text), 1000), np.float32)
    rows[range(len(text)), text] = 5
    for one in how:
        move = {"exact": 0, "near": 3, "far": 9, "nan": np.nan}[one]
        rows[:, 999] += np.float32(move)
    np.save(file, rows)
    return {}


def trace(folder: str, isl: int, steps: int) -> dict:
    made = Path(folder) / f"{os.getpid()}-TP-0.trace.json.gz"
    shutil.copy(FAKE["trace"], made)
    return {"file": FAKE.get("file", str(made))}


time.sleep(FAKE.get("slow", 0))
if FAKE.get("void") in ON:
    sys.exit(f"noise\nling-prof: SGLang cannot switch {FAKE['void']}.\nnoise")
if FAKE.get("never") and not ON:
    sys.exit("ling-prof: never")
prove()
FACTS = {
    "hardware": ["NVIDIA H200"],
    "driver": "580",
    "clocks": {"sm_mhz": 1980.0, "mem_mhz": 3201.0},
    "python": "3.12",
    "torch": "2.11",
    "cuda": "13.0",
    "triton": "3.6",
    "server": {},
    "versions": {} if ENGINE else {"sglang": "0.5.19", "sglang-kernel": "0.4.5", "flashinfer-python": None},
    **FAKE.get("facts", {}),
}
say(FACTS)
for line in sys.stdin:
    asked = json.loads(line)
    name = asked.pop("do")
    if name == "facts":
        say(FACTS)
    elif name == "proof":
        prove()
        say({})
    else:
        say({"generate": generate, "logits": logits, "trace": trace}[name](**asked))

"""The bundled decode engine, with all its passes, in the place of a server: what `--passes engine` measures.

As a program, `python -m optim.sglang.engine SPEC`, it serves protocol.py's commands. SPEC is JSON: {"model": a name
or folder, "arguments": {"isl", "tokens", "seed"}}.
"""

import json
import os
import sys
from itertools import accumulate
from pathlib import Path
from typing import Any

from ling_prof.errors import UserError
from optim.sglang import machine, proof
from optim.sglang.protocol import prompt, quiet, say, serve

NAME = "engine"
removes = "the server: one request is decoded by the bundled engine with all its passes"
exact = False
default = False


class EngineSession:
    """An engine with its passes on; its commands take and give what those of worker.ServerSession do."""

    def __init__(self, engine: Any, proofs: dict[str, str]):
        self.engine, self.proofs = engine, proofs

    def generate(self, isl: int, osl: int, seed: int = 0, temperature: float = 0.0) -> dict[str, Any]:
        from optim.bench import request
        from optim.engine.sample import Sampling

        run, tokens = request(self.engine, self._prompt(isl, seed), Sampling(temperature, seed), osl)
        ends = [round(1e6 * ms) for ms in accumulate(run["step_ms"], initial=run["ttft_ms"])]
        times = {"ttft_ms": run["ttft_ms"], "ends_ns": ends, "sizes": [1] * osl}
        return {"tokens": tokens, **times, "accept_length": 1.0}

    def trace(self, folder: str, isl: int, steps: int, seed: int = 0) -> dict[str, Any]:
        from optim.trace import record_open, rehearse

        path = Path(folder) / f"{os.getpid()}.trace.json.gz"
        self.engine.prefill(self._prompt(isl, seed))
        rehearse(self.engine)
        record_open(self.engine, path, steps)
        return {"file": str(path)}

    def _prompt(self, isl: int, seed: int) -> list[int]:
        """That of a server, within the vocabulary."""
        return [token % self.engine.c.vocab for token in prompt(isl, seed)]

    def proof(self) -> dict[str, Any]:
        said = "; ".join(f"{name}: {evidence}" for name, evidence in self.proofs.items())
        row: proof.Proven = {
            "pass": NAME,
            "asked": True,
            "default": default,
            "on": True,
            "exact": exact,
            "evidence": f"the bundled engine decodes, its passes on: {said}",
        }
        proof.save(proof.made("TP-0", [row]))
        return {}

    def facts(self) -> dict[str, Any]:
        here = {"hardware": None, "driver": None, **machine.gpus({}), **machine.packages()}
        return {**here, "clocks": machine.clocks(), "versions": {}, "server": {}}


def main(spec: str) -> None:
    out, asked = quiet(), json.loads(spec)
    from optim import base
    from optim.options import RunOptions
    from optim.session import open_engine

    how = asked["arguments"]
    options = RunOptions(model=asked["model"], isl=how["isl"], passes="all")
    engine = open_engine(options, how["tokens"], how["seed"])
    with base.applied(engine, options.names(engine)) as proofs:
        session = EngineSession(engine, proofs)
        session.proof()
        say(out, session.facts())
        serve(session, iter(sys.stdin.readline, ""), out)


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except UserError as error:
        sys.exit(f"ling-prof: {error}")

"""Configurations of SGLang as processes of their own (worker.py): started, asked, and ended with all their children."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ling_prof.errors import UserError
from ling_prof.units import one_line
from optim.sglang import proof, selection, weights

START_S, ANSWER_S, END_S = 900.0, 300.0, 3.0
SHOWN = 300  # characters of a log that a sentence repeats
PROGRAMS = {  # by kind of configuration; alike in what they are asked and answer
    "server": (sys.executable, "-m", "optim.sglang.worker"),
    "engine": (sys.executable, "-m", "optim.sglang.engine"),
}
NAMES = {"server": "SGLang", "engine": "the engine"}
CACHES = {  # variable -> folder below that of the caches
    "SGLANG_CACHE_DIR": "sglang",
    "SGLANG_JIT_CACHE_DIR": "jit",
    "TVM_FFI_CACHE_DIR": "tvm-ffi",
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "CUDA_CACHE_PATH": "cuda",
}


@dataclass(frozen=True)
class Setup:
    """What all configurations of an experiment share. kind: of `PROGRAMS`; model: the folder; seed: of random weights,
    None for its own.

    caches: what SGLang compiles is kept there, so that a second start is quick; folder: logs and proofs.
    """

    model: Path
    folder: Path
    caches: Path
    seed: int | None
    arguments: Mapping[str, Any]
    environment: Mapping[str, str]
    kind: str = "server"


class Worker:
    """One configuration in its process; `label` names it in files and sentences.

    Raises UserError, with the last that its log says, where the process ends or does not answer in time.
    """

    def __init__(self, setup: Setup, label: str, chosen: selection.Selection):
        self.label, self.log = label, setup.folder / f"{label}.log"
        self.name = NAMES[setup.kind]
        self.proof = setup.folder / f"proof-{label}.json"
        for old in proof.files(self.proof):
            old.unlink()
        caches = {variable: str(setup.caches / name) for variable, name in CACHES.items()}
        ours = {selection.VARIABLE: selection.text(chosen), proof.VARIABLE: str(self.proof)}
        seeded = {} if setup.seed is None else {weights.VARIABLE: str(setup.seed)}
        spec = json.dumps({"model": str(setup.model), "arguments": dict(setup.arguments)})
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*PROGRAMS[setup.kind], spec],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, **caches, **setup.environment, **seeded, **ours},
                start_new_session=True,  # one group with its children, to be ended together
            )
        self.rest = b""

    def ready(self, seconds: float = START_S) -> dict[str, Any]:
        """Waits for the start -> optim.sglang.worker's facts."""
        return self._answer("did not start", seconds)

    def ask(self, do: str, **more: Any) -> dict[str, Any]:
        """A command's answer."""
        self.send(do, **more)
        return self.answer()

    def send(self, do: str, **more: Any) -> None:
        """A command whose `answer` is taken later: others can be asked meanwhile."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps({"do": do, **more}).encode() + b"\n")
        except OSError:
            raise self._fault("has ended") from None

    def answer(self) -> dict[str, Any]:
        return self._answer("gave no answer", ANSWER_S)

    def close(self) -> None:
        """Ends the process and all its children."""
        for how in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self.process.pid, how)
                self.process.wait(END_S)
            except ProcessLookupError:
                break
            except subprocess.TimeoutExpired:
                continue
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()

    def _answer(self, fault: str, seconds: float) -> dict[str, Any]:
        answer = json.loads(self._line(fault, seconds))
        if "error" in answer:
            raise UserError(f"{self.label}: {answer['error']}")
        return answer

    def _line(self, fault: str, seconds: float) -> bytes:
        assert self.process.stdout is not None
        end, stream = time.monotonic() + seconds, self.process.stdout.fileno()
        while b"\n" not in self.rest:
            if not select.select([stream], [], [], max(0.0, end - time.monotonic()))[0]:
                raise self._fault(f"{fault} within {seconds:.0f} s")
            if not (more := os.read(stream, 1 << 16)):
                raise self._fault(fault)
            self.rest += more
        line, _, self.rest = self.rest.partition(b"\n")
        return line

    def _fault(self, what: str) -> UserError:
        """With our own sentence from the log, if there is one, or its last line that names an error."""
        lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        ours = [line for line in lines if line.startswith("ling-prof: ")]
        errors = [line for line in lines if "Error" in line]
        said = one_line((ours or errors or lines or ["it said nothing"])[-1])
        return UserError(f"{self.label}: {self.name} {what}: {said[:SHOWN].rstrip('.')}; its log is {self.log.name}.")

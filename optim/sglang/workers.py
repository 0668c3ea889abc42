"""Configurations of SGLang as processes of their own (worker.py): started, asked, and ended with all their children."""

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ling_prof.errors import UserError
from ling_prof.units import one_line
from optim.sglang import processes, proof, selection, weights
from optim.sglang.protocol import QUIT

START_S, ANSWER_S, LAST_S = 900.0, 300.0, 5.0
SHOWN = 60  # bytes of an answer that a sentence repeats
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
    """How a configuration is run. kind: of `PROGRAMS`; model: a folder, or a name that the program knows; arguments:
    the program's own; environment: variables it gets as well; seed: of random weights, None for the model's own.

    caches: what SGLang compiles is kept there, so that a second start is quick; folder: logs and proofs.
    """

    model: Path
    folder: Path
    caches: Path
    seed: int | None
    arguments: Mapping[str, Any]
    environment: Mapping[str, str]
    kind: str = "server"

    def variables(self, chosen: selection.Selection, proof_at: Path) -> dict[str, str]:
        """The environment of one with these passes, which leaves its proof there."""
        caches = {variable: str(self.caches / name) for variable, name in CACHES.items()}
        ours = {selection.VARIABLE: selection.text(chosen), proof.VARIABLE: str(proof_at)}
        seeded = {} if self.seed is None else {weights.VARIABLE: str(self.seed)}
        return {**os.environ, **caches, **self.environment, **seeded, **ours}


class Process:
    """One configuration in its process; `label` names its files.

    Raises UserError, with the last that its log says, where the process ends or does not answer in time, or in the
    shape that is asked for. One that does not is closed: a late answer would be taken for the next.
    """

    def __init__(self, setup: Setup, label: str, chosen: selection.Selection):
        self.log = setup.folder / f"{label}.log"
        self.name, self.rest = NAMES[setup.kind], b""
        self.proof = setup.folder / f"proof-{label}.json"
        self._clear()
        spec = {"kind": setup.kind, "model": str(setup.model), "arguments": dict(setup.arguments)}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*PROGRAMS[setup.kind], json.dumps(spec)],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=setup.variables(chosen, self.proof),
                start_new_session=True,  # one group with its children, to be ended together
            )
        assert self.process.stdin
        assert self.process.stdout
        self.stdin, self.stdout = self.process.stdin, self.process.stdout

    def _clear(self) -> None:
        """Deletes an earlier proof and log. Raises UserError where that fails."""
        for old in [self.log, *proof.files(self.proof)]:
            try:
                old.unlink(missing_ok=True)
            except OSError as error:
                raise UserError(f"{old} cannot be written anew ({error.strerror}); move it away, run again.") from None

    def ready(self, seconds: float = START_S, shape: Any = dict) -> Any:
        """Waits for the start -> optim.sglang.worker's facts."""
        return self._answer("did not start", seconds, shape)

    def ask(self, do: str, shape: Any = dict, **more: Any) -> Any:
        """A command's answer, of a shape as msgspec takes it."""
        self.send(do, **more)
        return self._answer("gave no answer", ANSWER_S, shape)

    def send(self, do: str, **more: Any) -> None:
        """A command whose `answer` is taken later: others can be asked meanwhile."""
        try:
            self.stdin.write(json.dumps({"do": do, **more}).encode() + b"\n")
        except (OSError, ValueError):  # ValueError: it is closed
            raise self._fault("has ended") from None

    def answer(self) -> Any:
        return self._answer("gave no answer", ANSWER_S, dict)

    def close(self) -> None:
        """Ends the process and all its children."""
        close([self])

    @property
    def is_closed(self) -> bool:
        return self.stdin.closed

    def _answer(self, fault: str, seconds: float, shape: Any) -> Any:
        line = self._line(fault, seconds)
        try:
            answer = msgspec.json.decode(line, type=dict[str, Any])
            if "error" in answer:
                raise UserError(str(answer["error"]))
            return msgspec.convert(answer, shape)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as odd:
            self.close()
            shown = one_line(line[:SHOWN].decode(errors="replace"))
            raise UserError(
                f"{self.name} gave an answer that is none ({odd}): {shown}; its log is {self.log.name}; run again."
            ) from None

    def _line(self, fault: str, seconds: float) -> bytes:
        end, stream = time.monotonic() + seconds, self.stdout.fileno()
        while b"\n" not in self.rest:
            if not select.select([stream], [], [], max(0.0, end - time.monotonic()))[0]:
                late = self._fault(f"{fault} within {seconds:.0f} s")
                self.close()
                raise late
            if not (more := os.read(stream, 1 << 16)):
                with suppress(subprocess.TimeoutExpired):
                    self.process.wait(LAST_S)  # what it says last comes after its answers have ended
                raise self._fault(fault)
            self.rest += more
        line, _, self.rest = self.rest.partition(b"\n")
        return line

    def _fault(self, what: str) -> UserError:
        said = processes.last(self.log)
        return UserError(f"{self.name} {what}: {said}; its log is {self.log.name}.")


def close(workers: Collection[Process]) -> None:
    """Ends them all at once, each with all its children; those that are closed already are left alone."""
    left = [worker for worker in workers if not worker.is_closed]
    for worker in left:
        with suppress(UserError):  # it has ended
            worker.send(QUIT)
        worker.stdin.close()
    processes.end([worker.process for worker in left], quitting=True)
    for worker in left:
        worker.stdout.close()

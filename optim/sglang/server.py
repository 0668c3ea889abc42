"""A SGLang server of our own: started with this interpreter, awaited, and ended with all its processes."""

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

from ling_prof.errors import UserError
from optim.sglang import processes
from optim.sglang.client import Refused, Server, Unfit, connect

START_S = 1800  # a first start compiles for minutes, and weights may be large
POLL_S = 0.5


@contextmanager
def launched(model: str, args: tuple[str, ...] = ()) -> Iterator[Server]:
    """A server of `model` with SGLang's own arguments, ready to serve; ended after the block.

    Raises UserError where sglang is missing, or the server ends or does not come up: with its last error and its log,
    which is kept then only.
    """
    port, kept = _free_port(), False
    with processes.stoppable():
        process, log = _started(model, port, args)
        try:
            yield _awaited(process, f"http://127.0.0.1:{port}")
        except UserError as error:
            kept = True
            raise _explained(error, process, log) from None
        finally:
            processes.end([process])
            if not kept:
                log.unlink()


def _started(model: str, port: int, args: tuple[str, ...]) -> tuple[subprocess.Popen, Path]:
    """The process and its log. Raises UserError where sglang is missing."""
    if find_spec("sglang") is None:
        remedy = 'pip install "ling-prof[sglang]", or give --url of a server that runs'
        raise UserError(f"sglang is not installed here, which --launch starts; {remedy}.")
    command = [sys.executable, "-m", "sglang.launch_server", "--model-path", model, "--host", "127.0.0.1"]
    out, log = tempfile.mkstemp(prefix="ling-prof-sglang-", suffix=".log")
    with os.fdopen(out, "wb") as file:
        process = subprocess.Popen(
            [*command, "--port", str(port), *args],
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # one group with its workers, to be ended together
        )
    return process, Path(log)


def _explained(error: UserError, process: subprocess.Popen, log: Path) -> UserError:
    """What went wrong, with the end of the server where that is why."""
    if _has_ended(process):
        said = f"SGLang ended (exit code {process.returncode}): {processes.last(log)}"
        return UserError(f"{said}; its log is {log}.")
    return UserError(f"{str(error).rstrip('.')}; the server's log is {log}.")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _awaited(process: subprocess.Popen, url: str) -> Server:
    until = time.monotonic() + START_S
    while time.monotonic() < until and process.poll() is None:
        try:
            server = connect(url)
            server.health()
            return server
        except Refused as refusal:
            if refusal.status != 503:
                raise
        except Unfit:
            raise
        except UserError:
            pass  # not there yet
        time.sleep(POLL_S)
    raise UserError(f"SGLang does not serve after {START_S} s.")


def _has_ended(process: subprocess.Popen) -> bool:
    """A server whose connection broke may take a moment to end."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(4 * POLL_S)
    return process.poll() is not None

"""A SGLang server of our own: started with this interpreter, awaited, and ended with all its processes."""

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

from ling_prof.errors import UserError
from ling_prof.units import one_line
from optim.sglang.client import Refused, Server, connect

START_S = 1800  # a first start compiles for minutes, and weights may be large
POLL_S, END_S = 0.5, 30
FAULT = re.compile(r"^(\[[^\]]*\] )?[\w.]*(Error|Exception|Interrupt)\b|error:")


@contextmanager
def launched(model: str, args: tuple[str, ...] = (), env: Mapping[str, str] = {}) -> Iterator[Server]:
    """A server of `model` with SGLang's own arguments and more environment, ready to serve; ended after the block.

    Raises UserError where sglang is missing, or the server ends or does not come up: with its last error and its log,
    which is kept.
    """
    if find_spec("sglang") is None:
        remedy = 'pip install "ling-prof[sglang]", or give --url of a server that runs'
        raise UserError(f"sglang is not installed here, which --launch starts; {remedy}.")
    port = _free_port()
    command = [sys.executable, "-m", "sglang.launch_server", "--model-path", model, "--host", "127.0.0.1"]
    log = Path(tempfile.mkstemp(prefix="ling-prof-sglang-", suffix=".log")[1])
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*command, "--port", str(port), *args],
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, **env},
            start_new_session=True,  # one group with its workers, to be ended together
        )
    try:
        yield _awaited(process, f"http://127.0.0.1:{port}", log)
    except UserError as error:
        if _has_ended(process):
            raise UserError(f"SGLang ended (exit code {process.returncode}): {_last(log)}; its log is {log}.") from None
        raise UserError(f"{str(error).rstrip('.')}; the server's log is {log}.") from None
    else:
        log.unlink()
    finally:
        _end(process)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _awaited(process: subprocess.Popen, url: str, log: Path) -> Server:
    until = time.monotonic() + START_S
    while time.monotonic() < until and process.poll() is None:
        try:
            server = connect(url)
            server.health()
            return server
        except Refused as refusal:
            if refusal.status != 503:
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


def _last(log: Path) -> str:
    """The last line of a log that names an error, or its last one."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    faults = [line for line in lines if FAULT.search(line)]
    return one_line((faults or lines or ["it said nothing"])[-1])[:300].rstrip(".")


def _end(process: subprocess.Popen) -> None:
    """Asks the whole group to end, then makes it."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, how)
        except ProcessLookupError:
            return
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            continue
        time.sleep(POLL_S)  # workers follow their parent

"""Programs started in groups of their own: what the log of one says, and how several end with their children."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ling_prof.units import one_line

QUIT_S = 5.0  # a worker serves a request to its end before it quits
TERM_S = 3.0  # asked by SIGTERM, a SGLang server drains for half a minute what nobody waits for
KILL_S = 10.0  # the driver frees a GPU's memory meanwhile
POLL_S = 0.05
SHOWN = 300  # characters of a log that a sentence repeats
FAULT = re.compile(r"^(\[[^\]]*\] )?[\w.]*(Error|Exception|Interrupt)\b|error:")


def end(processes: Collection[subprocess.Popen], quitting: bool = False) -> None:
    """Ends programs that lead groups, all at once: each stage is as long as the slowest takes.

    quitting: they were told to end, so are awaited first. A kill amid a compilation leaves the locks of its caches, so
    it comes last.
    """
    if quitting:
        _await(QUIT_S, lambda: any(process.poll() is None for process in processes))
    for how, seconds in ((signal.SIGTERM, TERM_S), (signal.SIGKILL, KILL_S)):
        for process in filter(_is_there, processes):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, how)
        _await(seconds, lambda: any(map(_is_there, processes)))
    for process in processes:
        process.wait()


def last(log: Path) -> str:
    """Our own sentence in a log, or its last line that names an error, or its last one."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("ling-prof: ")]
    faults = [line for line in lines if FAULT.search(line)]
    return one_line((ours or faults or lines or ["it said nothing"])[-1])[:SHOWN].rstrip(".")


@contextmanager
def stoppable() -> Iterator[None]:
    """A SIGTERM ends the block as Ctrl-C does, so that what it started, which gets no signal of ours, is ended too."""
    if threading.current_thread() is not threading.main_thread():  # which alone may say what signals do
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _await(seconds: float, is_left: Callable[[], bool]) -> None:
    until = time.monotonic() + seconds
    while is_left() and time.monotonic() < until:
        time.sleep(POLL_S)


def _is_there(process: subprocess.Popen) -> bool:
    """Whether any of its group is left."""
    process.poll()
    try:
        os.killpg(process.pid, 0)
    except ProcessLookupError:
        return False
    return True

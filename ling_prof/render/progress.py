"""A progress bar on stderr for what takes over a second; silent when stderr is not a terminal."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PATIENCE = 1.0


@contextmanager
def bar(what: str) -> Iterator[Callable[[float], None]]:
    """Gives a function that takes the share done, 0 to 1."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress

    began = time.monotonic()
    with Progress(console=Console(stderr=True), transient=True, disable=False, auto_refresh=False) as progress:
        task = progress.add_task(what, total=1.0, visible=False)

        def show(share: float) -> None:
            progress.update(task, completed=share, visible=time.monotonic() - began > PATIENCE, refresh=True)

        yield show

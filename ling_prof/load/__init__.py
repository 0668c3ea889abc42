"""load(path): one Trace from any supported file; the reader is picked by content, never by file name."""

from collections.abc import Callable
from os import PathLike
from pathlib import Path

from ling_prof.callable_module import make_callable
from ling_prof.errors import TraceError
from ling_prof.trace import Trace


def load(path: str | PathLike[str], partial: bool = False, progress: Callable[[float], None] = lambda _: None) -> Trace:
    """Reads a Kineto .json/.json.gz/.zip or an Nsight Systems .sqlite/.sqlite.gz/.nsys-rep.

    `partial` accepts a JSON file that was cut off inside its events; `progress` is told the share read, 0 to 1.
    Raises TraceError, a sentence that names the file, what was found and what to do.
    """
    from ling_prof.load import kineto, nsys
    from ling_prof.load.stream import head

    path = Path(path)
    try:
        _check_file(path)
        start = head(path)
    except OSError as error:
        raise TraceError(path, f"cannot be opened ({error.strerror})", "check its permissions") from None
    if start.startswith(b"SQLite format 3\0"):
        return nsys.read(path, progress)
    if nsys.is_report(start):
        return nsys.read_report(path, progress)
    if start.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"["):
        return kineto.read(path, partial, progress)
    if not start.strip():
        raise TraceError(path, "the file is empty", "re-record: the profiler wrote nothing")
    raise TraceError(
        path,
        f"neither JSON nor SQLite (it starts with {start[:12]!r})",
        "give a torch-profiler .json(.gz) or an Nsight Systems .sqlite or .nsys-rep",
    )


def _check_file(path: Path) -> None:
    if not path.exists():
        raise TraceError(path, "no such file", "check the path")
    if path.is_dir():
        raise TraceError(path, "a folder, not a trace", "name one file in it")
    if not path.is_file():
        raise TraceError(path, "a pipe or device, and traces are read twice", "write it to a file first")


make_callable(__name__, load)

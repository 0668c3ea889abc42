"""Results as JSON files: read whole and checked, written whole or not at all."""

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from ling_prof.errors import UserError


def read(path: Path, schema: str, shape: type, remedy: str) -> Any:
    """The object in a file: its key `schema` is that, its keys are those of the TypedDict `shape`.

    Raises UserError, which names the file and ends in `remedy`, for what is no JSON, or has another schema or shape;
    also for what cannot be read.
    """
    with fitting(path, remedy):
        data = _decoded(path, remedy)
        if not isinstance(data, dict) or data.get("schema") != schema:
            found = data.get("schema", "no schema") if isinstance(data, dict) else "no object"
            raise UserError(f"{path}: found {found}, not {schema}; {remedy}.")
        try:
            msgspec.convert(data, shape)
        except msgspec.ValidationError as error:
            raise UserError(f"{path}: not a whole {schema} ({error}); {remedy}.") from None
        return data


@contextmanager
def fitting(path: Path, remedy: str) -> Iterator[None]:
    """Raises UserError where what is read from `path` does not fit into memory."""
    try:
        yield
    except MemoryError:
        raise UserError(f"{path} is too large for the memory of this machine; {remedy}.") from None


def _decoded(path: Path, remedy: str) -> Any:
    if path.exists() and not path.is_file():
        raise UserError(f"{path} is no regular file; {remedy}.")
    try:
        return msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}).") from None
    except (msgspec.MsgspecError, RecursionError) as error:
        raise UserError(f"{path}: not JSON ({error}); {remedy}.") from None


def sha256(path: Path) -> str:
    """Of a file's bytes, in hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_writable(path: Path) -> None:
    """Raises UserError when `write` could not write there: ask before a long run."""
    folder = path.absolute().parent
    if not os.path.isdir(folder):
        fault = "its folder does not exist"
    elif os.path.lexists(path) and not os.path.isfile(path):
        fault = "it is no regular file"
    elif os.path.lexists(path) and not os.access(path, os.W_OK):
        fault = "it is read-only"
    elif not os.access(folder, os.W_OK):
        fault = "its folder is read-only"
    else:
        return
    raise UserError(f"{path} cannot be written: {fault}.")


def write(data: Any, path: Path, load: Callable[[Path], Any] | None = None) -> None:
    """As `write_bytes`, of data as JSON. Raises UserError also for what JSON cannot hold, such as NaN."""
    try:
        text = json.dumps(data, indent=1, allow_nan=False)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be written: what it would hold is no JSON ({error}).") from None
    write_bytes(f"{text}\n".encode(), path, load)


def write_text(text: str, path: Path) -> None:
    """As `write_bytes`, in UTF-8."""
    write_bytes(text.encode(), path)


def write_bytes(data: bytes, path: Path, load: Callable[[Path], Any] | None = None) -> None:
    """Writes the whole file or none of it. Raises UserError where that fails, or `load` refuses what it would hold."""
    check_writable(path)
    target = path.resolve()  # a link stays one
    partial = target.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_bytes(data)
        if load is not None:
            _check(partial, path, load)
        partial.replace(target)
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror}).") from None
    finally:
        with suppress(OSError):
            partial.unlink()


def _check(partial: Path, path: Path, load: Callable[[Path], Any]) -> None:
    try:
        load(partial)
    except UserError as fault:
        said = str(fault).removeprefix(f"{partial}: ").rstrip(".")
        raise UserError(f"{path} is not written, for it could not be read again: {said}.") from None

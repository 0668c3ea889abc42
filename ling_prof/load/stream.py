"""Bytes of a file, whatever it is wrapped in: plain, gzip or zip; read in bounded pieces."""

import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from ling_prof.errors import TraceError

PIECE = 8 << 20


def pieces(path: Path, progress: Callable[[float], None] = lambda _: None, partial: bool = False) -> Iterator[bytes]:
    """The unwrapped content in pieces of at most 8 MB.

    `progress` is told the share of the file read; `partial` accepts a gzip that was cut off. Raises TraceError for a
    cut or damaged wrapper.
    """
    with open(path, "rb") as file:
        for piece in _unwrapped(path, file, partial):
            progress(file.tell() / max(1, path.stat().st_size))
            yield piece


def _unwrapped(path: Path, file: BinaryIO, partial: bool) -> Iterator[bytes]:
    magic = file.read(4)
    file.seek(0)
    if magic[:2] == b"\x1f\x8b":
        yield from _gunzip(path, file, partial)
    elif magic == b"PK\x03\x04":
        yield from _unzip(path, file)
    else:
        while piece := file.read(PIECE):
            yield piece


def head(path: Path, size: int = 64) -> bytes:
    """The first unwrapped bytes, enough to tell what the content is."""
    for piece in pieces(path):
        return piece[:size]
    return b""


def _gunzip(path: Path, file: BinaryIO, partial: bool) -> Iterator[bytes]:
    """Members one after the other; bytes after the last member that are not gzip are ignored."""
    inflate, members, data = zlib.decompressobj(31), 0, b""
    while data or (data := file.read(PIECE)):
        try:
            piece = inflate.decompress(data, PIECE)
        except zlib.error as error:
            if members and not inflate.unconsumed_tail:
                return
            raise TraceError(path, f"the gzip data is damaged ({error})", "copy the file again or re-record") from None
        if piece:
            yield piece
        data = inflate.unconsumed_tail
        if inflate.eof:
            data, members = inflate.unused_data.lstrip(b"\0"), members + 1
            if data and not data.startswith(b"\x1f\x8b"[: len(data)]):
                return
            inflate = zlib.decompressobj(31)
            if not data and not (data := file.read(PIECE)):
                return
    if not partial and (not members or inflate.unconsumed_tail or not inflate.eof):
        raise TraceError(
            path,
            "the gzip data ends too early",
            "the copy or the profiler was cut off: copy the file again or re-record",
        )


def _unzip(path: Path, file: BinaryIO) -> Iterator[bytes]:
    try:
        with zipfile.ZipFile(file) as archive:
            names = [info.filename for info in archive.infolist() if not info.is_dir()]
            if len(names) != 1:
                found = f"a zip of {len(names)} files" + (f" ({', '.join(names[:3])}, ...)" if names else "")
                raise TraceError(path, found, "unpack it and name one trace")
            with archive.open(names[0]) as inner:
                while piece := inner.read(PIECE):
                    yield piece
    except (zipfile.BadZipFile, zlib.error) as error:
        raise TraceError(path, f"the zip is damaged ({error})", "copy the file again") from None

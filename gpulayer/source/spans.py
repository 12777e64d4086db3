"""Parts of files: reading them, and writing all of what is to be written."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple, Protocol

__all__ = ["Span", "SpanReader", "filled", "read_at", "write_all", "write_pieces"]

_READ_BYTES = 1 << 18
_PIECES_AT_ONCE = 1024  # IOV_MAX
_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


class Span(NamedTuple):
    """Where a blob's bytes are."""

    path: str
    offset: int  # bytes
    size: int  # bytes


class Filling(Protocol):
    """What reads into memory that is there: a file without a buffer, an answer's body."""

    def readinto(self, buffer: memoryview, /) -> int | None:
        """Fill some of `buffer`; how much, 0 or None at the end."""
        ...


class SpanReader:
    """Reads spans; holds the file of the last one open, since the next is mostly in it too. Not for two threads."""

    def __init__(self) -> None:
        self._path = ""
        self._descriptor = -1

    def __enter__(self) -> SpanReader:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor, self._path = -1, ""

    def descriptor(self, path: str) -> int:
        """The file, open for reading until the next call. Raises OSError."""
        if path != self._path:
            self.__exit__()
            self._descriptor = os.open(path, _FLAGS)
            self._path = path
        return self._descriptor

    def chunks(self, span: Span, chunk_bytes: int = _READ_BYTES) -> Iterator[bytes]:
        """The span's bytes, fewer where the file is cut short. Raises OSError."""
        at, end = span.offset, span.offset + span.size
        while at < end:
            data = read_at(self.descriptor(span.path), min(chunk_bytes, end - at), at)
            if not data:
                return
            at += len(data)
            yield data


def read_at(descriptor: int, size: int, offset: int) -> bytes:
    """Bytes of an open file, wherever it stands."""
    if hasattr(os, "pread"):
        return os.pread(descriptor, size, offset)
    os.lseek(descriptor, offset, os.SEEK_SET)  # Windows
    return os.read(descriptor, size)


def filled(stream: Filling, target: memoryview) -> bool:
    """Fill `target` with what comes next; False where the end comes first. Raises as the stream does."""
    at = 0
    while at < target.nbytes:
        count = stream.readinto(target[at:])
        if not count:
            return False
        at += count
    return True


def write_pieces(descriptor: int, pieces: list[bytes]) -> None:
    """Write many small pieces, without joining megabytes where the system can."""
    if not hasattr(os, "writev"):  # Windows
        write_all(descriptor, b"".join(pieces))
        return
    for begin in range(0, len(pieces), _PIECES_AT_ONCE):
        some = pieces[begin : begin + _PIECES_AT_ONCE]
        written = os.writev(descriptor, some)
        if written < sum(map(len, some)):  # a signal, or a disk that is getting full
            write_all(descriptor, b"".join(some)[written:])


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of it, where the file stands. Raises OSError."""
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]

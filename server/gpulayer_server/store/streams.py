"""Streams: one append-only file of records per attempt. Its length is the acknowledged offset.

3f/ATTEMPT.stream   in one of 256 folders, by a checksum of the attempt's name
a/ATTEMPT.stream    from before that: by the name's first letter, which is the same for all
"""

from __future__ import annotations

import os
import zlib
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

from gpulayer.protocol.records import (
    HEADER_BYTES,
    BoundaryScanner,
    Kind,
    RecordError,
    Splitter,
    encode_json,
    scan_file,
)

_OPEN_FILES = 256
_MARK = bytes((Kind.MARK,)) + b'{"mark": "truncated", '  # how the payload begins
_MARK_BYTES = 8 * 1024  # more than any such record has


class StreamGap(ValueError):
    """Bytes that would leave a hole in a stream: the worker has to send from an earlier offset."""


class _Open:
    """An open stream: its length on disk, and how far whole records reach."""

    def __init__(self, path: Path):
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        try:
            self.fd = os.open(path, flags, 0o600)
        except FileNotFoundError:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            self.fd = os.open(path, flags, 0o600)
        self.length = os.fstat(self.fd).st_size
        boundary, count = scan_file(self.fd) if self.length else (0, 0)
        self.scanner = BoundaryScanner(boundary, count)
        if self.length > boundary:
            self.scanner.feed(os.pread(self.fd, self.length - boundary, boundary))


class Streams:
    """The streams of a data folder. One thread uses it: the loop's."""

    def __init__(self, folder: Path):
        self.folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._has_old = any(len(name) == 1 for name in os.listdir(folder))
        self._open: OrderedDict[str, _Open] = OrderedDict()

    def length(self, attempt: str) -> int:
        """The bytes that are here: what the worker may let go of."""
        opened = self._open.get(attempt)
        if opened is not None:
            return opened.length
        try:
            return self.path(attempt).stat().st_size
        except FileNotFoundError:
            return 0

    def visible(self, attempt: str) -> int:
        """The end of the last whole record: what readers may be given."""
        if attempt not in self._open and not self.path(attempt).exists():
            return 0
        return self._get(attempt).scanner.boundary

    def prepare(self, attempt: str) -> None:
        """Have the file of a new stream open: a cell that is over at once does not wait for it. Raises OSError."""
        self._get(attempt)

    def append(self, attempt: str, offset: int, data: bytes) -> int:
        """Add bytes that begin at `offset`; those that are here already are passed over. Returns the new length.

        Raises `StreamGap` when bytes before `offset` are missing, OSError when the disk is full (nothing is added).
        """
        stream = self._get(attempt)
        if offset > stream.length:
            raise StreamGap(f"stream {attempt}: bytes {stream.length} to {offset} are missing")
        fresh = memoryview(data)[stream.length - offset :]
        if not fresh:
            return stream.length
        written = 0
        try:
            while written < len(fresh):
                written += os.pwrite(stream.fd, fresh[written:], stream.length + written)
        except OSError:
            os.ftruncate(stream.fd, stream.length)
            raise
        stream.length += len(fresh)
        stream.scanner.feed(fresh)
        return stream.length

    def read(self, attempt: str, offset: int, limit: int) -> bytes:
        """At most `limit` bytes of whole records from `offset` on."""
        stream = self._get(attempt)
        limit = min(limit, stream.scanner.boundary - offset)
        return os.pread(stream.fd, limit, offset) if limit > 0 else b""

    def offset_of(self, attempt: str, seq: int) -> int:
        """Where record number `seq` (from 0) begins; the visible end if there are fewer."""
        if self.length(attempt) == 0:
            return 0
        stream = self._get(attempt)
        boundary, _ = scan_file(stream.fd, limit=seq)
        return boundary

    def truncate_with_mark(self, attempt: str, why: str) -> None:
        """End a given-up stream after its last whole record, with the mark 'truncated'; done again, nothing changes."""
        if self._is_marked(attempt):
            return
        stream = self._get(attempt)
        boundary = stream.scanner.boundary
        os.ftruncate(stream.fd, boundary)
        stream.length = boundary
        stream.scanner = BoundaryScanner(boundary, stream.scanner.count)
        self.append(attempt, boundary, encode_json(Kind.MARK, {"mark": "truncated", "why": why}))

    def _is_marked(self, attempt: str) -> bool:
        """Whether the file ends with a mark 'truncated': looked at from its end, however long it is."""
        try:
            with self.path(attempt).open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - _MARK_BYTES))
                tail = file.read()
        except FileNotFoundError:
            return False
        start = tail.rfind(_MARK) - HEADER_BYTES
        if start < 0:
            return False
        try:
            return len(Splitter().feed(tail[start:])) == 1
        except RecordError:
            return False

    def close(self) -> None:
        """Close all files."""
        while self._open:
            os.close(self._open.popitem()[1].fd)

    def drop(self, attempt: str) -> None:
        """Remove a stream that nobody will ask for any more; one that is not there is none. Raises OSError."""
        opened = self._open.pop(attempt, None)
        if opened is not None:
            os.close(opened.fd)
        self.path(attempt).unlink(missing_ok=True)

    def path(self, attempt: str) -> Path:
        """The file of a stream, which need not be there yet."""
        if self._has_old:
            old = self.folder / attempt[:1] / f"{attempt}.stream"
            if old.exists():
                return old
        return self.folder / f"{zlib.crc32(attempt.encode()) & 0xFF:02x}" / f"{attempt}.stream"

    def _get(self, attempt: str) -> _Open:
        stream = self._open.get(attempt)
        if stream is None:
            while len(self._open) >= _OPEN_FILES:
                os.close(self._open.popitem(last=False)[1].fd)
            stream = self._open[attempt] = _Open(self.path(attempt))
        else:
            self._open.move_to_end(attempt)
        return stream


def stream_files(folder: Path) -> Iterator[tuple[str, str]]:
    """Attempts and the paths of their files, of all streams in a folder; for any thread."""
    with os.scandir(folder) as folders:
        inner = [entry.path for entry in folders if entry.is_dir()]
    for each in inner:
        with os.scandir(each) as files:
            for entry in files:
                if entry.name.endswith(".stream"):
                    yield entry.name.removesuffix(".stream"), entry.path

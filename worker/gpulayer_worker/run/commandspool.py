"""A command's stream: records that are composed of what it wrote to its two files, whenever somebody reads them.

Nothing is written twice. An index beside the files says which bytes of which file each record holds; an entry is
appended before its record is announced, so every agent composes the same stream. A program that writes nothing has no
index. What is acknowledged is punched out of the files where the file system can.
"""

from __future__ import annotations

import bisect
import contextlib
import errno
import os
import struct
from pathlib import Path

from gpulayer.protocol.records import HEADER_BYTES, Kind, RecordError, encode
from gpulayer_worker.run.outcome import last_line
from gpulayer_worker.run.punch import first_data, punch

NAMES: dict[int, str] = {Kind.STDOUT: "out", Kind.STDERR: "err"}
_OTHER: dict[int, int] = {Kind.STDOUT: Kind.STDERR, Kind.STDERR: Kind.STDOUT}
_BOTH = tuple((int(kind), int(other)) for kind, other in _OTHER.items())
INDEX = "index"

#: So that four whole records make up the bytes of one frame.
PIECE_BYTES = 64 * 1024 - HEADER_BYTES - 1

#: Offset in the stream, kind, bytes, offset in its file, and how far the other file's bytes are in the index.
_ENTRY = struct.Struct("<QIIQQ")
_PUNCH_BYTES = 1 << 20  # less than this is not worth a call
_TAIL_BYTES = 16 * 1024  # the end of each file stays, for the words of a failure
_CACHED = 4


class CommandSpool:
    """The stream of one attempt, in the attempt's folder. Owned by one run, on one thread."""

    def __init__(self, folder: Path, *, portable: bool = False, found: bool = False):
        """`found`: an agent before us may have left an index. Raises OSError."""
        self._folder = os.fspath(folder)
        self._portable = portable
        self._fds: dict[str, int] = {}
        self._starts: list[int] = []  # where records start that were not released
        self._entries: list[tuple[int, int, int]] = []  # of those: offset in the file, bytes, kind
        self._seen = dict.fromkeys(NAMES, 0)  # bytes of each file that are in the index
        self._punched = dict.fromkeys(NAMES, 0)
        self._index_released = 0
        self._cache: dict[int, bytes] = {}  # records that were read last, by their start
        self.end = 0
        if found:
            self._load()

    # ------------------------------------------------------------ as it grows

    def start(self) -> int:
        """The first offset that can still be read, in bytes."""
        return self._starts[0] if self._starts else self.end

    def fresh_bytes(self) -> int:
        """How many bytes the program has written that are not in the index."""
        return sum(max(0, self._size(kind) - seen) for kind, seen in self._seen.items())

    def look(self, *, last: bool = False) -> bool:
        """Take what the program has written into the index; True when there is more than before. Raises OSError.

        `last`: nothing writes any more. Then the index need not say so: whoever looks finds the same.
        """
        entries: list[tuple[int, int, int, int, int]] = []
        end, reached = self.end, dict(self._seen)
        for kind, other in _BOTH:
            size = self._size(kind)
            if size < reached[kind]:  # it was opened anew by name, and cut short: `echo x > /dev/stderr` does that
                reached[kind] = 0
            while reached[kind] < size:
                length = min(PIECE_BYTES, size - reached[kind])
                entries.append((end, kind, length, reached[kind], reached[other]))
                end += HEADER_BYTES + 1 + length
                reached[kind] += length
        if entries and not last:
            self._append(b"".join([_ENTRY.pack(*entry) for entry in entries]))
        for entry in entries:
            self._add(*entry)
        self._seen = reached
        return bool(entries)

    def _add(self, start: int, kind: int, length: int, at: int, other_seen: int) -> None:
        self._starts.append(start)
        self._entries.append((at, length, kind))
        self._seen = {kind: at + length, _OTHER[kind]: other_seen}
        self.end = start + HEADER_BYTES + 1 + length

    def _append(self, data: bytes) -> None:
        fd = self._open(INDEX, os.O_RDWR | os.O_APPEND | os.O_CREAT)
        written = os.write(fd, data)
        if written != len(data):
            os.ftruncate(fd, os.fstat(fd).st_size - written)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), os.path.join(self._folder, INDEX))

    def _load(self) -> None:
        try:
            fd = self._open(INDEX, os.O_RDWR | os.O_APPEND)
        except FileNotFoundError:
            return
        size = os.fstat(fd).st_size
        whole = size - size % _ENTRY.size
        if whole != size:  # an agent was killed over it
            os.ftruncate(fd, whole)
        at = first_data(fd, whole)
        at -= at % _ENTRY.size
        for entry in _ENTRY.iter_unpack(os.pread(fd, whole - at, at)):
            if entry[2]:  # else it was punched out
                self._add(*entry)
        self._index_released = whole - len(self._entries) * _ENTRY.size

    # ------------------------------------------------------------ as it is read

    def read(self, offset: int, size: int) -> bytes:
        """At most `size` bytes of the stream from `offset` on. Raises RecordError for what was released."""
        if offset < self.start():
            raise RecordError(f"the stream in {self._folder} starts at byte {self.start()}; byte {offset} was released")
        pieces: list[bytes] = []
        stop = min(offset + size, self.end)
        number = bisect.bisect_right(self._starts, offset) - 1
        while offset < stop:
            start = self._starts[number]
            piece = self._record(number)[offset - start : stop - start]
            pieces.append(piece)
            offset += len(piece)
            number += 1
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _record(self, number: int) -> bytes:
        start = self._starts[number]
        record = self._cache.get(start)
        if record is None:
            at, length, kind = self._entries[number]
            # A file that was cut short, or removed, has lost them: the stream's length is announced, so something
            # stands there.
            data = b""
            with contextlib.suppress(FileNotFoundError):
                data = os.pread(self._open(NAMES[kind], os.O_RDWR), length, at)
            record = encode(kind, data.ljust(length, b"\n"))
            while len(self._cache) >= _CACHED:
                del self._cache[next(iter(self._cache))]
            self._cache[start] = record
        return record

    def release(self, offset: int) -> None:
        """What lies before `offset` is wanted no more. Raises OSError."""
        count = bisect.bisect_right(self._starts, offset)
        if count and not (count == len(self._starts) and offset >= self.end):
            count -= 1  # the record that `offset` is in
        if not count:
            return
        for at, length, kind in self._entries[:count]:
            self._release_file(kind, at + length)
        del self._starts[:count], self._entries[:count]
        self._index_released += count * _ENTRY.size
        if self._index_released >= _PUNCH_BYTES and not self._portable:
            # never the last one: from it a new agent knows how far all goes
            punch(self._open(INDEX, os.O_RDWR | os.O_APPEND), 0, self._index_released - _ENTRY.size)

    def _release_file(self, kind: int, end: int) -> None:
        end -= _TAIL_BYTES
        if end - self._punched[kind] >= _PUNCH_BYTES and not self._portable:
            with contextlib.suppress(FileNotFoundError):  # the program removed it
                punch(self._open(NAMES[kind], os.O_RDWR), self._punched[kind], end)
            self._punched[kind] = end

    def tail(self) -> str:
        """The last that the program wrote to stderr, or to stdout where it wrote nothing there."""
        for kind, _ in reversed(_BOTH):
            size = self._seen[kind]
            if size:
                length = min(size, _TAIL_BYTES)
                data = os.pread(self._open(NAMES[kind], os.O_RDWR), length, size - length)
                return data.decode(errors="replace")
        return ""

    def last_line(self) -> str:
        """The last line that the program has written up to now, to whichever file it wrote last; '' for none."""
        newest, text = -1, ""
        for kind, _ in _BOTH:
            size = self._size(kind)
            if size:
                fd = self._open(NAMES[kind], os.O_RDWR)
                length, written = min(size, _TAIL_BYTES), os.fstat(fd).st_mtime_ns
                if written > newest:
                    newest, text = written, os.pread(fd, length, size - length).decode(errors="replace")
        return last_line(text)

    # ------------------------------------------------------------ files

    def _size(self, kind: int) -> int:
        name = NAMES[kind]
        try:
            if name in self._fds:
                return os.fstat(self._fds[name]).st_size
            return os.stat(f"{self._folder}/{name}").st_size
        except FileNotFoundError:  # it was not started yet
            return 0

    def _open(self, name: str, flags: int) -> int:
        fd = self._fds.get(name)
        if fd is None:
            fd = self._fds[name] = os.open(f"{self._folder}/{name}", flags | os.O_CLOEXEC, 0o600)
        return fd

    def close(self) -> None:
        """Close its files. It may still be read: they are opened again."""
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()

"""The spool: a folder of files in which a program's output waits until the other side has it.

Kernels whose environment has nothing of ours load this file by its path, with ``records.py`` beside it: it needs the
standard library of Python 3.9 or newer.
"""

from __future__ import annotations

import bisect
import errno
import json
import os
import time
from typing import TYPE_CHECKING, Any

from .records import RecordError, decode_json, frame, last_good, scan_file  # relative: see above

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .records import Buffer

_CHECK_BYTES = 1 << 20  # the disk's free space is looked at after so many bytes
_RECHECK_S = 0.25
_FULL = (errno.ENOSPC, errno.EDQUOT)
_SUFFIX = ".log"
_BLOCKED = "blocked"


def _segment_path(folder: str, start: int) -> str:
    return os.path.join(folder, f"{start:016d}{_SUFFIX}")


def _segment_starts(folder: str) -> list[int]:
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    stems = (name[: -len(_SUFFIX)] for name in names if name.endswith(_SUFFIX))
    return sorted(int(stem) for stem in stems if stem.isdigit())


def _make_folder(folder: str) -> bool:
    """Makes a folder, and its parents if need be; returns whether it is new."""
    try:
        os.mkdir(folder, 0o700)
    except FileNotFoundError:
        os.makedirs(folder, 0o700)
    except FileExistsError:
        return False
    return True


class SpoolWriter:
    """Appends records to a folder of segments, each named by the offset that it starts at.

    One writer per folder, and one thread in it at a time. A record never spans segments. When the disk has less free
    space than the reserve, or is full, the writer waits until there is space again, and a file ``blocked`` in the
    folder says so meanwhile.
    """

    def __init__(self, folder: str | os.PathLike[str], segment_bytes: int = 8 << 20, reserve_bytes: int = 0) -> None:
        """Opens `folder`, makes it if needed, and goes on after the last whole record that it holds.

        A segment that has `segment_bytes` is followed by a new one; the writer waits while the file system has less
        than `reserve_bytes` free. Raises OSError where the folder cannot be made or written, RecordError where
        its newest segment holds something else than records.
        """
        self._folder = os.fspath(folder)
        self._segment_bytes = segment_bytes
        self._reserve_bytes = reserve_bytes
        self._fd = -1
        self._start = self._size = self._target = 0  # of the segment: its offset, its whole records, where it will end
        self._unchecked_bytes = 0
        self._full = False
        self._shows_blocked = False
        if not self._open_furnished():
            starts = [] if _make_folder(self._folder) else _segment_starts(self._folder)
            self._open(starts[-1] if starts else 0)
            if starts:
                self._size = self._target = last_good(self._fd)[0]
                os.ftruncate(self._fd, self._size)

    @property
    def offset(self) -> int:
        """The offset just after the last record, in bytes from the start of the stream."""
        return self._start + self._size

    def append(self, payload_parts: Sequence[Buffer]) -> None:
        """Writes one record, whose payload (the byte of its kind, then its body) is given in pieces.

        Returns when all of it is written. An exception that a signal handler raises meanwhile leaves this method
        only after the record is whole. Raises RecordError when it is too large, OSError when the disk fails.
        """
        if self._size != self._target:
            self._settle()
        record = frame(payload_parts)
        if self._size >= self._segment_bytes:
            self._rotate()
        self._target = self._size + len(record)
        raised = self._write(record)
        self._size = self._target
        if raised is not None:
            raise raised

    def append_json(self, kind: int, value: dict[str, Any]) -> None:
        """Writes one REPLY or MARK record (`kind`) that holds `value`; see `append`."""
        self.append((bytes((kind,)), json.dumps(value).encode()))

    def close(self) -> None:
        """Closes the segment; the writer cannot be used after that. Harmless when done twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open_furnished(self) -> bool:
        """Opens a first segment that was made and left empty: in such a folder there is nothing else to look for."""
        try:
            fd = os.open(_segment_path(self._folder, 0), os.O_RDWR | os.O_APPEND)
        except FileNotFoundError:
            return False
        self._fd = fd
        try:
            if not os.fstat(fd).st_size:
                self._await_space()
                return True
        except BaseException:
            self.close()
            raise
        self.close()
        return False

    def _open(self, start: int) -> None:
        self._await_space()
        self._fd = os.open(_segment_path(self._folder, start), os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        self._start = start
        self._size = self._target = 0

    def _rotate(self) -> None:
        full = self._fd
        self._open(self.offset)
        os.close(full)

    def _settle(self) -> None:
        """After an exception between two steps of `append`: keeps the record if it is whole, else removes it."""
        if os.fstat(self._fd).st_size < self._target:
            os.ftruncate(self._fd, self._size)
            self._target = self._size
        self._size = self._target

    def _write(self, record: bytes) -> BaseException | None:
        """Writes `record`, and returns what a signal handler raised meanwhile, if one did."""
        raised: BaseException | None = None
        while True:
            try:
                self._try_write(record)
                return raised
            except BaseException as error:
                self._full = isinstance(error, OSError) and error.errno in _FULL
                if not self._full and isinstance(error, OSError) and error.errno is not None:
                    self._settle()
                    raise
                if not self._full:
                    raised = error

    def _try_write(self, record: bytes) -> None:
        if self._full:
            os.ftruncate(self._fd, self._size)
            self._show_blocked(_free_bytes(self._folder))
            time.sleep(_RECHECK_S)  # nothing tells when a file system has space again
        if self._full or self._unchecked_bytes >= _CHECK_BYTES:
            self._await_space()
        done = os.fstat(self._fd).st_size - self._size  # of this record: what a try before this one wrote
        while done < len(record):
            done += os.write(self._fd, memoryview(record)[done:])
        self._full = False
        self._unchecked_bytes += len(record)
        self._hide_blocked()

    def _await_space(self) -> None:
        while (free := _free_bytes(self._folder)) < self._reserve_bytes:
            self._show_blocked(free)
            time.sleep(_RECHECK_S)
        self._unchecked_bytes = 0
        if not self._full:
            self._hide_blocked()

    def _show_blocked(self, free_bytes: int) -> None:
        content = json.dumps({"free_bytes": free_bytes, "reserve_bytes": self._reserve_bytes})
        path = os.path.join(self._folder, _BLOCKED)
        self._shows_blocked = True
        try:
            fd = os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            try:
                os.write(fd, content.encode())
            finally:
                os.close(fd)
                os.replace(f"{path}.new", path)
        except OSError as error:
            if error.errno not in _FULL:  # on a full disk there may be no room for what says so
                raise

    def _hide_blocked(self) -> None:
        if not self._shows_blocked:
            return
        try:
            os.unlink(os.path.join(self._folder, _BLOCKED))
        except FileNotFoundError:
            pass  # there was no room to make it
        self._shows_blocked = False


def _free_bytes(folder: str) -> int:
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


class SpoolReader:
    """Reads a folder that a `SpoolWriter`, often of another process, appends to. Owned by one reader, one thread.

    Offers whole records only: what it has shown once is never taken back.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """Reads `folder`, which need not exist yet."""
        self._folder = os.fspath(folder)
        self._starts: list[int] = []  # of the segments that were seen and not released
        self._end = 0
        self._newest_fd = -1
        self._older: tuple[int, int] = (-1, -1)  # the segment that was read last: its start and its descriptor

    def start(self) -> int:
        """The first offset that can still be read, in bytes."""
        if not self._starts:
            self._find_first()
        return self._starts[0] if self._starts else 0

    def end(self) -> int:
        """The offset just after the last whole record, in bytes; looks at the files."""
        if not self._starts and not self._find_first():
            return 0
        while True:
            newest = self._starts[-1]
            self._end = newest + scan_file(self._newest_fd, self._end - newest)[0]
            if self._end == newest or not os.path.exists(_segment_path(self._folder, self._end)):
                return self._end
            self._open_newest(self._end)

    def read(self, offset: int, limit: int) -> bytes:
        """At most `limit` bytes from `offset` on, of whole records only; empty at the end.

        Raises RecordError when `offset` was released, or a segment has become shorter.
        """
        if offset < self.start():
            raise RecordError(f"the spool {self._folder} starts at byte {self.start()}; byte {offset} was released")
        end = self._end if offset < self._end else self.end()
        pieces: list[bytes] = []
        stop = min(offset + limit, end)
        while offset < stop:
            index = bisect.bisect_right(self._starts, offset) - 1
            newest = index == len(self._starts) - 1
            segment_stop = stop if newest else min(stop, self._starts[index + 1])
            fd = self._newest_fd if newest else self._open_older(self._starts[index])
            piece = os.pread(fd, segment_stop - offset, offset - self._starts[index])
            if not piece:
                raise RecordError(f"the spool {self._folder} has lost bytes after {offset}")
            pieces.append(piece)
            offset += len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def release(self, offset: int) -> None:
        """Removes the segments that lie wholly below `offset`, but never the newest."""
        self.end()
        while len(self._starts) > 1 and self._starts[1] <= offset:
            os.unlink(_segment_path(self._folder, self._starts.pop(0)))
        if 0 <= self._older[0] < self.start():  # an open file would keep its space on the disk
            os.close(self._older[1])
            self._older = (-1, -1)

    def blocked(self) -> dict[str, Any] | None:
        """``{"free_bytes": …, "reserve_bytes": …}`` while the writer waits for space on the disk, else None.

        The object is empty when the disk had no room even for that.
        """
        try:
            with open(os.path.join(self._folder, _BLOCKED), "rb") as file:
                text = file.read()
        except FileNotFoundError:
            return None
        return decode_json(text) if text.endswith(b"}") else {}

    def close(self) -> None:
        """Closes its files. Harmless when done twice."""
        for fd in (self._newest_fd, self._older[1]):
            if fd >= 0:
                os.close(fd)
        self._newest_fd, self._older = -1, (-1, -1)

    def _find_first(self) -> bool:
        starts = _segment_starts(self._folder)
        if starts:
            self._end = starts[0]
            self._open_newest(starts[0])
        return bool(starts)

    def _open_newest(self, start: int) -> None:
        fd = os.open(_segment_path(self._folder, start), os.O_RDONLY)
        if self._newest_fd >= 0:
            os.close(self._newest_fd)
        self._newest_fd = fd
        self._starts.append(start)

    def _open_older(self, start: int) -> int:
        if self._older[0] != start:
            fd = os.open(_segment_path(self._folder, start), os.O_RDONLY)
            if self._older[1] >= 0:
                os.close(self._older[1])
            self._older = (start, fd)
        return self._older[1]

"""What calls write: Python's streams, and the files behind descriptors 1 and 2, as records of the call that runs."""

from __future__ import annotations

import io
import os
import struct
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

INTERVAL_NS = 20_000_000
LIMIT_BYTES = 256 * 1024  # held back at most, and in one record
LEADING_BYTES = 8 * 1024  # so much is worth a write of its own, even without a newline
PUNCH_BYTES = 32 << 20  # after so much that was read of a file of descriptor 1 or 2 its space is given back
STDOUT, STDERR, ITEM = 7, 8, 9  # kinds of records

_CALL = struct.Struct("<QI")


class Sink:
    """Text that was written and is not in the spool yet, of one call at a time. Thread-safe.

    What is written before the first call belongs to that; what threads write between calls, to the one before.
    """

    def __init__(self, open_spool: Callable[[], Any], wake: Callable[[], None]) -> None:
        """`open_spool` makes the writer when there is something to write, `wake` starts the time until a flush."""
        self.lock = threading.RLock()
        self.pending = False  # something is held back
        self._call = ("", 0)  # map and index
        self._open_spool = open_spool
        self._wake = wake
        self._writer: Any = None
        self._items: list[tuple[int, bytes]] = []
        self._bytes = 0
        self._flushed_ns = 0

    def begin(self, map_name: str, index: int) -> None:
        """From now on what is written is this call's."""
        if self.pending and self._call[0]:
            self.flush()
        self._call = (map_name, index)

    def write(self, kind: int, data: bytes) -> None:
        """Takes what was written to stdout or stderr (`kind`)."""
        with self.lock:
            self._items.append((kind, data))
            self._bytes += len(data)
            self.pending = True
            if self._bytes >= LIMIT_BYTES and not self._call[0]:
                self._items, self._bytes = [], 0  # nobody's, and nobody's call comes
            elif self._bytes >= LIMIT_BYTES or (
                (len(data) >= LEADING_BYTES or b"\n" in data) and time.monotonic_ns() - self._flushed_ns >= INTERVAL_NS
            ):
                self.flush()
            else:
                self._wake()

    def item(self, number: int, data: bytes) -> None:
        """Writes an item of a generator, after the text before it."""
        with self.lock:
            self.flush()
            self._append(ITEM, data, number)

    def flush(self) -> None:
        """Writes what is held back. Raises OSError when the disk fails."""
        with self.lock:
            if not self._call[0]:
                return
            while self._items:
                kind, count = self._items[0][0], 1
                while count < len(self._items) and self._items[count][0] == kind:
                    count += 1
                data = b"".join(data for _, data in self._items[:count])
                try:
                    self._write_out(kind, data)
                finally:  # an exception leaves the spool only once a record is whole
                    del self._items[:count]
                self._flushed_ns = time.monotonic_ns()
            self._bytes = 0
            self.pending = False

    def _write_out(self, kind: int, data: bytes) -> None:
        for start in range(0, len(data), LIMIT_BYTES):
            self._append(kind, data[start : start + LIMIT_BYTES], 0)

    def _append(self, kind: int, data: bytes, number: int) -> None:
        if self._writer is None:
            self._writer = self._open_spool()
        map_name, index = self._call
        name = map_name.encode()
        self._writer.append((bytes((kind, len(name))), name, _CALL.pack(index, number), data))


class _Raw(io.RawIOBase):
    """The binary end of a stream: into the sink; in a forked child, to the descriptor, whose file the parent reads."""

    def __init__(self, sink: Sink, kind: int, fd: int) -> None:
        self._sink = sink
        self._kind = kind
        self._fd = fd
        self._pid = os.getpid()

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._fd

    def flush(self) -> None:
        super().flush()
        if self._sink.pending and os.getpid() == self._pid:
            self._sink.flush()

    def write(self, data: Any) -> int:
        taken = bytes(data)
        if os.getpid() == self._pid:
            self._sink.write(self._kind, taken)
            return len(taken)
        left = memoryview(taken)
        while left:
            left = left[os.write(self._fd, left) :]
        return len(taken)


class Streams:
    """`sys.stdout` and `sys.stderr`. Used by the main thread."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.out = self.err = self._made(STDOUT, 1)
        self.install()

    def install(self) -> None:
        """Takes both streams, whatever a call has made of them."""
        if sys.stdout is not self.out or self.out.closed:
            self.out = sys.stdout = sys.__stdout__ = self._made(STDOUT, 1)
        if sys.stderr is not self.err or self.err.closed:
            self.err = sys.stderr = sys.__stderr__ = self._made(STDERR, 2)

    def restore(self) -> None:
        """After a call: `install`, where it is needed."""
        if sys.stdout is not self.out or sys.stderr is not self.err or self.out.closed or self.err.closed:
            self.install()

    def _made(self, kind: int, fd: int) -> io.TextIOWrapper:
        raw: Any = _Raw(self._sink, kind, fd)
        return io.TextIOWrapper(raw, "utf-8", errors="backslashreplace", newline="", write_through=True)


class Files:
    """The files to which descriptors 1 and 2 append: what C libraries and other programs write. Under one lock."""

    def __init__(self, sink: Sink, stdout: str, stderr: str) -> None:
        """Reads from the files' ends on. Raises OSError where one can't be read; '' stands for none."""
        self._sink = sink
        self._lock = threading.Lock()
        self._files: list[list[int]] = []  # kind, descriptor, how far it is read, and how far given back
        for kind, path in ((STDOUT, stdout), (STDERR, stderr)):
            if path:
                fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                size = os.fstat(fd).st_size
                self._files.append([kind, fd, size, size])
        self._c: Any = None

    def take(self) -> None:
        """Gives the sink what was written since. Raises OSError."""
        with self._lock:
            for place in self._files:
                size = os.lseek(place[1], 0, os.SEEK_END)
                while place[2] < size:
                    data = os.pread(place[1], min(LIMIT_BYTES, size - place[2]), place[2])
                    if not data:
                        break
                    place[2] += len(data)
                    self._sink.write(place[0], data)
                if place[2] - place[3] >= PUNCH_BYTES:
                    self._give_back(place)

    def flush_c(self) -> None:
        """Has the C library write what it holds back: to a file it does so only at the end."""
        if self._c is None:
            ctypes = sys.modules.get("ctypes")
            if ctypes is None:
                return  # whatever writes by C's streams has most likely come with it
            self._c = ctypes.CDLL(None)
        self._c.fflush(None)

    def _give_back(self, place: list[int]) -> None:
        """The space of what was read; not by cutting the file, since others may be writing."""
        if sys.platform == "linux":
            import ctypes  # only where there is very much

            start, size = ctypes.c_int64(place[3]), ctypes.c_int64(place[2] - place[3])
            ctypes.CDLL(None).fallocate64(place[1], 3, start, size)  # KEEP_SIZE and PUNCH_HOLE; where it can't, no harm
        place[3] = place[2]


class Timer(threading.Thread):
    """Calls `tick` every 10 ms while something goes on, and every half second while a call runs in silence."""

    QUIET_TICKS = 20

    def __init__(self, tick: Callable[[], bool], runs: Callable[[], bool]) -> None:
        """`tick` returns whether anything went on since the last one, `runs` whether a call runs."""
        super().__init__(name="gpulayer timer", daemon=True)
        self.asleep = False
        self._tick = tick
        self._runs = runs
        self._woken = threading.Lock()
        self._woken.acquire()

    def wake(self) -> None:
        """Something begins. Cheap where it is awake; `asleep` may be looked at before."""
        if self.asleep:
            try:
                self._woken.release()
            except RuntimeError:
                pass  # somebody was faster

    def run(self) -> None:
        """Ticks until the process ends."""
        quiet = 0
        while True:
            while quiet < self.QUIET_TICKS:
                time.sleep(0.01)  # nothing to wait for: the interval is the point
                quiet = 0 if self._safely() else quiet + 1
            self.asleep = True
            # Once more: something may have begun when nobody saw yet that this thread had to be woken.
            if self._safely() or self._woken.acquire(timeout=0.5 if self._runs() else -1):
                quiet = 0
            self.asleep = False

    def _safely(self) -> bool:
        try:
            return self._tick()
        except (OSError, ValueError) as error:
            os.write(2, f"gpulayer runner: output could not be written: {error}\n".encode(errors="replace"))
            return False

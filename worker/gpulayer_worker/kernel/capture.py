"""What libraries and programs write to the descriptors 1 and 2, past Python's streams."""

from __future__ import annotations

import codecs
import os
import select
import sys
import threading
from collections.abc import Callable
from typing import Any

READ_BYTES = 64 * 1024
DRAIN_READS = 64  # at most at a cell's end: a program may go on writing for ever
PIPE_BYTES = 1 << 20  # so that a library which holds the interpreter can print this much


class Capture(threading.Thread):
    """Reads the pipes that stand behind descriptors 1 and 2 into the kernel's streams."""

    def __init__(self, report: Callable[[str], None]) -> None:
        super().__init__(name="gpulayer capture", daemon=True)
        self._report = report
        self._lock = threading.Lock()  # one reader at a time: so what it has read, it has also written
        self._sources: dict[int, tuple[Any, Any]] = {}

    def watch(self, stream: Any, fd: int) -> None:
        """Has `stream` take what can be read from the pipe `fd`. Before the thread is started only."""
        os.set_blocking(fd, False)
        if sys.platform == "linux":
            import fcntl

            try:
                fcntl.fcntl(fd, 1031, PIPE_BYTES)  # F_SETPIPE_SZ, which fcntl names from Python 3.10 on
            except OSError:
                pass  # above the user's limit for pipes: it keeps its usual 64 KiB
        self._sources[fd] = (stream, codecs.getincrementaldecoder("utf-8")("replace"))

    def drain(self) -> None:
        """Takes what was written until now, in the calling thread. Raises OSError when the disk fails."""
        with self._lock:
            for fd in list(self._sources):
                for _ in range(DRAIN_READS):
                    if not self._read(fd):
                        break

    def run(self) -> None:
        """Reads until the pipes are closed."""
        poll = select.poll()
        for fd in self._sources:
            poll.register(fd, select.POLLIN)
        while self._sources:
            for fd, _ in poll.poll():
                try:
                    with self._lock:
                        self._read(fd)
                except (OSError, ValueError) as error:
                    self._report(f"output of the descriptors 1 and 2 could not be written: {error}")
                if fd not in self._sources:
                    poll.unregister(fd)

    def _read(self, fd: int) -> bool:
        stream, decoder = self._sources[fd]
        try:
            data = os.read(fd, READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            del self._sources[fd]
            return False
        text = decoder.decode(data)
        if text:
            stream.write(text)
        return True

"""The kernel's stdout and stderr: text is on the disk at once, or after 20 ms, or every 256 KiB, in order."""

from __future__ import annotations

import itertools
import operator
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from ipykernel.iostream import OutStream

INTERVAL_S = 0.02
LIMIT_CHARS = 256 * 1024  # held back at most, and carried by one message
WIDE_CHARS = LIMIT_CHARS // 4  # the same for text that is not ASCII: 4 bytes a character at most
CONTROL_THREAD = "Control"  # its name in ipykernel 6 and 7
LEADING_CHARS = 8 * 1024  # so much is worth a write of its own, even without a newline


def pieces(text: str) -> list[str]:
    """`text` in pieces of at most 256 KiB of UTF-8, which it is made encodable in."""
    if text.isascii():
        step = LIMIT_CHARS
    else:
        step = WIDE_CHARS
        try:
            text.encode()
        except UnicodeEncodeError:  # lone surrogates
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return [text[start : start + step] for start in range(0, len(text), step)]


class Timer(threading.Thread):
    """Calls `flush` an interval after it was woken: a thread of its own, cheaper to wake than ipykernel's."""

    def __init__(self, flush: Callable[[], None]) -> None:
        super().__init__(name="gpulayer flush", daemon=True)
        self._flush = flush
        self._woken = threading.Lock()
        self._woken.acquire()

    def wake(self) -> None:
        """Starts the interval, if none has been started since the last one ended."""
        try:
            self._woken.release()
        except RuntimeError:
            pass  # it is released: woken already

    def run(self) -> None:
        """Waits and flushes until the process ends."""
        while True:
            self._woken.acquire()
            time.sleep(INTERVAL_S)  # nothing to wait for: the interval is the point
            try:
                self._flush()
            except (OSError, ValueError) as error:
                report(f"output could not be written: {error}")


def report(line: str) -> None:
    """Writes a line to the kernel's own log, the stderr that it was started with."""
    fd = getattr(sys.stderr, "_original_stdstream_copy", 2)
    os.write(fd, f"gpulayer kernel: {line}\n".encode(errors="replace"))


class Sink:
    """The text that both streams have taken and that is not written yet, in the order in which it was printed."""

    def __init__(self, tee: Any, interrupts: Any) -> None:
        self.in_child = False  # this is a forked child: ipykernel's own ways hold
        self.streams: dict[str, SpoolStream] = {}
        self._tee = tee
        self._lock = tee.lock
        self._interrupts = interrupts
        self._items: list[tuple[SpoolStream, str]] = []  # as printed
        self._chars = 0
        self._out: deque[tuple[SpoolStream, str]] = deque()  # on its way to the spool
        self._flushing = False
        self._timed = False
        self._timer = Timer(self._on_timer)
        self._timer.start()
        tee.sink = self
        os.register_at_fork(
            before=self._before_fork, after_in_parent=self._lock.release, after_in_child=self._after_fork_in_child
        )

    def write(self, stream: SpoolStream, text: str) -> None:
        """Takes text that `stream` was given; writes all that is held back when it is time."""
        with self._lock:
            self._items.append((stream, text))  # in one step: a signal handler may print before or after it
            self._chars += len(text)
            if self._chars >= LIMIT_CHARS or (
                ("\n" in text or len(text) >= LEADING_CHARS) and time.monotonic() - stream.flushed_at >= INTERVAL_S
            ):
                self.flush()
            elif not self._timed:
                self._timer.wake()
                self._timed = True  # after that: an interrupt may come in between

    def write_named(self, name: str, text: str) -> None:
        """`write` for the stream of a name; of a name that none has, stdout's."""
        self.write(self.streams.get(name) or self.streams["stdout"], text)

    def begin(self) -> None:
        """Has the next line of each stream written at once: it is a new cell's first."""
        for stream in self.streams.values():
            stream.flushed_at = float("-inf")

    def flush(self) -> None:
        """Writes all that is held back, in the calling thread. Raises OSError when the disk fails."""
        with self._lock:
            if not (self._items or self._out) or self._flushing:
                return
            if not self._tee.in_kernel:  # a child whose fork called no hooks, or is calling them
                self._to_childs_way()
                return
            with self._interrupts:
                self._write_out()

    def _write_out(self) -> None:
        self._flushing = True
        try:
            while self._items or self._out:
                items, self._items, self._chars = self._items, [], 0
                for stream, run in itertools.groupby(items, key=operator.itemgetter(0)):
                    self._out.extend((stream, piece) for piece in pieces("".join(text for _, text in run)))
                while self._out:
                    stream, piece = self._out.popleft()
                    self._tee.write_text(stream.name, piece)
                    stream.flushed_at = time.monotonic()
        finally:
            self._flushing = False

    def _on_timer(self) -> None:
        with self._lock:
            self._timed = False
            self.flush()

    def _to_childs_way(self) -> None:
        items, self._items, self._chars = self._items, [], 0
        self._out.clear()
        self.in_child = True
        for stream, text in items:
            stream.write(text)

    def _before_fork(self) -> None:
        self._lock.acquire()
        if not self.in_child:
            self.flush()  # what the child does not have, it cannot print again

    def _after_fork_in_child(self) -> None:
        self._lock._at_fork_reinit()
        if not self.in_child:
            self._to_childs_way()


class SpoolStream(OutStream):
    """ipykernel's stream, whose text goes through a `Sink`; in a forked child it is ipykernel's again."""

    def __init__(self, session: Any, pub_thread: Any, name: str, *args: Any, **kwargs: Any) -> None:
        self._sink: Sink = pub_thread.gpulayer_sink
        self._capture: Any = pub_thread.gpulayer_capture
        self._child_fd: int | None = None  # for forked children: the end of the pipe that we read
        self.flushed_at = float("-inf")  # when text of this stream was written last, on the monotonic clock
        super().__init__(session, pub_thread, name, *args, **kwargs)
        self._sink.streams[name] = self

    def write(self, string: str) -> int | None:
        """Takes text. Returns its length; raises TypeError and ValueError as any text file does."""
        if not isinstance(string, str):
            raise TypeError(f"write() argument must be str, not {type(string)}")
        if self.pub_thread is None:
            raise ValueError("I/O operation on closed file")
        if self._sink.in_child:
            return self._write_in_child(string)
        self._sink.write(self, string)
        return len(string)

    def _write_in_child(self, string: str) -> int | None:
        """By the pipe that programs write to. ipykernel's own way loses the order: it connects anew for each piece."""
        if self._child_fd is None:
            return super().write(string)
        left = memoryview(string.encode(errors="replace"))
        try:
            while left:
                left = left[os.write(self._child_fd, left) :]
        except OSError:  # a daemon closes what it inherited, or the kernel is gone
            self._child_fd = None
            super().write(bytes(left).decode(errors="replace"))
        return len(string)

    def flush(self) -> None:
        """Writes what is held back, of both streams, before it returns.

        Not in the thread of the control channel, which flushes after each request: it has to answer while the disk
        is full and a writer waits.
        """
        if self._sink.in_child:
            super().flush()
        elif self.pub_thread is not None and threading.current_thread().name != CONTROL_THREAD:
            self._sink.flush()

    def _flush(self) -> None:
        if self._sink.in_child:
            super()._flush()
        else:
            self._sink.flush()

    def close(self) -> None:
        """Writes what is left, and gives the descriptor back that it had taken over."""
        if self.pub_thread is None:
            return
        self.flush()
        self.pub_thread = None
        if self._child_fd is not None:
            os.close(self._child_fd)
            self._child_fd = None
        if self._should_watch and not self._sink.in_child:
            self._should_watch = False
            os.dup2(self._original_stdstream_copy, self._original_stdstream_fd)

    def _setup_stream_redirects(self, name: str) -> None:
        # As in the class above, but for who reads the pipe: one thread for both, in larger pieces.
        read_end, write_end = os.pipe()
        self._original_stdstream_fd = getattr(sys, name).fileno()
        self._original_stdstream_copy = os.dup(self._original_stdstream_fd)
        os.dup2(write_end, self._original_stdstream_fd)
        self._child_fd = write_end
        self._fid = read_end
        self._exc = None
        self._capture.watch(self, read_end)

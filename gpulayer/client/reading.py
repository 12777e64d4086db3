"""Who reads a connection's socket: its own thread, or the thread that waits for a cell, which saves a thread's wake-up.

A wake-up costs more than all the parsing of a small cell's output. One of them at a time reads.
"""

from __future__ import annotations

import contextlib
import math
import socket
import threading
import time
from collections.abc import Iterator

_PATIENCE_S = 0.25  # a caller that does not come back for so long has something else to do


class Turn:
    """The turn to read. The connection's own thread has it whenever no caller took it, or came back for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # held by whoever reads
        self._guard = threading.Lock()
        self._caller: int | None = None
        self._caller_reads = False
        self._caller_seen_at = 0.0
        self._refused: set[int] = set()  # threads that wait for what another caller reads
        self._thread_reads = False
        self._free = threading.Event()
        self._free.set()
        self.wake_end, self._wake = socket.socketpair()  # makes whoever reads look up
        for end in (self.wake_end, self._wake):
            end.setblocking(False)

    @contextlib.contextmanager
    def of_caller(self) -> Iterator[bool]:
        """Read in the calling thread, which has the turn until `give_back`; False: another caller reads."""
        me = threading.get_ident()
        mine = False
        try:
            with self._guard:
                mine = self._caller == me or not self._caller_reads
                if mine:
                    self._caller, self._caller_seen_at, self._caller_reads = me, math.inf, True
                    self._refused.discard(me)
                    self._free.clear()
                else:
                    self._refused.add(me)
            if not mine:
                yield False
                return
            if self._thread_reads:
                self.wake()
            with self._lock:
                yield True
        finally:
            if mine:
                self._caller_seen_at = time.monotonic()
                self._caller_reads = False

    def give_back(self, *, if_wanted: bool = False) -> None:
        """Let the connection's own thread read again; nothing happens for a thread that has not the turn.

        With `if_wanted` only if somebody else waits: a caller that soon waits again wakes no thread in between.
        """
        me = threading.get_ident()
        with self._guard:
            self._refused.discard(me)
            if self._caller == me and (self._refused or not if_wanted):
                self._caller = None
                self._free.set()

    @contextlib.contextmanager
    def of_thread(self) -> Iterator[None]:
        """For the connection's own thread: waits for its turn."""
        while True:
            self._thread_reads = True  # first this, then the look: a caller that comes now sees it, or is seen
            if not self._caller_is_at_it():
                break
            self._thread_reads = False
            self._free.wait(_PATIENCE_S)
        try:
            with self._lock:
                yield
        finally:
            self._thread_reads = False

    def _caller_is_at_it(self) -> bool:
        return self._caller is not None and time.monotonic() - self._caller_seen_at < _PATIENCE_S

    def wake(self) -> None:
        """Make whoever reads look up. A signal handler may call this."""
        with contextlib.suppress(OSError):  # it is woken already, or closed
            self._wake.send(b"\0")

    def close(self) -> None:
        """Nobody reads any more."""
        self.wake_end.close()
        self._wake.close()

"""Ctrl-C and SIGTERM while a job is followed: noted, and acted on where nothing is torn.

A terminal that is closed ends this process in order, and what it was about to write is not left half-written.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)
_HANGUP: signal.Signals | None = getattr(signal, "SIGHUP", None)  # none on Windows


class AskedAgain(Exception):
    """An interrupt while a question about the first one stands there."""


class Interrupts:
    """As a context manager it answers SIGINT and SIGTERM; without a job to stop they end this process at once."""

    def __init__(self) -> None:
        self.wake: Callable[[], object] = lambda: None  # makes whoever waits look
        self.pending: signal.Signals | None = None  # the last one that nobody acted on yet
        self.asking = False
        self._armed = False
        self._once = False
        self._saved: dict[int, Any] = {}
        self._terminals: list[int] = []  # file descriptors

    def arm(self) -> None:
        """From here on there is a job that they are meant for."""
        self._armed = True

    def disarm(self) -> None:
        """From here on they end this process at once again."""
        self._armed = False

    @contextlib.contextmanager
    def disarmed(self) -> Iterator[None]:
        """So for a while."""
        armed, self._armed = self._armed, False
        try:
            yield
        finally:
            self._armed = armed

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """While a request is on its way: the first one is noted for afterwards, the second ends this process."""
        armed, once = self._armed, self._once
        self._armed = self._once = True
        try:
            yield
        finally:
            self._armed, self._once = armed, once

    def take(self) -> signal.Signals | None:
        """The one that nobody acted on yet; it counts as acted on."""
        pending, self.pending = self.pending, None
        return pending

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        if number == _HANGUP:
            self._write_nowhere()
        if not self._armed or (self._once and self.pending is not None) or number == _HANGUP:
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            raise SystemExit(128 + number)
        self.pending = signal.Signals(number)
        self.wake()
        if self.asking:
            raise AskedAgain

    def _write_nowhere(self) -> None:
        """What is said on the way out fails no more for want of a terminal."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for descriptor in self._terminals:
            os.dup2(nowhere, descriptor)

    def __enter__(self) -> Interrupts:
        self._terminals = [descriptor for descriptor in (1, 2) if os.isatty(descriptor)]
        for number in SIGNALS:
            self._saved[number] = signal.signal(number, self._interrupted)
        if _HANGUP is not None and signal.getsignal(_HANGUP) is signal.SIG_DFL:  # not under nohup
            self._saved[_HANGUP] = signal.signal(_HANGUP, self._interrupted)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._saved.items():
            signal.signal(number, handler)

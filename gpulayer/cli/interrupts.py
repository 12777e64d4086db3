"""Ctrl-C and SIGTERM while a job is followed: noted, and acted on where nothing is torn."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class AskedAgain(Exception):
    """An interrupt while a question about the first one stands there."""


class Interrupts:
    """As a context manager it answers SIGINT and SIGTERM; without a job to stop they end this process at once."""

    def __init__(self) -> None:
        self.wake: Callable[[], object] = lambda: None  # makes whoever waits look
        self.pending: signal.Signals | None = None  # the last one that nobody acted on yet
        self.asking = False
        self._armed = False
        self._saved: dict[int, Any] = {}

    def arm(self) -> None:
        """From here on there is a job that they are meant for."""
        self._armed = True

    def take(self) -> signal.Signals | None:
        """The one that nobody acted on yet; it counts as acted on."""
        pending, self.pending = self.pending, None
        return pending

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        if not self._armed:
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            raise SystemExit(128 + number)
        self.pending = signal.Signals(number)
        self.wake()
        if self.asking:
            raise AskedAgain

    def __enter__(self) -> Interrupts:
        for number in SIGNALS:
            self._saved[number] = signal.signal(number, self._interrupted)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._saved.items():
            signal.signal(number, handler)

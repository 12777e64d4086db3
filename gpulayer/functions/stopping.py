"""Ctrl-C, or Stop, while somebody waits for calls: noted, and acted on where nothing is torn."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

from gpulayer.client.errors import interrupted


class Stop:
    """As a context manager, around a wait, it notes an interrupt and ends the wait; a second one is raised.

    Python delivers interrupts to the main thread only, and a program may have its own answer to them: elsewhere, and
    then, nothing changes.
    """

    def __init__(self, wake: Callable[[], object]):
        """`wake` ends the wait; a signal handler calls it."""
        self._wake = wake
        self._armed = True
        self._saved: Any = None
        self.wanted = False

    def arm(self) -> None:
        """From here on an interrupt is noted again."""
        self._armed = True

    def disarm(self) -> None:
        """From here on an interrupt is raised at once, as without this; one that was noted is raised now."""
        self._armed = False
        if self.wanted:
            raise interrupted()

    def _interrupted(self, signum: int, frame: FrameType | None) -> None:
        if not self._armed:
            raise KeyboardInterrupt  # in the user's code, which its traceback shows
        if self.wanted:
            raise interrupted()
        self.wanted = True
        self._wake()

    def __enter__(self) -> Stop:
        if (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        ):
            self._saved = signal.signal(signal.SIGINT, self._interrupted)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._saved is not None:
            signal.signal(signal.SIGINT, self._saved)
            self._saved = None
        if self.wanted and kind is None:
            raise interrupted()  # it came when the wait was over

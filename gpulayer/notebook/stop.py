"""The Stop button under a cell: noted, and acted on where nothing is torn."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

from gpulayer.client.connection import Subscription
from gpulayer.client.errors import interrupted


class Stop:
    """As a context manager it answers interrupts. Armed, the first one is noted in `wanted`; any other is raised.

    Python delivers interrupts to the main thread only: in others nothing changes.
    """

    def __init__(self, kernel_ends: Callable[[], bool] = lambda: False) -> None:
        """`kernel_ends` tells, after an interrupt, whether it was no Stop: the front end ends the kernel."""
        self.kernel_ends = kernel_ends
        self.wanted = False
        self.urgent = False  # asked for again
        self._armed = False
        self._subscription: Subscription | None = None
        self._saved: Any = None

    def arm(self) -> None:
        """From here on there is a job, or may be one, that an interrupt is meant for."""
        self._armed = True

    def disarm(self) -> None:
        """There is no job (yet): an interrupt, also one that was noted, is raised."""
        self._armed = False
        if self.wanted:
            raise interrupted()

    def watch(self, subscription: Subscription) -> None:
        """Let an interrupt wake whoever waits for this."""
        self._subscription = subscription

    def _interrupted(self, signum: int, frame: FrameType | None) -> None:
        waits = self._subscription is not None and self._subscription.wake()
        if self._armed and (not self.wanted or (waits and not self.urgent)):
            self.urgent = self.wanted
            self.wanted = True
            return  # whoever waits looks: nothing is torn in the middle of a message
        raise interrupted()

    def __enter__(self) -> Stop:
        if threading.current_thread() is threading.main_thread():
            self._saved = signal.signal(signal.SIGINT, self._interrupted)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._saved is not None:
            signal.signal(signal.SIGINT, self._saved)

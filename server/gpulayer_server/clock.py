"""The control plane's clock."""

from __future__ import annotations

import time


class Clock:
    """Unix time, anchored once, on a clock that counts sleep and never goes back."""

    def __init__(self) -> None:
        self._id = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # macOS: MONOTONIC counts sleep
        self._anchor = time.time() - time.clock_gettime(self._id)

    def now(self) -> float:
        """Seconds."""
        return self._anchor + time.clock_gettime(self._id)

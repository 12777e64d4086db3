"""Requests that break: when to try again, and when to let whoever asked decide."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from gpulayer.protocol.lazily import Lazily

if TYPE_CHECKING:
    import httpx
else:
    httpx = Lazily("httpx")

__all__ = ["CHUNK_BYTES", "LARGE_BYTES", "Again", "TransferStopped"]

LARGE_BYTES = 8 << 20
"""From here on a blob travels by itself, and goes on where it broke; smaller ones travel together."""

CHUNK_BYTES = 8 << 20
"""So much at most is sent by one request."""

PAUSES_S = (0.1, 0.5, 1.0, 2.0, 4.0)
"""Between tries of which none brought anything on."""

_ONCE_MORE = frozenset({408, 429, 460, 502, 503, 504})  # 460: a chunk's checksum


class TransferStopped(Exception):
    """Nobody wants it any more; what came over stays there, and is not sent again."""


class Again:
    """Decides after each failed try. Owned by one transfer."""

    def __init__(self, stop: threading.Event):
        self._stop = stop
        self._failed = 0

    def went_on(self) -> None:
        """Something came over: the pauses begin anew."""
        self._failed = 0

    def look(self) -> None:
        """Raises `TransferStopped` once that is told."""
        if self._stop.is_set():
            raise TransferStopped

    def wait(self, error: httpx.HTTPError) -> None:
        """Wait a while after a try that failed; raises its error where another one is of no use, or too many were."""
        self.look()
        if isinstance(error, httpx.HTTPStatusError) and error.response.status_code not in _ONCE_MORE:
            raise error
        if self._failed == len(PAUSES_S):
            raise error
        self._failed += 1
        self._stop.wait(PAUSES_S[self._failed - 1])
        self.look()

"""Ends of attempts, told in groups: for the control plane many at once cost hardly more than one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gpulayer_worker import link

_EVERY_S = 0.01
_MOST = 32


class Reports:
    """Passes events on: what comes after a pause at once, then at most every 10 ms, or 32 at a time.

    Arguments:
        emit: takes the events.
        more: whether more may come: where nothing runs, nothing is waited for.
    """

    def __init__(self, emit: Callable[[list[link.Event]], None], more: Callable[[], bool]):
        self._emit = emit
        self._more = more
        self._events: list[link.Event] = []
        self._due = False  # at the end of this turn of the loop
        self._timer: asyncio.TimerHandle | None = None  # since the last ones went

    def add(self, event: link.Event) -> None:
        """One more."""
        self._events.append(event)
        if not self._due and (self._timer is None or len(self._events) >= _MOST or not self._more()):
            self._due = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._due = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._events:
            events, self._events = self._events, []
            self._timer = asyncio.get_running_loop().call_later(_EVERY_S, self._flush)
            self._emit(events)

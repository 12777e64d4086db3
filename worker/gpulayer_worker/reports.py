"""Ends of attempts, told in groups: for the control plane many at once cost hardly more than one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gpulayer_worker import link

_EVERY_S = 0.01
_AHEAD = 4
_MOST = 64


class Reports:
    """Passes events on in the turn of the loop in which they come: what waits for a slot starts then. What is to be
    said of them is sent at once after a pause, then at most every 10 ms, or 64 at a time.

    Arguments:
        take: takes the events of one turn.
        send: sends what these left to be said.
        more: whether more may come: where nothing runs, nothing is waited for.
        ahead: whether work waits here: then no slot is idle while more is waited for, four times as long.
    """

    def __init__(
        self,
        take: Callable[[list[link.Event]], None],
        send: Callable[[], None],
        more: Callable[[], bool],
        ahead: Callable[[], bool],
    ) -> None:
        self._take = take
        self._send = send
        self._more = more
        self._ahead = ahead
        self._events: list[link.Event] = []
        self._untold = 0
        self._timer: asyncio.TimerHandle | None = None  # since the last ones were sent

    def add(self, event: link.Event) -> None:
        """One more."""
        if not self._events:
            asyncio.get_running_loop().call_soon(self._turn)
        self._events.append(event)

    def _turn(self) -> None:
        events, self._events = self._events, []
        self._untold += len(events)
        self._take(events)
        if self._timer is None or self._untold >= _MOST or not self._more():
            self._tell()

    def _tell(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._untold = 0
        wait_s = _EVERY_S * (_AHEAD if self._ahead() else 1)
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._lapsed)
        self._send()

    def _lapsed(self) -> None:
        self._timer = None
        if self._untold:
            self._tell()

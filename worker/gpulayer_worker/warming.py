"""When warm kernels are started: not while the first work wants the cores."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

_MOMENT_S = 0.5
_AT_MOST_S = 10.0  # a worker that is never idle has a warm kernel too


class Warming:
    """Waits for the first idle moment after the first welcome. A cell that comes before that waits for nothing.

    On the agent's loop.
    """

    def __init__(self, busy: Callable[[], bool], start: Callable[[], None]):
        """`busy` says whether anything is held, `start` starts what is to be kept warm."""
        self._busy = busy
        self._start = start
        self._until_s: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def welcomed(self) -> None:
        """The control plane knows this worker: from now on work may come. Harmless when repeated."""
        if self._until_s is None:
            self._until_s = asyncio.get_running_loop().time() + _AT_MOST_S
            self._wait()

    def close(self) -> None:
        """Start nothing any more."""
        if self._timer is not None:
            self._timer.cancel()

    def _wait(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_MOMENT_S, self._look)

    def _look(self) -> None:
        late = self._until_s is not None and asyncio.get_running_loop().time() >= self._until_s
        if self._busy() and not late:
            self._wait()
        else:
            self._start()

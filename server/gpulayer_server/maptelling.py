"""Who follows which map, and what they are told, once it is committed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from gpulayer.protocol.calls import CallRun, MapView
from gpulayer_server.core.events import Effects

_NEWS_S = 0.1  # the fleet changes often: those who wait are told why at most so often


class MapListener(Protocol):
    """Someone who follows a map. What it is told it sends with the next `flush`."""

    def changed(self, view: MapView) -> None: ...

    def accepted(self, run: CallRun) -> None: ...

    def grew(self, attempt: str, before: int) -> None: ...

    def flush(self) -> None: ...


class MapTelling:
    """Owns who follows which map. Used on the loop's thread."""

    def __init__(self, waiting: Callable[[Iterable[str]], Sequence[MapView]]):
        """`waiting`: those of some maps that wait, as they are now."""
        self._waiting = waiting
        self._news: asyncio.TimerHandle | None = None
        self.followers: dict[str, dict[MapListener, None]] = {}  # by map
        self._by_job: dict[str, dict[MapListener, None]] = {}
        self._told: dict[MapListener, None] = {}  # since the last flush

    def follow(self, name: str, listener: MapListener) -> None:
        """Tell of each change of a map, its results, and each growth of a stream of its job."""
        self.followers.setdefault(name, {})[listener] = None
        self._by_job.setdefault(name.rpartition(".")[0], {})[listener] = None

    def unfollow(self, name: str, listener: MapListener) -> None:
        """No more of that."""
        for table, key in ((self.followers, name), (self._by_job, name.rpartition(".")[0])):
            listeners = table.get(key, {})
            listeners.pop(listener, None)
            if not listeners:
                table.pop(key, None)
        self._told.pop(listener, None)

    def tell(self, effects: Effects, views: Mapping[str, MapView]) -> None:
        """What one event did is committed."""
        for name, run in effects.results:
            for listener in self.followers.get(name, ()):
                listener.accepted(run)
                self._told[listener] = None
        for name, view in views.items():
            self.changed(name, view)
        if effects.fleet_changed and self.followers and self._news is None:
            self._news = asyncio.get_running_loop().call_later(_NEWS_S, self._tell_waiting)

    def changed(self, name: str, view: MapView) -> None:
        """A map is another now."""
        for listener in self.followers.get(name, ()):
            listener.changed(view)
            self._told[listener] = None

    def follows(self, job: str) -> bool:
        """Whether somebody follows a map of this job."""
        return job in self._by_job

    def grew(self, job: str, attempt: str, before: int) -> None:
        """A stream of a job grew: `before`, its whole records reached so far."""
        for listener in list(self._by_job.get(job, ())):
            listener.grew(attempt, before)

    def flush(self) -> None:
        """Let those send that were told something."""
        while self._told:
            listener = next(iter(self._told))
            del self._told[listener]
            listener.flush()

    def close(self) -> None:
        """Tell nobody any more."""
        if self._news is not None:
            self._news.cancel()

    def _tell_waiting(self) -> None:
        """The fleet changed: those who follow a waiting map see its reasons anew."""
        self._news = None
        for view in self._waiting(list(self.followers)):
            self.changed(view.id, view)
        self.flush()

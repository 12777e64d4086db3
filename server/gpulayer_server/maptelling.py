"""Who follows which map, and what they are told, once it is committed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from msgspec.structs import replace

from gpulayer.protocol.calls import CallRun, MapView
from gpulayer.protocol.types import State
from gpulayer_server.core.events import Effects
from gpulayer_server.maptexts import Streams, Text, texts_of

_NEWS_S = 0.1  # the fleet changes often: those who wait are told why at most so often


class MapListener(Protocol):
    """Someone who follows a map. What it is told it sends with the next `flush`."""

    def changed(self, view: MapView) -> bool:
        """Whether that is news to it."""
        ...

    def accepted(self, run: CallRun) -> None: ...

    def wrote(self, texts: list[Text]) -> None: ...

    def flush(self) -> None: ...


class MapTelling:
    """Owns who follows which map. Used on the loop's thread."""

    def __init__(self, waiting: Callable[[Iterable[str]], Sequence[MapView]], streams: Streams):
        """`waiting`: those of some maps that wait, as they are now."""
        self._waiting = waiting
        self._streams = streams
        self._news: asyncio.TimerHandle | None = None
        self._news_of: dict[str, None] = {}  # maps that wait, and of which it is soon to be looked why
        self._news_of_all = False
        self._whys: dict[str, MapView] = {}  # of maps that wait: the last view that says why
        self.followers: dict[str, dict[MapListener, None]] = {}  # by map
        self._by_job: dict[str, int] = {}  # how many follow a map of it
        self._told: dict[MapListener, None] = {}  # since the last flush

    def follow(self, name: str, listener: MapListener) -> None:
        """Tell of each change of a map, its results, and what its calls write."""
        self.followers.setdefault(name, {})[listener] = None
        job = name.rpartition(".")[0]
        self._by_job[job] = self._by_job.get(job, 0) + 1

    def unfollow(self, name: str, listener: MapListener) -> None:
        """No more of that."""
        listeners = self.followers.get(name, {})
        if listener in listeners:
            del listeners[listener]
            if not listeners:
                del self.followers[name]
                self._whys.pop(name, None)
            job = name.rpartition(".")[0]
            self._by_job[job] -= 1
            if not self._by_job[job]:
                del self._by_job[job]
        self._told.pop(listener, None)

    def tell(self, effects: Effects, views: Mapping[str, MapView]) -> None:
        """What one event did is committed."""
        for name, run in effects.results:
            for listener in self.followers.get(name, ()):
                listener.accepted(run)
                self._told[listener] = None
        for name, view in views.items():
            if name in self.followers:
                self.changed(name, self._with_why(view))
        if effects.fleet_changed and self.followers:
            self._news_of_all = True
        if (self._news_of_all or self._news_of) and self._news is None:
            self._news = asyncio.get_running_loop().call_later(_NEWS_S, self._tell_waiting)

    def _with_why(self, view: MapView) -> MapView:
        """One that waits, with why as it was told last: it is looked at again in a moment, however many views come."""
        if view.state is not State.QUEUED or view.runners:
            self._whys.pop(view.id, None)
            return view
        self._news_of[view.id] = None
        known = self._whys.get(view.id)
        return view if known is None else replace(view, reasons=known.reasons, nearest=known.nearest)

    def changed(self, name: str, view: MapView) -> None:
        """A map is another now."""
        for listener in self.followers.get(name, ()):
            if listener.changed(view):
                self._told[listener] = None

    def follows(self, job: str) -> bool:
        """Whether somebody follows a map of this job."""
        return job in self._by_job

    def grew(self, job: str, attempt: str, before: int) -> None:
        """A stream of a job grew; `before`, its whole records reached so far. What is in it is looked at once."""
        if job not in self._by_job:
            return
        by_map: dict[str, list[Text]] = {}
        for text in texts_of(self._streams, attempt, before):
            by_map.setdefault(text.map, []).append(text)
        for name, texts in by_map.items():
            for listener in self.followers.get(name, ()):
                listener.wrote(texts)

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
        """Those who follow a map that waits see its reasons anew; of all of them, where the fleet changed."""
        self._news = None
        names = list(self.followers if self._news_of_all else self._news_of)
        self._news_of.clear()
        self._news_of_all = False
        for view in self._waiting(names):
            if view.id in self.followers:
                self._whys[view.id] = view
                self.changed(view.id, view)
        self.flush()

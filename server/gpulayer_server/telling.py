"""Who is told of changes, and when: followers of a job, or of one task of it, and watchers of the fleet."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

from gpulayer.protocol.types import JobView
from gpulayer_server.core.events import Effects
from gpulayer_server.core.explaining import Why
from gpulayer_server.core.state import Job
from gpulayer_server.core.views import names_of_workers, stored_view, waiting_view
from gpulayer_server.reading import Reading

Followed = tuple[str, int | None]  # a job, or the task of an index

_NEWS_S = 0.1  # the fleet changes often: those who wait are told why at most so often


class Follower(Protocol):
    """Someone who follows a job."""

    def update(self, view: JobView) -> None: ...

    def wake(self) -> None: ...


class Watcher(Protocol):
    """Someone who watches the whole fleet."""

    def changed(self, jobs: set[str]) -> None: ...

    def sampled(self, workers: set[str]) -> None: ...


class Telling:
    """Owns who follows what. Used on the loop's thread."""

    def __init__(self, reading: Reading):
        self._reading = reading
        self.followers: dict[str, dict[int | None, set[Follower]]] = {}  # by job and index
        self.watchers: set[Watcher] = set()
        self._news: asyncio.TimerHandle | None = None

    def follow(self, job: str, follower: Follower, index: int | None) -> None:
        """Tell a follower of each change, and of each growth of the stream."""
        self.followers.setdefault(job, {}).setdefault(index, set()).add(follower)

    def unfollow(self, job: str, follower: Follower) -> None:
        """No more of that."""
        following = self.followers.get(job, {})
        for index, followers in list(following.items()):
            followers.discard(follower)
            if not followers:
                del following[index]
        if not following:
            self.followers.pop(job, None)

    def grew(self, job: str, index: int) -> None:
        """The stream of a task grew."""
        following = self.followers.get(job)
        if following:
            for each in (index, None):
                for follower in list(following.get(each, ())):
                    follower.wake()

    def views(self, jobs: Mapping[str, Job]) -> dict[Followed, JobView]:
        """What followers will be told of these jobs, as they are now."""
        names = self._names()
        return {
            (name, index): stored_view(jobs[name], names, index)
            for name in jobs.keys() & self.followers.keys()
            for index in self.followers[name]
        }

    def tell(self, effects: Effects, views: dict[Followed, JobView]) -> None:
        """What one event changed is committed."""
        for followed, view in views.items():
            self._update(followed, view)
        if effects.fleet_changed and self._news is None:
            self._news = asyncio.get_running_loop().call_later(_NEWS_S, self._tell_waiting)
        if effects.rows or effects.fleet_changed:
            for watcher in self.watchers:
                watcher.changed({*effects.jobs})
        if effects.sampled:
            for watcher in self.watchers:
                watcher.sampled(effects.sampled)

    def tell_late(self, effects: Effects, views: dict[Followed, JobView]) -> None:
        """Who began to follow while a unit was being written sees what it wrote: the plane may know more by now."""
        for name in effects.jobs.keys() & self.followers.keys():
            for index in [index for index in self.followers[name] if (name, index) not in views]:
                view = self._reading.stored_view(name, index)
                if view is not None:
                    self._update((name, index), view)

    def close(self) -> None:
        """Tell nobody any more."""
        if self._news is not None:
            self._news.cancel()

    def _update(self, followed: Followed, view: JobView) -> None:
        name, index = followed
        for follower in list(self.followers.get(name, {}).get(index, ())):
            follower.update(view)

    def _tell_waiting(self) -> None:
        """The fleet changed: those who follow a waiting job see its reasons anew."""
        self._news = None
        plane, now = self._reading.plane, self._reading.clock.now()
        why = Why(plane, now)
        for name, index in [(name, index) for name, each in self.followers.items() for index in each]:
            job = plane.jobs.get(name)
            view = waiting_view(plane, job, now, index, why) if job is not None else None
            if view is not None and view.reasons:
                self._update((name, index), view)

    def _names(self) -> dict[str, str]:
        return names_of_workers(self._reading.plane)

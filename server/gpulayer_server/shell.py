"""The shell around the plane: a clock, the store, connections. It decides nothing.

One event's effects are a unit: its rows commit, then its messages leave; units leave in the order of their events.
A failed commit rebuilds the plane from the store and answers 507.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from gpulayer.protocol.failpoints import reach
from gpulayer.protocol.messages import Assign, CommMessage, Recorded, ServerMessage
from gpulayer.protocol.types import JobView, Problem
from gpulayer.source.blobs import Blobs
from gpulayer_server.clock import Clock
from gpulayer_server.core.events import Effects, Event, Tick, WorkerGone
from gpulayer_server.core.plane import Plane
from gpulayer_server.core.state import Job, Settings
from gpulayer_server.core.views import job_view, names_of_workers, stored_view, waiting_view
from gpulayer_server.datafolder import DataFolder
from gpulayer_server.store.committer import Committer
from gpulayer_server.store.database import Store, StoreError
from gpulayer_server.store.rows import Op, encode
from gpulayer_server.store.streams import Streams

log = logging.getLogger("gpulayer.server")

Reply = Callable[[JobView | Problem | None], None]


class WorkerLink(Protocol):
    """A worker's connection, as the shell needs it."""

    def send(self, messages: list[ServerMessage]) -> None: ...

    def send_now(self) -> None: ...

    def offer(self, message: CommMessage) -> bool: ...

    def drop(self, reason: str) -> None: ...


class Follower(Protocol):
    """Someone who follows a job."""

    def update(self, view: JobView) -> None: ...

    def wake(self) -> None: ...


class Watcher(Protocol):
    """Someone who watches the whole fleet."""

    def changed(self, jobs: set[str]) -> None: ...


@dataclass
class _Unit:
    effects: Effects
    commits: bool
    views: list[JobView] = field(default_factory=list[JobView])


class Shell:
    """Carries out what the plane decides. All methods run on the loop's thread."""

    def __init__(self, folder: DataFolder, settings: Settings | None = None):
        self.folder = folder
        self.settings = settings or Settings()
        self.clock = Clock()
        self.store = Store(folder.path / "store.db")
        self.streams = Streams(folder.path / "streams")
        self.blobs = Blobs(folder.path / "blobs")
        self.epoch = self.store.raise_epoch()
        self.plane = self._load(names=0)
        self.links: dict[int, WorkerLink] = {}
        self.followers: dict[str, set[Follower]] = {}
        self.watchers: set[Watcher] = set()
        self.clients: set[object] = set()  # the clients that are connected: an embedded control plane stays for them
        self._conns = 0
        self._requests: dict[int, Reply] = {}
        self._request_n = 0
        self._outbox: deque[_Unit] = deque()
        self._decided: list[list[Op]] = []  # units that the committer has not been given yet
        self._committing = 0
        self._failing = False
        self._fleet_news: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._committer = Committer(self.store, self._committed_on_thread)
        self._ticker = self._loop.create_task(self._tick())

    # ---------------------------------------------------------------- events in

    def handle(self, event: Event) -> None:
        """Let the plane handle an event, and carry out what follows in its turn."""
        if self._failing:
            return  # the plane is being rebuilt: workers declare everything again, clients were told
        effects = self.plane.handle(event, self.clock.now())
        ops = [encode(row) for row in effects.rows.values()]
        unit = _Unit(effects, bool(ops))
        unit.views = [stored_view(job, self._names()) for name, job in effects.jobs.items() if name in self.followers]
        if not ops and not self._outbox:
            self._release(unit)
            return
        self._outbox.append(unit)
        if ops:
            self._decide(ops)

    def _decide(self, ops: list[Op]) -> None:
        self._committing += 1
        if not self._decided:
            self._loop.call_soon(self.commit)
        self._decided.append(ops)

    def commit(self) -> None:
        """Let what was decided until now, such as by all of one frame, be one transaction; else the next turn does."""
        decided, self._decided = self._decided, []
        if decided:
            self._committer.put(decided)

    def request(self, make: Callable[[int], Event], reply: Reply) -> None:
        """Handle an event that is answered: `reply` is called once, when what it says is committed."""
        if self._failing:
            reply(_full("the control plane is recovering from a failed write"))
            return
        self._request_n += 1
        self._requests[self._request_n] = reply
        self.handle(make(self._request_n))

    def write(self, ops: list[Op], reply: Reply) -> None:
        """Commit rows that are not the plane's, as a unit; `reply` is called once: None, or why nothing was written."""
        if self._failing:
            reply(_full("the control plane is recovering from a failed write"))
            return
        self._request_n += 1
        self._requests[self._request_n] = reply
        self._outbox.append(_Unit(Effects(replies=[(self._request_n, None)]), True))
        self._decide(ops)

    def after_commits(self, read: Callable[[], None]) -> None:
        """Call `read` when everything decided so far is committed: what it sees can't be taken back."""
        if not self._outbox:
            read()
            return
        self._request_n += 1
        self._requests[self._request_n] = lambda _: read()
        unit = _Unit(Effects(replies=[(self._request_n, None)]), False)
        self._outbox.append(unit)

    def connect(self, link: WorkerLink) -> int:
        """A number for a new worker's connection."""
        self._conns += 1
        self.links[self._conns] = link
        return self._conns

    def disconnect(self, conn: int) -> None:
        """A worker's connection is closed."""
        if self.links.pop(conn, None) is not None:
            self.handle(WorkerGone(conn=conn))

    def output(self, conn: int, attempt: str, offset: int, data: bytes) -> int | None:
        """Bytes of a stream; the length that is here now, or None for one that this worker may not write."""
        if self._failing or not self.plane.accepts_output(conn, attempt):
            return None
        length = self.streams.append(attempt, offset, data)
        held = self.plane.attempts[attempt]
        task = self.plane.tasks.get(held.task)
        for follower in self.followers.get(task.job, ()) if task else ():
            follower.wake()
        return length

    # ---------------------------------------------------------------- looking

    def view(self, job_id: str) -> JobView | None:
        """A job of any age, with reasons while it waits."""
        job = self.plane.jobs.get(job_id)
        if job is not None:
            return waiting_view(self.plane, job, self.clock.now())
        stored = self.store.job(job_id)
        return stored_view(stored, self._names()) if stored else None

    def stored_by_key(self, owner: str, key: str) -> Job | None:
        """A job of the past that this key made; live ones are the plane's to find."""
        return None if (owner, key) in self.plane.keys else self.store.job_by_key(owner, key)

    def history_view(self, job: Job) -> JobView:
        """A job as the store has it."""
        live = self.plane.jobs.get(job.id)
        return job_view(self.plane, live) if live else stored_view(job, self._names())

    def follow(self, job: str, follower: Follower) -> None:
        """Tell a follower of each change of a job, and of each growth of its stream."""
        self.followers.setdefault(job, set()).add(follower)

    def unfollow(self, job: str, follower: Follower) -> None:
        """No more of that."""
        following = self.followers.get(job, set())
        following.discard(follower)
        if not following:
            self.followers.pop(job, None)

    # ---------------------------------------------------------------- effects out

    def _committed_on_thread(self, count: int, error: StoreError | None) -> None:
        self._loop.call_soon_threadsafe(self._committed, count, error)

    def _committed(self, count: int, error: StoreError | None) -> None:
        self._committing -= count
        if error is not None:
            self._fail(error)
            return
        while self._outbox and (count > 0 or not self._outbox[0].commits):
            unit = self._outbox.popleft()
            count -= unit.commits
            self._release(unit)

    def _release(self, unit: _Unit) -> None:
        effects = unit.effects
        if effects.rows:
            reach("server.committed")
        for attempt, why in effects.marks:
            self._mark(attempt, why)
        self._send(effects.sends)
        if unit.commits and self.followers and len(unit.views) < len(effects.jobs):
            self._tell_late({*effects.jobs} - {view.id for view in unit.views})
        for request, answer in effects.replies:
            self._requests.pop(request)(answer)
        for conn, reason in effects.closes:
            link = self.links.get(conn)
            if link is not None:
                link.drop(reason)
        self._tell(unit)

    def _tell(self, unit: _Unit) -> None:
        """Those who follow a job or watch the fleet see what a unit changed."""
        for view in unit.views:
            for follower in list(self.followers.get(view.id, ())):
                follower.update(view)
        effects = unit.effects
        if effects.fleet_changed and self._fleet_news is None:
            self._fleet_news = self._loop.call_later(0.1, self._tell_waiting)
        if effects.rows or effects.fleet_changed:
            for watcher in self.watchers:
                watcher.changed({*effects.jobs})

    def _mark(self, attempt: str, why: str) -> None:
        try:
            self.streams.truncate_with_mark(attempt, why)
        except OSError as error:
            log.error("the stream of %s has no mark at its end before the next start: %s", attempt, error)

    def _tell_late(self, jobs: set[str]) -> None:
        """Who began to follow while a unit was being written sees what it wrote: the plane may know more by now."""
        for name in jobs & self.followers.keys():
            stored = self.store.job(name)
            if stored is not None:
                view = stored_view(stored, self._names())
                for follower in list(self.followers[name]):
                    follower.update(view)

    def _send(self, sends: list[tuple[int, ServerMessage]]) -> None:
        """One frame for each worker that is told something."""
        batches: dict[int, list[ServerMessage]] = {}
        for conn, message in sends:
            batches.setdefault(conn, []).append(message)
        for conn, messages in batches.items():
            link = self.links.get(conn)
            if link is not None:
                link.send(messages)
                if any(isinstance(message, Assign) for message in messages):
                    link.send_now()  # a person waits for it; what is said to clients can follow
            for message in messages:
                if isinstance(message, Assign):
                    self._loop.call_soon(self._prepare_stream, message.attempt)
                    reach("server.assigned")
                elif isinstance(message, Recorded):
                    reach("server.recorded")

    def _prepare_stream(self, attempt: str) -> None:
        try:
            self.streams.prepare(attempt)
        except OSError as error:
            log.warning("the stream of %s can't be opened yet: %s", attempt, error)  # its first bytes will try again

    def _tell_waiting(self) -> None:
        """The fleet changed: those who follow a waiting job see its reasons anew."""
        self._fleet_news = None
        now = self.clock.now()
        for name in [job for job in self.followers if job in self.plane.jobs]:
            view = waiting_view(self.plane, self.plane.jobs[name], now)
            if view.reasons:
                for follower in list(self.followers[name]):
                    follower.update(view)

    def _fail(self, error: StoreError) -> None:
        """Nothing of what waits happened. Once the committer has given all of it back, begin again from the store."""
        if not self._failing:
            log.error("a commit failed, the plane is rebuilt from the store: %s", error)
            self._failing = True
            self.commit()
            problem = _full(str(error))
            while self._outbox:
                for request, _ in self._outbox.popleft().effects.replies:
                    self._requests.pop(request)(problem)
            for link in list(self.links.values()):
                link.drop("the control plane is recovering from a failed write")
        if self._committing == 0:
            expected_until = self.plane.local_expected_until  # a local worker may still be on its way
            self.plane = self._load(names=self.plane.names)
            self.plane.local_expected_until = expected_until
            self._committer.reset()
            self._failing = False

    def _load(self, *, names: int) -> Plane:
        plane = Plane(epoch=self.epoch, now=self.clock.now(), snapshot=self.store.load(), settings=self.settings)
        plane.names = names
        return plane

    def _names(self) -> dict[str, str]:
        return names_of_workers(self.plane)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(0.5)
            self.handle(Tick())

    async def close(self) -> None:
        """Commit what waits and close everything."""
        self._ticker.cancel()
        if self._fleet_news is not None:
            self._fleet_news.cancel()
        for link in list(self.links.values()):
            link.drop("the control plane ends")
        self.commit()
        await asyncio.to_thread(self._committer.close)
        self.streams.close()
        self.store.close()
        self.folder.close()


def _full(detail: str) -> Problem:
    return Problem(
        status=507, code="store_failed", title="the control plane could not write; nothing was done", detail=detail
    )

"""The shell around the plane: a clock, the store, connections. It decides nothing.

One event's effects are a unit: its rows commit, then its messages leave; units leave in the order of their events.
A failed commit rebuilds the plane from the store and answers 507.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from gpulayer.protocol.failpoints import reach
from gpulayer.protocol.messages import Assign, CommMessage, Recorded, ServerMessage
from gpulayer.protocol.types import AttemptView, JobSpec, JobView, Problem, State, TaskView
from gpulayer.source.blobs import Blobs
from gpulayer.source.partial import Partials
from gpulayer_server.clock import Clock
from gpulayer_server.core.events import Effects, Event, Tick, WorkerGone
from gpulayer_server.core.plane import Plane
from gpulayer_server.core.state import Job, JobKey, Settings
from gpulayer_server.core.views import job_view, names_of_workers, stored_view, waiting_view
from gpulayer_server.datafolder import DataFolder
from gpulayer_server.reading import Reading
from gpulayer_server.retention import Retention
from gpulayer_server.settings import read_settings
from gpulayer_server.store.committer import Committer
from gpulayer_server.store.database import Store, StoreError
from gpulayer_server.store.rows import Op, encoded
from gpulayer_server.store.streams import Streams
from gpulayer_server.submitting import MOST_JOBS, Batch, too_many

log = logging.getLogger("gpulayer.server")

Reply = Callable[[JobView | Problem | None], None]
BatchReply = Callable[[list[str] | Problem], None]


Followed = tuple[str, int | None]  # a job, or the task of an index


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
    views: dict[Followed, JobView] = field(default_factory=dict[Followed, JobView])


class Shell:
    """Carries out what the plane decides. All methods run on the loop's thread."""

    def __init__(self, folder: DataFolder, settings: Settings | None = None):
        self.folder = folder
        self.settings = settings or read_settings(folder.path)
        self.clock = Clock()
        self.store = Store(folder.path / "store.db")
        self.streams = Streams(folder.path / "streams")
        self.blobs = Blobs(folder.path / "blobs")
        self.partials = Partials(self.blobs)
        self.epoch = self.store.raise_epoch()
        self.plane = self._load(names=0)
        self.links: dict[int, WorkerLink] = {}
        self.followers: dict[str, dict[int | None, set[Follower]]] = {}
        self.watchers: set[Watcher] = set()
        self.clients: set[object] = set()  # the clients that are connected: an embedded control plane stays for them
        self.coming: dict[JobKey, list[Callable[[], None]]] = {}  # keys of a batch on its way in, and who waits for it
        self._batches: set[asyncio.Task[None]] = set()
        self._batch_turn = asyncio.Lock()
        self._conns = 0
        self._requests: dict[int, Callable[[Any], None]] = {}
        self._request_n = 0
        self._outbox: deque[_Unit] = deque()
        self._decided: list[list[Op]] = []  # units that the committer has not been given yet
        self._committing = 0
        self._failing = False
        self._fleet_news: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._committer = Committer(self.store, self._committed_on_thread)
        self._ticker = self._loop.create_task(self._tick())
        self._retention = Retention(folder.path, self.blobs, self.partials, self.settings.keep_blobs_bytes)

    # ---------------------------------------------------------------- events in

    def handle(self, event: Event) -> None:
        """Let the plane handle an event, and carry out what follows in its turn."""
        if self._failing:
            return  # the plane is being rebuilt: workers declare everything again, clients were told
        effects = self.plane.handle(event, self.clock.now())
        ops = encoded(effects.rows.values())
        unit = _Unit(effects, bool(ops))
        for name, job in effects.jobs.items():
            for index in self.followers.get(name, ()):
                unit.views[(name, index)] = stored_view(job, self._names(), index)
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

    def request(self, make: Callable[[int], Event], reply: Callable[[Any], None]) -> None:
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
        following = self.followers.get(task.job) if task else None
        if task is not None and following:
            for index in (task.index, None):
                for follower in list(following.get(index, ())):
                    follower.wake()
        return length

    # ---------------------------------------------------------------- looking

    @property
    def _reading(self) -> Reading:
        return Reading(self.plane, self.store)

    def view(self, job: str, index: int | None = None) -> JobView | None:
        """A job of any age, with reasons while it waits; with `index`, state and the rest as one task of it has them."""
        return self._reading.view(job, self.clock.now(), index)

    def views(
        self,
        limit: int = 50,
        *,
        owner: str | None = None,
        state: State | None = None,
        label: str | None = None,
        name: str | None = None,
        before: str | None = None,
    ) -> list[JobView]:
        """Jobs, newest first: of one owner, in one state, with a label 'k=v', of a name, older than job `before`."""
        return self._reading.views(limit, owner=owner, state=state, label=label, name=name, before=before)

    def task_views(self, job: str) -> list[TaskView] | None:
        """The tasks of a job by index, ascending. None: there is no such job."""
        return self._reading.task_views(job)

    def attempt_views(self, job: str, index: int | None = None) -> list[AttemptView] | None:
        """Every attempt of a job, or of one task of it, by index and number. None: there is no such job."""
        return self._reading.attempt_views(job, index)

    def states(self, jobs: Iterable[str]) -> dict[str, State]:
        """The states of these jobs; those that are not there are left out."""
        return self._reading.states(jobs)

    def ends_of(self, jobs: Iterable[str]) -> dict[str, State]:
        """How those of these jobs ended that do not live any more."""
        wanted = [name for name in jobs if self.plane.state_of(name) is None]
        if not wanted:
            return {}
        return {name: state for name, state in self.store.states(wanted).items() if state is not None}

    def owner_of(self, job: str) -> str | None:
        """Whose job it is. None: there is no such job."""
        return self._reading.owner_of(job)

    def submit_batch(self, owner: str, jobs: Sequence[tuple[str, JobSpec]], reply: BatchReply) -> None:
        """Take many jobs, given with their keys, all or none: `reply` is called once, with their ids in order.

        A key that made a job before gives that one's id. Nothing is decided for longer than some milliseconds at once.
        """
        if len(jobs) > MOST_JOBS:
            reply(too_many(len(jobs)))
            return
        task = asyncio.ensure_future(self._one_batch(Batch(self, owner, jobs, reply)))
        self._batches.add(task)
        task.add_done_callback(self._batches.discard)

    async def _one_batch(self, batch: Batch) -> None:
        async with self._batch_turn:
            await batch.run()

    def stored_by_keys(self, owner: str, keys: Iterable[str]) -> dict[str, tuple[str, str]]:
        """By key: id and payload's hash of the jobs of the past that these keys made; live ones are the plane's."""
        return self.store.jobs_by_keys(owner, [key for key in keys if (owner, key) not in self.plane.keys])

    def stored_by_key(self, owner: str, key: str) -> Job | None:
        """A job of the past that this key made; live ones are the plane's to find."""
        return None if (owner, key) in self.plane.keys else self.store.job_by_key(owner, key)

    def history_view(self, job: Job) -> JobView:
        """A job as the store has it."""
        live = self.plane.jobs.get(job.id)
        return job_view(self.plane, live) if live else stored_view(job, self._names())

    def follow(self, job: str, follower: Follower, index: int | None = None) -> None:
        """Tell a follower of each change of a job, or of one task of it, and of each growth of its stream."""
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

    def first_attempt(self, job: str) -> str | None:
        """The current or last attempt of a job's first task."""
        live = self.plane.jobs.get(job)
        tasks = live.tasks[:1] if live is not None else self.store.first_tasks(job)
        return next((task.attempt.id for task in tasks if task.attempt is not None), None)

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
        if unit.commits and self.followers:
            self._tell_late(unit)
        for request, answer in effects.replies:
            self._requests.pop(request)(answer)
        for conn, reason in effects.closes:
            link = self.links.get(conn)
            if link is not None:
                link.drop(reason)
        self._tell(unit)

    def _tell(self, unit: _Unit) -> None:
        """Those who follow a job or watch the fleet see what a unit changed."""
        for followed, view in unit.views.items():
            self._update(followed, view)
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

    def _update(self, followed: Followed, view: JobView) -> None:
        name, index = followed
        for follower in list(self.followers.get(name, {}).get(index, ())):
            follower.update(view)

    def _tell_late(self, unit: _Unit) -> None:
        """Who began to follow while a unit was being written sees what it wrote: the plane may know more by now."""
        for name in unit.effects.jobs.keys() & self.followers.keys():
            for index in [index for index in self.followers[name] if (name, index) not in unit.views]:
                view = self._reading.stored_view(name, index)
                if view is not None:
                    self._update((name, index), view)

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
                    if message.spec.cell is not None:  # a person waits; many a command never writes a byte
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
        for name, index in [(name, index) for name, each in self.followers.items() for index in each]:
            job = self.plane.jobs.get(name)
            view = waiting_view(self.plane, job, now, index) if job is not None else None
            if view is not None and view.reasons:
                self._update((name, index), view)

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
        for batch in self._batches:
            batch.cancel()
        if self._fleet_news is not None:
            self._fleet_news.cancel()
        for link in list(self.links.values()):
            link.drop("the control plane ends")
        self.commit()
        await asyncio.to_thread(self._committer.close)
        await asyncio.to_thread(self._retention.close)
        self.streams.close()
        self.store.close()
        self.folder.close()


def _full(detail: str) -> Problem:
    return Problem(
        status=507, code="store_failed", title="the control plane could not write; nothing was done", detail=detail
    )

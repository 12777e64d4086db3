"""The fleet, live: what a panel shows, by one websocket of JSON."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import islice

import msgspec
from msgspec.structs import replace
from tornado import websocket

from gpulayer._version import __version__
from gpulayer.protocol.types import JobView, Sample, SessionView, Struct, WorkerView
from gpulayer_server.core.views import session_view, worker_view
from gpulayer_server.http.base import Socket
from gpulayer_server.shell import log

_PAUSE_S = 0.2  # between two messages: people see no more
_SAMPLES_S = 1.0  # between two messages with samples
_JOBS = 50  # of those that ended
_SLICE = 50  # jobs that are looked at in one turn of the loop
_LIVE = 500  # of those that live: a queue of thousands is counted, not shown


class Fleet(Struct, frozen=True, kw_only=True, tag="fleet", omit_defaults=False):
    """All there is; the first message, and the truth after each connection."""

    version: str
    epoch: int
    now: float  # Unix time, seconds
    workers: tuple[WorkerView, ...]
    jobs: tuple[JobView, ...]  # of the owner, newest first
    sessions: tuple[SessionView, ...]


class Changes(Struct, frozen=True, kw_only=True, tag="changes"):
    """What is another since the last message."""

    now: float
    workers: tuple[WorkerView, ...] = ()
    jobs: tuple[JobView, ...] = ()
    sessions: tuple[SessionView, ...] = ()
    workers_gone: tuple[str, ...] = ()
    sessions_gone: tuple[str, ...] = ()
    samples: dict[str, Sample | None] = {}  # by the ids of workers: how they fare now

    @property
    def empty(self) -> bool:
        """Whether nothing is another."""
        changed = self.workers or self.jobs or self.sessions or self.samples
        return not (changed or self.workers_gone or self.sessions_gone)


class WatchSocket(Socket):
    """GET /v1/watch, a websocket: `Fleet`, then `Changes`, at most five a second and no faster than they are read.

    How workers fare is told once a second: where nothing else is another, nothing else is looked at.
    """

    _samples: asyncio.TimerHandle | None = None  # while samples wait for their time

    def open(self, *args: str, **kwargs: str) -> None:
        """Send all, then what changes."""
        super().open(*args, **kwargs)
        self._touched: set[str] = set()
        self._another = False  # something is: not only samples
        self._sampled: set[str] = set()
        self._samples_at = 0.0  # on the loop's clock: before that none are told again
        self._samples_due = False
        self._waiting: dict[str, JobView] = {}  # as they were shown: their reasons change with the fleet
        self._workers: dict[str, WorkerView] = {}  # without what changes all the time
        self._sessions: dict[str, SessionView] = {}
        self._news = asyncio.Event()
        self.shell.clients.add(self)
        self.shell.watchers.add(self)
        self._task = asyncio.ensure_future(self._tell())

    def changed(self, jobs: set[str]) -> None:
        """These jobs are others now, or workers or sessions are."""
        self._touched |= jobs
        self._another = True
        self._news.set()

    def sampled(self, workers: set[str]) -> None:
        """It is known anew how these fare."""
        self._sampled |= workers
        if self._samples is None:
            self._samples = asyncio.get_running_loop().call_at(self._samples_at, self._now_samples)

    def _now_samples(self) -> None:
        self._samples_due = True
        self._news.set()

    async def _tell(self) -> None:
        try:
            await self.write_message(await self._when_committed(self._all))
            while True:
                await self._news.wait()
                await asyncio.sleep(_PAUSE_S)  # what comes meanwhile goes along
                self._news.clear()
                message = await self._when_committed(self._changes)
                if message:
                    await self.write_message(message)
        except websocket.WebSocketClosedError:
            return  # it asks again when it is back
        except Exception:  # noqa: BLE001 logged; the page connects again
            log.exception("the fleet can't be told")
            self.close(1011, "the fleet can't be read now")

    async def _when_committed(self, read: Callable[[], Awaitable[str]]) -> str:
        """What `read` sees once everything decided so far is committed."""
        await self._committed()
        return await read()

    async def _committed(self) -> None:
        committed = asyncio.Event()
        self.shell.after_commits(committed.set)
        await committed.wait()

    async def _all(self) -> str:
        shell = self.shell
        self._look()
        workers = tuple(worker_view(shell.plane, worker) for worker in shell.plane.workers.values())
        ended = [stored.job.id for stored in shell.store.page(_JOBS)]
        live = (job.id for job in reversed(shell.plane.jobs.values()))
        jobs = await self._jobs({*ended, *islice(live, _LIVE)})
        return _text(
            Fleet(
                version=__version__,
                epoch=shell.epoch,
                now=shell.clock.now(),
                workers=workers,
                jobs=jobs,
                sessions=tuple(self._sessions.values()),
            )
        )

    async def _changes(self) -> str:
        samples = self._fresh_samples()
        if not self._another:
            return _text(Changes(now=self.shell.clock.now(), samples=samples)) if samples else ""
        plane, workers, sessions = self.shell.plane, self._workers, self._sessions
        self._look()
        self._another = False
        touched, self._touched = self._touched, set()
        others = [plane.workers[name] for name, view in self._workers.items() if workers.get(name) != view]
        changes = Changes(
            now=self.shell.clock.now(),
            samples=samples,
            workers=tuple(worker_view(plane, worker) for worker in others),
            sessions=tuple(view for name, view in self._sessions.items() if sessions.get(name) != view),
            workers_gone=tuple(workers.keys() - self._workers.keys()),
            sessions_gone=tuple(sessions.keys() - self._sessions.keys()),
            jobs=await self._jobs(touched | self._waiting.keys()),
        )
        return "" if changes.empty else _text(changes)

    def _fresh_samples(self) -> dict[str, Sample | None]:
        """What is to be told now of how workers fare: once a second."""
        if not self._samples_due:
            return {}
        self._samples, self._samples_due = None, False
        self._samples_at = asyncio.get_running_loop().time() + _SAMPLES_S
        sampled, self._sampled = self._sampled, set()
        workers = self.shell.plane.workers
        return {name: workers[name].sample for name in sorted(sampled) if name in workers}

    def _look(self) -> None:
        plane = self.shell.plane
        views = [worker_view(plane, worker, sampled=False) for worker in plane.workers.values()]
        self._workers = {view.id: replace(view, last_seen_at=0.0) if view.connected else view for view in views}
        self._sessions = {s.id: session_view(plane, s) for s in plane.sessions.values() if s.owner == self.owner}

    async def _jobs(self, names: set[str]) -> tuple[JobView, ...]:
        """The jobs of these names, newest first; one that waits as it did is left out."""
        views: list[JobView] = []
        why = self.shell.why()
        for n, name in enumerate(names, 1):
            if n % _SLICE == 0:
                await asyncio.sleep(0)  # there may be thousands, and others wait
                await self._committed()
                why = self.shell.why()
            view = self.shell.view(name, why=why)
            if view is None or view == self._waiting.get(name):
                continue
            views.append(view)
            self._waiting.pop(name, None)
            if view.reasons and not view.terminal:
                self._waiting[name] = view
        return tuple(sorted(views, key=lambda view: (view.submitted_at, view.id), reverse=True))

    async def on_message(self, message: str | bytes) -> None:
        """Nothing is expected from this side."""

    def on_close(self) -> None:
        """Nobody looks any more."""
        self.shell.watchers.discard(self)
        self.shell.clients.discard(self)
        task = getattr(self, "_task", None)
        if task is not None:
            task.cancel()
        if self._samples is not None:
            self._samples.cancel()


def _text(message: Struct) -> str:
    return msgspec.json.encode(message).decode()

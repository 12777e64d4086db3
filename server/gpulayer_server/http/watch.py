"""The fleet, live: what a panel shows, by one websocket of JSON."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import islice

import msgspec
from tornado import websocket

from gpulayer._version import __version__
from gpulayer.protocol.types import JobView, SessionView, Struct, WorkerView
from gpulayer_server.core.views import session_view, worker_view
from gpulayer_server.http.base import Socket
from gpulayer_server.shell import log

_PAUSE_S = 0.2  # between two messages: people see no more
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

    @property
    def empty(self) -> bool:
        """Whether nothing is another."""
        return not (self.workers or self.jobs or self.sessions or self.workers_gone or self.sessions_gone)


class WatchSocket(Socket):
    """GET /v1/watch, a websocket: `Fleet`, then `Changes`, at most five a second and no faster than they are read."""

    def open(self, *args: str, **kwargs: str) -> None:
        """Send all, then what changes."""
        super().open(*args, **kwargs)
        self._touched: set[str] = set()
        self._waiting: dict[str, JobView] = {}  # as they were shown: their reasons change with the fleet
        self._workers: dict[str, WorkerView] = {}
        self._sessions: dict[str, SessionView] = {}
        self._news = asyncio.Event()
        self.shell.clients.add(self)
        self.shell.watchers.add(self)
        self._task = asyncio.ensure_future(self._tell())

    def changed(self, jobs: set[str]) -> None:
        """These jobs are others now, or workers or sessions are."""
        self._touched |= jobs
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
        ended = [stored.job.id for stored in shell.store.page(_JOBS)]
        live = (job.id for job in reversed(shell.plane.jobs.values()))
        jobs = await self._jobs({*ended, *islice(live, _LIVE)})
        return _text(
            Fleet(
                version=__version__,
                epoch=shell.epoch,
                now=shell.clock.now(),
                workers=tuple(self._workers.values()),
                jobs=jobs,
                sessions=tuple(self._sessions.values()),
            )
        )

    async def _changes(self) -> str:
        workers, sessions = self._workers, self._sessions
        self._look()
        touched, self._touched = self._touched, set()
        changes = Changes(
            now=self.shell.clock.now(),
            workers=tuple(view for name, view in self._workers.items() if workers.get(name) != view),
            sessions=tuple(view for name, view in self._sessions.items() if sessions.get(name) != view),
            workers_gone=tuple(workers.keys() - self._workers.keys()),
            sessions_gone=tuple(sessions.keys() - self._sessions.keys()),
            jobs=await self._jobs(touched | self._waiting.keys()),
        )
        return "" if changes.empty else _text(changes)

    def _look(self) -> None:
        plane = self.shell.plane
        self._workers = {worker.id: worker_view(worker) for worker in plane.workers.values()}
        self._sessions = {s.id: session_view(plane, s) for s in plane.sessions.values() if s.owner == self.owner}

    async def _jobs(self, names: set[str]) -> tuple[JobView, ...]:
        """The jobs of these names, newest first; one that waits as it did is left out."""
        views: list[JobView] = []
        for n, name in enumerate(names, 1):
            if n % _SLICE == 0:
                await asyncio.sleep(0)  # there may be thousands, and others wait
                await self._committed()
            view = self.shell.view(name)
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


def _text(message: Struct) -> str:
    return msgspec.json.encode(message).decode()

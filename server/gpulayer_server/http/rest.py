"""The HTTP API under `/v1`: health, workers, sessions, streams; jobs are in `jobs`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gpulayer._version import __version__
from gpulayer.protocol.records import Splitter
from gpulayer.protocol.types import FRAME_DATA_BYTES, JobView, Problem, Struct
from gpulayer_server.core.events import Event, ReleaseWanted
from gpulayer_server.core.views import session_view, worker_view
from gpulayer_server.http.base import Handler, ProblemError, Socket
from gpulayer_server.shell import Shell


class Health(Struct, frozen=True, kw_only=True):
    """Who answers here."""

    version: str
    epoch: int
    connected: bool | None = None  # for a worker's credential: whether a worker with its id is connected now


async def committed(shell: Shell) -> None:
    """Wait until everything decided so far is committed."""
    done = asyncio.get_running_loop().create_future()
    shell.after_commits(lambda: done.set_result(None))
    await done


async def ask(shell: Shell, make: Callable[[int], Event]) -> JobView | None:
    """Let the plane handle a request and wait for its committed answer; a problem is raised."""
    future: asyncio.Future[JobView | Problem | None] = asyncio.get_running_loop().create_future()
    shell.request(make, future.set_result)
    return settle(await future)


def whole_number(text: str, what: str) -> int:
    """A number of a query; a problem 400 that names it for anything else."""
    try:
        return int(text)
    except ValueError:
        title = f"{what} must be a whole number, not {text[:40]!r}"
        raise ProblemError(Problem(status=400, code="bad_request", title=title)) from None


def settle(result: JobView | Problem | None) -> JobView | None:
    """A result, or a problem raised."""
    if isinstance(result, Problem):
        raise ProblemError(result)
    return result


class HealthHandler(Handler):
    """GET /v1/health"""

    def get(self) -> None:
        """Version and epoch."""
        worker = self.shell.plane.workers.get(self.token.worker_id or "") if self.token is not None else None
        connected = None if self.token is None else worker is not None and worker.conn is not None
        self.answer(Health(version=__version__, epoch=self.shell.epoch, connected=connected))


class NothingHandler(Handler):
    """Any other path"""

    def prepare(self) -> None:
        """A problem as everywhere."""
        super().prepare()
        detail = f"{self.request.method} {self.request.path}: the API lies under /v1"
        raise ProblemError(Problem(status=404, code="no_such_path", title="nothing is there", detail=detail))


class WorkersHandler(Handler):
    """GET /v1/workers"""

    async def get(self) -> None:
        """Every worker that is known."""
        await committed(self.shell)
        plane = self.shell.plane
        self.answer([worker_view(plane, worker) for worker in plane.workers.values()])


class SessionsHandler(Handler):
    """GET /v1/sessions"""

    async def get(self) -> None:
        """The owner's open sessions."""
        await committed(self.shell)
        plane = self.shell.plane
        self.answer([session_view(plane, s) for s in plane.sessions.values() if s.owner == self.owner])


class SessionHandler(Handler):
    """DELETE /v1/sessions/NAME"""

    async def delete(self, name: str) -> None:
        """Release a session; its devices are free when its processes are gone."""
        await ask(self.shell, lambda request: ReleaseWanted(request=request, owner=self.owner, name=name))
        self.set_status(204)
        self.finish()


class StreamSocket(Socket):
    """GET /v1/jobs/ID/stream?after=SEQ, a websocket: each record's payload as one binary message, in order."""

    async def open(self, name: str) -> None:  # type: ignore[override]
        """Send everything after record SEQ (from 0; -1: all), then follow until the job is over."""
        super().open()
        self._name = name
        self._news = asyncio.Event()
        view = self.shell.view(name)
        if view is None:
            self.close(4404, "no such job")
            return
        try:
            self._after = int(self.get_query_argument("after", "-1"))
        except ValueError:
            self.close(4400, "after must be a whole number")
            return
        self.shell.follow(name, self)
        self._task = asyncio.ensure_future(self._send_all(view))

    def update(self, view: JobView) -> None:
        """The job is another now."""
        self._news.set()

    def wake(self) -> None:
        """Its stream grew."""
        self._news.set()

    async def _send_all(self, view: JobView | None) -> None:
        streams = self.shell.streams
        attempt, offset, splitter = None, 0, Splitter()
        while view is not None:
            self._news.clear()
            if view.attempt != attempt and view.attempt is not None:
                attempt, splitter = view.attempt, Splitter()
                offset = streams.offset_of(attempt, self._after + 1) if self._after >= 0 else 0
            while attempt is not None and streams.visible(attempt) > offset:
                data = streams.read(attempt, offset, FRAME_DATA_BYTES)
                offset += len(data)
                for _, kind, body in splitter.feed(data):
                    await self.write_message(bytes([kind]) + bytes(body), binary=True)
            if view.terminal:
                break
            await self._news.wait()
            view = self.shell.view(self._name)
        self.close(1000, "end of stream")

    async def on_message(self, message: str | bytes) -> None:
        """Nothing is expected from this side."""

    def on_close(self) -> None:
        """Follow no more."""
        self.shell.unfollow(self._name, self)
        task = getattr(self, "_task", None)
        if task is not None:
            task.cancel()

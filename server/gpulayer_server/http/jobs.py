"""Jobs over HTTP: one or many in, how they are, what they wrote and made."""

from __future__ import annotations

import asyncio
from typing import Annotated

import msgspec
from msgspec import Meta

from gpulayer.protocol.types import JobSpec, JobView, Problem, Requirements, State, Struct
from gpulayer.source import FileEntry, Manifest
from gpulayer_server.core.events import CancelWanted
from gpulayer_server.core.explaining import explanation
from gpulayer_server.http.base import Handler, ProblemError, parse
from gpulayer_server.http.rest import ask, committed, settle, whole_number
from gpulayer_server.scheduling import asked
from gpulayer_server.shell import Shell
from gpulayer_server.store.logs import joined_log
from gpulayer_server.submitting import MOST_JOBS, submit

MAX_JOBS = MOST_JOBS
"""Of one request that names or brings many."""

MAX_WAIT_S = 60.0
_LISTED = 1000
_HIGHEST_INDEX = 2**31 - 1
_AT_ONCE = 200  # are decoded or looked up before the loop has its turn again


class SubmitBody(Struct, frozen=True, kw_only=True):
    """A job by HTTP."""

    key: Annotated[str, Meta(min_length=1)]
    spec: JobSpec


class BatchBody(Struct, frozen=True, kw_only=True):
    """Many jobs by HTTP; at most 10,000."""

    jobs: list[SubmitBody]


class BatchAnswer(Struct, frozen=True, kw_only=True, omit_defaults=False):
    """Their ids, in order."""

    jobs: list[str]


class CancelBody(Struct, frozen=True, kw_only=True):
    """How to cancel; `give_up`: do not wait for a worker out of reach."""

    give_up: bool = False


class StatesBody(Struct, frozen=True, kw_only=True):
    """Ids of jobs; at most 10,000."""

    jobs: list[str]


class OutputView(Struct, frozen=True, kw_only=True):
    """A file that came back; its bytes are the blob `sha256`."""

    index: int  # of the task that made it
    path: str
    size: int  # bytes
    sha256: str
    mode: int
    raw: bytes = b""  # the path's bytes where they are not UTF-8: `path` is how it may be shown then


class ExplainBody(Struct, frozen=True, kw_only=True):
    """What a job would ask for."""

    requirements: Requirements
    wait_for_worker: bool = False  # it would wait where no worker could take it


class _RawBatch(Struct, frozen=True, kw_only=True):
    jobs: list[msgspec.Raw]


_job = msgspec.json.Decoder(SubmitBody)


def no_such_job(name: str, index: int | None = None) -> ProblemError:
    """The problem of a job, or a task, that is not there."""
    if index is not None:
        return ProblemError(Problem(status=404, code="no_such_task", title=f"job {name} has no task {index}"))
    return ProblemError(Problem(status=404, code="no_such_job", title=f"no job {name}"))


def bad_request(title: str, detail: str = "") -> ProblemError:
    """A problem of whoever asked."""
    return ProblemError(Problem(status=400, code="bad_request", title=title, detail=detail))


class _JobHandler(Handler):
    def index(self) -> int | None:
        """That of the query."""
        text = self.get_query_argument("index", "")
        index = whole_number(text, "index") if text else None
        if index is not None and not 0 <= index <= _HIGHEST_INDEX:
            raise bad_request(f"index must be a number from 0 to {_HIGHEST_INDEX}, not {text[:40]}")
        return index

    def view(self, name: str, index: int | None = None) -> JobView:
        """A job, or one task of it; a problem where it is not there."""
        view = self.shell.view(name, index)
        if view is None:
            known = index is not None and self.shell.view(name) is not None
            raise no_such_job(name, index if known else None)
        return view


class JobsHandler(_JobHandler):
    """GET and POST /v1/jobs"""

    async def get(self) -> None:
        """Jobs, newest first."""
        ask = self.get_query_argument
        limit = min(_LISTED, max(1, whole_number(ask("limit", "50"), "limit")))
        label, notebook = ask("label", ""), ask("notebook", "")
        if label and "=" not in label:
            raise bad_request(f"label must be KEY=VALUE, not {label[:80]!r}")
        await committed(self.shell)
        views = self.shell.views(
            limit,
            state=self._state(),
            label=label or None,
            name=ask("name", "") or None,
            owner=ask("owner", "") or None,
            before=ask("before", "") or None,
        )
        self.answer([view for view in views if not notebook or view.notebook == notebook])

    def _state(self) -> State | None:
        text = self.get_query_argument("state", "")
        try:
            return State(text) if text else None
        except ValueError:
            names = ", ".join(state.value for state in State)
            raise bad_request(f"state must be one of {names}, not {text[:40]!r}") from None

    async def post(self) -> None:
        """A new job, or the one that its key made."""
        body: SubmitBody = parse(self.request.body, SubmitBody)
        future: asyncio.Future[JobView | Problem | None] = asyncio.get_running_loop().create_future()
        submit(self.shell, self.owner, body.key, body.spec, future.set_result)
        self.answer(settle(await future), 201)


class BatchHandler(_JobHandler):
    """POST /v1/jobs/batch"""

    async def post(self) -> None:
        """Many jobs, all or none."""
        raw: _RawBatch = parse(self.request.body, _RawBatch)
        if len(raw.jobs) > MAX_JOBS:
            raise bad_request(f"{len(raw.jobs)} jobs came with one request, and at most {MAX_JOBS} may")
        jobs: list[tuple[str, JobSpec]] = []
        for number, each in enumerate(raw.jobs):
            if number % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)
            try:
                body = _job.decode(each)
            except msgspec.MsgspecError as error:
                raise bad_request("the request's body is not of its form", f"$.jobs[{number}]: {error}") from error
            jobs.append((body.key, body.spec))
        future: asyncio.Future[list[str] | Problem] = asyncio.get_running_loop().create_future()
        self.shell.submit_batch(self.owner, jobs, future.set_result)
        ids = await future
        if isinstance(ids, Problem):
            raise ProblemError(ids)
        self.answer(BatchAnswer(jobs=ids), 201)


class StatesHandler(_JobHandler):
    """POST /v1/jobs/states"""

    async def post(self) -> None:
        """The states of many jobs; those that are not there are left out."""
        body: StatesBody = parse(self.request.body, StatesBody)
        if len(body.jobs) > MAX_JOBS:
            raise bad_request(f"{len(body.jobs)} jobs were asked for with one request, and at most {MAX_JOBS} may")
        await committed(self.shell)
        states: dict[str, State] = {}
        for first in range(0, len(body.jobs), _AT_ONCE):
            states |= self.shell.states(body.jobs[first : first + _AT_ONCE])
            await asyncio.sleep(0)
        self.answer(states)


class _Waiter:
    """Waits until a job is over."""

    def __init__(self) -> None:
        self.over = asyncio.Event()

    def update(self, view: JobView) -> None:
        """The job is another now."""
        if view.terminal:
            self.over.set()

    def wake(self) -> None:
        """Its stream grew."""


class JobHandler(_JobHandler):
    """GET /v1/jobs/ID"""

    async def get(self, name: str) -> None:
        """One job, at once or when it is over."""
        text = self.get_query_argument("wait", "")
        try:
            wait_s = min(MAX_WAIT_S, max(0.0, float(text or "0")))
        except ValueError:
            raise bad_request(f"wait must be a number of seconds, not {text[:40]!r}") from None
        await committed(self.shell)
        view = self.view(name)
        if wait_s > 0 and not view.terminal:
            await _over(self.shell, name, wait_s)
            await committed(self.shell)
            view = self.view(name)
        self.answer(view)


async def _over(shell: Shell, name: str, wait_s: float) -> None:
    """Return when a job is over, or after so many seconds."""
    waiter = _Waiter()
    shell.follow(name, waiter)
    try:
        await asyncio.wait_for(waiter.over.wait(), wait_s)
    except asyncio.TimeoutError:
        return
    finally:
        shell.unfollow(name, waiter)


class CancelHandler(_JobHandler):
    """POST /v1/jobs/ID/cancel"""

    async def post(self, name: str) -> None:
        """Store the wish to cancel; the answer shows 'cancelling' until the worker confirms."""
        body: CancelBody = parse(self.request.body or b"{}", CancelBody)
        self._own(name)
        if name not in self.shell.plane.jobs:
            view = self.shell.view(name)
            if view is not None:
                self.answer(view)  # it ended already: nothing is left to cancel
                return
        self.answer(await ask(self.shell, lambda r: CancelWanted(request=r, job=name, give_up=body.give_up)))

    def _own(self, name: str) -> None:
        """Only who may do everything cancels what others submitted."""
        problem = self.not_theirs(name, self.shell.owner_of(name))
        if problem is not None:
            raise ProblemError(problem)


class ExplainHandler(_JobHandler):
    """POST /v1/explain"""

    async def post(self) -> None:
        """What would become of such a job now, worker by worker; nothing is submitted."""
        body: ExplainBody = parse(self.request.body, ExplainBody)
        problem = asked.problem_of(body.requirements)
        if problem is not None:
            raise ProblemError(Problem(status=400, code="bad_job", title=problem))
        await committed(self.shell)
        plane, now = self.shell.plane, self.shell.clock.now()
        waits = body.wait_for_worker
        self.answer(explanation(plane, body.requirements, self.owner, now, wait_for_worker=waits))


class TasksHandler(_JobHandler):
    """GET /v1/jobs/ID/tasks"""

    async def get(self, name: str) -> None:
        """Its tasks, by index."""
        await committed(self.shell)
        views = self.shell.task_views(name)
        if views is None:
            raise no_such_job(name)
        self.answer(views)


class AttemptsHandler(_JobHandler):
    """GET /v1/jobs/ID/attempts"""

    async def get(self, name: str) -> None:
        """Every try, by index and number."""
        index = self.index()
        await committed(self.shell)
        views = self.shell.attempt_views(name, index)
        if views is None:
            raise no_such_job(name)
        self.answer(views)


class OutputsHandler(_JobHandler):
    """GET /v1/jobs/ID/outputs"""

    async def get(self, name: str) -> None:
        """The files that came back, of all tasks or of one."""
        index = self.index()
        await committed(self.shell)
        tasks = self.shell.task_views(name)
        if tasks is None:
            raise no_such_job(name)
        made = [(task.index, task.outcome.files) for task in tasks if task.outcome is not None and task.outcome.files]
        wanted = [(at, digest) for at, digest in made if index in (None, at)]
        self.answer(await asyncio.to_thread(self._read, wanted))

    def _read(self, wanted: list[tuple[int, str]]) -> list[OutputView]:
        """Blocking: reads manifests."""
        found: list[OutputView] = []
        for index, digest in wanted:
            try:
                manifest = Manifest.from_bytes(self.shell.blobs.read(digest))
            except FileNotFoundError:
                title = f"the list of files of task {index} is not here any more"
                raise ProblemError(Problem(status=410, code="no_such_blob", title=title, detail=digest)) from None
            found += [_output(index, each) for each in manifest.files]
        return found


def _output(index: int, entry: FileEntry) -> OutputView:
    raw = entry.path.encode(errors="surrogateescape")
    shown = raw.decode(errors="replace")
    return OutputView(
        index=index,
        path=shown,
        size=entry.size,
        sha256=entry.sha256,
        mode=entry.mode,
        raw=raw if shown != entry.path else b"",
    )


class LogsHandler(_JobHandler):
    """GET /v1/jobs/ID/logs"""

    async def get(self, name: str) -> None:
        """What its program wrote until now, as it wrote it; of a function all of its runners, one behind the other."""
        stream, tail = self.get_query_argument("stream", ""), self.get_query_argument("tail", "")
        if stream not in ("", "stdout", "stderr"):
            raise bad_request(f"stream must be stdout or stderr, not {stream[:40]!r}")
        last = whole_number(tail, "tail") if tail else None
        if last is not None and last < 0:
            raise bad_request(f"tail must be a number of bytes, not {last}")
        await committed(self.shell)
        index = self.index()
        view = self.view(name, index)
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.set_header("X-Content-Type-Options", "nosniff")
        attempts = [view.attempt] if view.attempt is not None else []
        if view.calls is not None and index is None:
            runs = self.shell.attempt_views(name, None) or []
            attempts = [each.id for each in sorted(runs, key=lambda each: each.assigned_at)]
        paths = [self.shell.streams.path(attempt) for attempt in attempts]
        pieces = joined_log(paths, stream=stream or None, tail=last)
        while piece := await asyncio.to_thread(next, pieces, b""):
            self.write(piece)
            await self.flush()

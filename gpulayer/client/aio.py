"""`gl.AsyncClient`: the same as `gl.Client`, to be awaited.

What is decided is decided by the blocking client's own code: it reads folders and sends them in a thread. What only
waits (for an answer, a job's end, the next output) holds none.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from gpulayer.client import asks
from gpulayer.client.api import PATIENCE_S, Tries
from gpulayer.client.asks import Ask, Away, Output
from gpulayer.client.client import Client
from gpulayer.client.command import Command, asked
from gpulayer.client.errors import RequestRefused
from gpulayer.client.explanation import ASK_AGAIN_S, Explanation, starting
from gpulayer.client.job import Job
from gpulayer.client.tls import httpx_options
from gpulayer.client.waiting import Step, all_ended, ended
from gpulayer.placement import Placing, spelled_out
from gpulayer.protocol.types import JobView, Outcome, State, WorkerView

if TYPE_CHECKING:
    import httpx
    from typing_extensions import Unpack

    from gpulayer.client.files import Came

T = TypeVar("T")

_TIMEOUT_S = 30.0
_HELD_NEWS = 64  # of a stream whose reader is slow


class AsyncJob:
    """A job by its id; see `Job` for what each method gives and raises."""

    def __init__(self, job_id: str, client: AsyncClient):
        self.id = job_id
        self._client = client

    async def status(self) -> JobView:
        """The job as it is now."""
        return await self._client.ask(asks.job(self.id))

    async def wait(self, timeout: float | None = None) -> JobView:
        """The job once it has ended, or as it is `timeout` seconds later."""
        return await self._client.carry(ended(self.id, timeout, time.monotonic))

    async def result(self, timeout: float | None = None) -> Outcome:
        """How it ended, once it succeeded."""
        from gpulayer.client.ending import judged

        view = await self.wait(timeout)
        if not view.terminal:
            raise TimeoutError(f"job {self.id} has not ended within {timeout:g} s: {view.state.value}")
        return judged(view)

    async def logs(self, stream: str | None = None, index: int | None = None) -> str:
        """What it wrote so far."""
        answer = await self._client.ask(asks.logs(self.id, index=index, stream=stream or ""))
        return answer.decode(errors="replace")

    async def cancel(self) -> JobView:
        """End it."""
        return await self._client.ask(asks.cancel(self.id))

    async def outputs(self) -> list[Output]:
        """The files that it left."""
        return await self._client.ask(asks.outputs(self.id))

    async def download(self, to: str | Path | None = None) -> Came:
        """Fetch those files."""
        return await self._client.download(self.id, to)

    def __repr__(self) -> str:
        return f"<gpulayer job {self.id}>"


class AsyncClient:
    """See `Client`: the same arguments, and methods of the same names that are awaited.

    async with gl.AsyncClient() as client:
        job = await client.submit("make all", source=".")
        await job.result()
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        fingerprint: str | None = None,
        data: str | Path | None = None,
    ):
        """Nothing is started or asked yet."""
        self._blocking = Client(url, token, fingerprint, data)
        self._client: httpx.AsyncClient | None = None

    async def submit(self, argv: Any, **options: Any) -> AsyncJob:
        """Submit a command; `options` are those of `Client.submit`."""
        return self.job((await asyncio.to_thread(partial(self._blocking.submit, argv, **options))).id)

    async def submit_batch(self, commands: Iterable[Command | Mapping[str, Any]]) -> list[AsyncJob]:
        """Submit many commands."""
        return [self.job(job.id) for job in await asyncio.to_thread(self._blocking.submit_batch, list(commands))]

    @spelled_out
    async def explain(self, **placement: Unpack[Placing]) -> Explanation:
        """Where a job would run now, or why it would not; `placement` as in `Client.explain`."""
        ask = asked(placement)
        explanation = await self.ask(ask)
        while starting(explanation):
            await asyncio.sleep(ASK_AGAIN_S)
            explanation = await self.ask(ask)
        return explanation

    def job(self, job_id: str) -> AsyncJob:
        """A job by its id, which is not looked up yet."""
        return AsyncJob(job_id, self)

    async def jobs(self, limit: int = 50, **narrowed: str) -> list[JobView]:
        """The last jobs, newest first; `narrowed` as in `Client.jobs`."""
        return await self.ask(asks.jobs(limit, **narrowed))

    async def workers(self) -> list[WorkerView]:
        """Every machine that is known."""
        return await self.ask(asks.workers())

    async def wait(self, jobs: Iterable[AsyncJob | Job | str], timeout: float | None = None) -> dict[str, State]:
        """The states of many jobs once all have ended, or `timeout` seconds later."""
        ids = [each if isinstance(each, str) else each.id for each in jobs]
        return await self.carry(all_ended(ids, timeout, time.monotonic))

    async def stream(self, job: AsyncJob | Job | str, index: int | None = None) -> AsyncIterator[tuple[str, bytes]]:
        """What a job writes, as it comes: ('stdout' or 'stderr', bytes)."""
        name = job if isinstance(job, str) else job.id
        loop, news = asyncio.get_running_loop(), asyncio.Queue[Any](_HELD_NEWS)
        reading = self._blocking.stream(name, index)

        def read() -> None:
            """In a thread of its own: a slow reader is waited for."""
            last: Any = None
            try:
                for each in reading:
                    asyncio.run_coroutine_threadsafe(news.put(each), loop).result()
            except Exception as error:  # noqa: BLE001 it is raised where the stream is read
                last = error
            asyncio.run_coroutine_threadsafe(news.put(last), loop).result()

        task = asyncio.ensure_future(asyncio.to_thread(read))
        while isinstance(each := await news.get(), tuple):
            yield each
        await task
        if each is not None:
            raise each

    async def download(self, job: AsyncJob | Job | str, to: str | Path | None = None) -> Came:
        """Fetch the files that a job left; see `Client.download`."""
        name = job if isinstance(job, str) else job.id
        return await asyncio.to_thread(self._blocking.download, name, to)

    # ---------------------------------------------------------------- what it stands on

    async def ask(self, ask: Ask[T], *, patience_s: float = PATIENCE_S) -> T:
        """One request; asked again while the control plane is away, as `Api.ask` does."""
        import httpx

        api = self._blocking.api
        tries = Tries(patience_s=patience_s if api.met else 0.0)
        while True:
            try:
                if self._client is None:
                    endpoint = await asyncio.to_thread(lambda: api.endpoint)
                    options = await asyncio.to_thread(httpx_options, endpoint)
                    self._client = httpx.AsyncClient(timeout=_TIMEOUT_S, **options)
                timeout = httpx.Timeout(_TIMEOUT_S, read=_TIMEOUT_S + ask.takes_s, pool=None)
                answer = await self._client.request(ask.method, ask.path, content=ask.content, timeout=timeout)
                typed = ask.answer(answer.status_code, answer.content)
                api.met = True
                return typed
            except (httpx.TransportError, Away, OSError, RequestRefused) as error:
                pause_s = tries.pause_s(error, ask, "the control plane")
            await self._forget()
            await asyncio.sleep(pause_s)

    async def carry(self, steps: Step[T]) -> T:
        """Ask step after step."""
        answer: Any = None
        try:
            while True:
                answer = await self.ask(steps.send(answer), patience_s=float("inf"))
        except StopIteration as end:
            return end.value

    async def _forget(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()
        self._blocking.api.close()

    async def close(self) -> None:
        """Leave the control plane; jobs go on."""
        await self._forget()
        await asyncio.to_thread(self._blocking.close)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

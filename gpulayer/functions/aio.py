"""The same, to be awaited: whoever waits holds no thread, and any number may wait at once."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator
from typing import Any, Generic, ParamSpec, TypeVar

from gpulayer.functions.handles import Call
from gpulayer.functions.options import CallRefused
from gpulayer.functions.remote import Callee, starred, zipped
from gpulayer.functions.results import one_by_one
from gpulayer.functions.running import Arguments, Run

P = ParamSpec("P")

R = TypeVar("R")


class _News:
    """Tells a coroutine that something came for a run."""

    def __init__(self, run: Run) -> None:
        self._loop = asyncio.get_running_loop()
        self._came = asyncio.Event()
        self._run = run
        run.mends_later = True
        run.subscription.told = self._tell
        run.hub.connection.leave(for_long=True)  # this thread will not read

    def _tell(self) -> None:
        """From any thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._came.set)

    async def take(self, enough: Callable[[], bool]) -> None:
        """Take what comes until there is enough. What may block is done in a thread."""
        run = self._run
        while True:
            self._came.clear()
            run.poll(pumps=False)
            if run.unmended is not None:
                await asyncio.to_thread(run.mend)
            elif enough():
                return
            elif not (run.wants_to_send and await asyncio.to_thread(run.pump)):
                await self._came.wait()


async def opened(make: Callable[[], Run]) -> Run:
    """A run that a thread opens: a first call may start a control plane, and reads files."""
    task = asyncio.ensure_future(asyncio.to_thread(make))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(lambda done: done.cancelled() or done.exception() or done.result().abandon())
        raise


async def awaited(run: Run, over: Callable[[], bool], settled: Callable[[], R]) -> R:
    """The result of a call that goes on also where nobody awaits it any more."""
    if not over():
        await _News(run).take(over)
    return settled()


async def values(run: Run, *, return_exceptions: bool) -> AsyncGenerator[Any, None]:
    """The results of a map, as `running.values` gives them. Closed before its end, the map is cancelled."""
    try:
        news = _News(run)
        while True:
            await news.take(lambda: run.has_runs or run.ended)
            runs = run.take_runs()
            if not runs:
                break
            for each in runs:
                for value in one_by_one(run, each, return_exceptions):
                    yield value
        run.check_end()
    finally:
        run.leave()


async def items(run: Run) -> AsyncGenerator[Any, None]:
    """What a generator's call yields, as it comes. Closed before its end, the call is cancelled."""
    number = 0
    try:
        news = _News(run)
        while True:
            await news.take(lambda: run.has_runs or run.ended or bool(run.items.get(0)))
            found = run.items.get(0, {})
            if number in found:
                yield run.value(found.pop(number))
                number += 1
                continue
            run.only_value()
            break
    finally:
        run.leave()


class AsyncItems(Generic[R]):
    """Results as they come: an asynchronous iterator. Left by `aclose`, or an error, the rest is cancelled."""

    def __init__(self, make: Callable[[], Run], read: Callable[[Run], AsyncGenerator[R, None]]):
        self._make = make
        self._read = read
        self._values: AsyncGenerator[R, None] | None = None
        self._run: Run | None = None

    def __aiter__(self) -> AsyncIterator[R]:
        return self

    async def __anext__(self) -> R:
        return await (await self._opened()).__anext__()

    async def _opened(self) -> AsyncGenerator[R, None]:
        if self._values is None:
            self._run = await opened(self._make)
            self._values = self._read(self._run)
        return self._values

    async def id(self) -> str:
        """The map's id, once the control plane has it."""
        await self._opened()
        run = self._run
        if run is None:
            return ""
        if not run.subscription.id:
            await _News(run).take(lambda: bool(run.subscription.id) or run.ended)
        return run.subscription.id

    def cancel(self) -> None:
        """End it: what waits is dropped, what runs is interrupted."""
        if self._run is not None:
            self._run.cancel()

    async def aclose(self) -> None:
        """Take nothing more: what is not over is cancelled."""
        if self._values is not None:
            await self._values.aclose()
        if self._run is not None:
            self._run.leave()


async def nothing() -> AsyncGenerator[Any, None]:
    """The results of a map of nothing."""
    for value in ():
        yield value


class AsyncFunction(Generic[P, R]):
    """A remote function whose calls are awaited."""

    def __init__(self, function: Callee):
        self._function = function

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call it; see `RemoteFunction.__call__`. Cancelled, the call is."""
        run = await opened(lambda: self._function.one(args, kwargs))
        try:
            return await awaited(run, lambda: run.has_runs or run.ended, run.only_value)
        finally:
            run.leave()

    async def spawn(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """Call it, and go on: `await call` waits for the result."""
        return Call(await opened(lambda: self._function.one(args, kwargs)))

    def items(self, *args: P.args, **kwargs: P.kwargs) -> AsyncItems[Any]:
        """What a generator yields, as it comes: `async for item in f.items(x)`."""
        return AsyncItems(lambda: self._function.one(args, kwargs), items)

    def map(
        self,
        iterable: Iterable[Any],
        /,
        *more: Iterable[Any],
        ordered: bool = True,
        return_exceptions: bool = False,
        chunk: int | None = None,
        progress: bool | None = None,
    ) -> AsyncIterator[R]:
        """The results of many calls, by `async for`; see `RemoteFunction.map`."""
        return self._many(
            *zipped(self._function.signature, iterable, more), return_exceptions, ordered, chunk, progress
        )

    def starmap(
        self,
        iterable: Iterable[Iterable[Any]],
        /,
        *,
        ordered: bool = True,
        return_exceptions: bool = False,
        chunk: int | None = None,
        progress: bool | None = None,
    ) -> AsyncIterator[R]:
        """The same where each call has a tuple of arguments."""
        return self._many(*starred(self._function.signature, iterable), return_exceptions, ordered, chunk, progress)

    def _many(
        self,
        arguments: Iterator[Arguments],
        total: int | None,
        return_exceptions: bool,
        ordered: bool,
        chunk: int | None,
        progress: bool | None,
    ) -> AsyncIterator[R]:
        if total == 0:
            return nothing()

        def make() -> Run:
            made = self._function.many(
                arguments,
                total,
                ordered=ordered,
                return_exceptions=return_exceptions,
                chunk=chunk,
                progress=progress,
            )
            if made is None:
                raise CallRefused("a map of nothing has no results")
            return made

        return AsyncItems(make, functools.partial(values, return_exceptions=return_exceptions))

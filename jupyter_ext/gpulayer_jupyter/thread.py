"""A thread with an event loop: what runs there does not wait for Jupyter's own loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class ThreadEnded(RuntimeError):
    """The thread does not run: not yet, or not any more."""


class LoopThread:
    """One thread, one loop. `start`, `submit` and `run` may be called from any thread."""

    def __init__(self, name: str):
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._started = threading.Event()

    def start(self) -> None:
        """Start it; its loop runs when this returns."""
        self._thread.start()
        self._started.wait()

    def submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Run a coroutine there. Raises `ThreadEnded`."""
        try:
            if self._loop is None or self._ended.done():
                raise ThreadEnded(f"the thread {self._name} does not run")
            return asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError as error:  # `ThreadEnded`, or what a closed loop raises
            work.close()
            raise ThreadEnded(str(error)) from error

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine there and wait for it here. Raises `ThreadEnded`, and what it raises."""
        return await asyncio.wrap_future(self.submit(work))

    async def stop(self) -> None:
        """End the loop, with whatever still runs on it, and then the thread."""
        if self._loop is None or self._ended.done():
            return
        self._loop.call_soon_threadsafe(self._stopping.set)
        await asyncio.wrap_future(self._ended)
        self._thread.join()  # nothing is left for it to do

    def _main(self) -> None:
        try:
            asyncio.run(self._until_stopped())
        finally:
            self._started.set()
            self._ended.set_result(None)

    async def _until_stopped(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._started.set()
        await self._stopping.wait()

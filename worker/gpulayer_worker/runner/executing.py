"""One call: its arguments, the user's code, its result."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import TYPE_CHECKING, Any

from . import blobs, failures
from .inbox import Batch

if TYPE_CHECKING:
    import asyncio

OK, RAISED, VALUE_REFUSED = 0, 1, 2  # as in gpulayer.protocol.calls

_SPECIAL = frozenset({CoroutineType, GeneratorType, AsyncGeneratorType})


class Executor:
    """Runs calls of one function, or of an object's methods, in the main thread."""

    def __init__(self, codec: Any, worker: str, results: blobs.Results, item: Callable[[int, bytes], None]) -> None:
        """`codec` is the module of the values; `item` takes the items of a generator, by their number."""
        self.target: Any = None  # the function, or the object
        self.failure: dict[str, Any] | None = None  # why there is none
        self.stateful = False
        self.spent_ns = 0  # of the last call
        self.ended_ns = 0
        self._codec = codec
        self._unpack_call = codec.unpack_call
        self._pack = codec.pack
        self._put = results.put
        self._worker = worker
        self._results = results
        self._item = item
        self._refs = blobs.Refs(self._unpack_ref, 1 << 30)
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, batch: Batch, interrupts: Any, inbox: Any) -> tuple[int, bytes]:
        """Runs the call that the inbox has begun; its code and its packed result, or failure."""
        self.spent_ns = 0
        try:
            if self.failure is not None:
                return RAISED, failures.pack(self.failure)
            try:
                data = batch.args[batch.at - 1]
                args, kwargs = self._with_blobs(data, batch.blobs) if batch.blobs else self._unpack_call(data)
                function = getattr(self.target, batch.method) if batch.method else self.target
            except Exception as error:  # noqa: BLE001 - told to whoever called
                return VALUE_REFUSED, failures.pack(self._bad_arguments(error))
            inbox.began_ns = began = time.monotonic_ns()
            try:
                interrupts.arm()
                value = function(*args, **kwargs)
                if type(value) in _SPECIAL:
                    value = self._finish(value, batch.stream)
                interrupts.armed = False
            except BaseException as error:  # noqa: BLE001 - SystemExit too ends the call, and not the runner
                interrupts.armed = False
                self._settle(began)
                return RAISED, failures.pack(failures.of_exception(error, self._worker))
            self._settle(began)
            return self._packed(value)
        except KeyboardInterrupt as error:  # it came while another exception was being taken
            return RAISED, failures.pack(failures.of_exception(error, self._worker))

    def make(self, init: bytes, places: dict[str, Any]) -> None:
        """Makes the object of a class, of its packed arguments. Raises whatever that raises."""
        args, kwargs = self._with_blobs(init, places)
        self.target = self.target(*args, **kwargs)
        self.stateful = True

    def _settle(self, began: int) -> None:
        self.ended_ns = time.monotonic_ns()
        self.spent_ns = self.ended_ns - began

    def _with_blobs(self, data: bytes, places: dict[str, Any]) -> Any:
        return self._unpack_call(
            data,
            blob=lambda digest, size: blobs.fetch(places, digest, size),
            ref=lambda digest, size: self._refs.get(places, digest, size),
        )

    def _unpack_ref(self, data: Any, places: Any) -> Any:
        return self._codec.unpack(data, blob=lambda digest, size: blobs.fetch(places, digest, size))

    def _bad_arguments(self, error: Exception) -> dict[str, Any]:
        text = f"the arguments could not be read: {error}" if not isinstance(error, AttributeError) else str(error)
        return failures.of_text("value", type(error).__name__, text, self._worker)

    def _packed(self, value: Any) -> tuple[int, bytes]:
        try:
            return OK, self._pack(value, blob=self._put, name="result")
        except Exception as error:  # noqa: BLE001 - told to whoever called
            self._results.abandon()
            refused = isinstance(error, self._codec.ValueRefused)
            text = str(error) if refused else f"the result could not be written: {error}"
            return VALUE_REFUSED, failures.pack(
                failures.of_text("value", "ValueRefused" if refused else type(error).__name__, text, self._worker)
            )

    # ------------------------------------------------------------------------------------ generators and coroutines

    def _finish(self, value: Any, stream: bool) -> Any:
        """The result of what a generator function or a coroutine function has returned."""
        if type(value) is CoroutineType:
            return self._await(value)
        take = self._streamed if stream else None
        if type(value) is GeneratorType:
            items = []
            for number, item in enumerate(value):
                take(number, item) if take else items.append(item)
        else:
            items = self._await(self._gathered(value, take))
        return None if stream else items

    async def _gathered(self, generator: Any, take: Callable[[int, Any], None] | None) -> list[Any]:
        items: list[Any] = []
        number = 0
        async for item in generator:
            take(number, item) if take else items.append(item)
            number += 1
        return items

    def _streamed(self, number: int, item: Any) -> None:
        self._item(number, self._codec.pack(item, name=f"item[{number}]"))

    def _await(self, coroutine: Any) -> Any:
        """Runs a coroutine in this process's loop, so that what a module keeps there stays of use."""
        import asyncio  # a quarter of the time that a runner needs to start

        if self._loop is None or self._loop.is_closed():
            self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self._loop)
        try:
            return self._loop.run_until_complete(coroutine)
        finally:
            if not self.stateful:
                self._end_tasks(self._loop)

    def _end_tasks(self, loop: asyncio.AbstractEventLoop) -> None:
        """Cancels what a call has left behind."""
        import asyncio

        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))

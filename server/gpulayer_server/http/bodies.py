"""Large bodies of requests and answers, with few copies and steps of the loop for each megabyte.

tornado's own way takes a body in pieces of what one read of its socket brings, each copied twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from tornado import httputil, iostream

from gpulayer.source import PackError
from gpulayer.source.blobs import Span
from gpulayer.source.pack import Pieces, Stream
from gpulayer.source.spans import SpanReader, read_at
from gpulayer.source.streams import Wakes, unpaced

__all__ = ["Upload", "send_span"]

T = TypeVar("T")

_PIECE_BYTES = 1 << 19
_PIECES = 6  # of an upload wait at most for the thread that stores them
_KEPT = 12  # pieces of memory, of all requests
_HAND_OVER_S = 1.0  # a piece that fills slowly is not waited for
_STALLED_S = 300.0


class Upload(Generic[T]):
    """Hands a body from the loop to a thread that stores it, a few MB ahead at most.

    Where that fails the rest of the body is let go by, so that the client reads why.
    """

    def __init__(self, store: Callable[[Stream], T]):
        self._store = store
        self._chunks: queue.SimpleQueue[bytes | memoryview] = queue.SimpleQueue()
        self._more = _PIECES  # pieces of memory that may be taken; owned by the loop, as `_free` and `_waiting` are
        self._free: list[bytearray] = []
        self._waiting = 0
        self._read: bytes | memoryview = b""  # owned by the thread
        self._room = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._outcome: asyncio.Future[T | Exception] = self._loop.create_future()
        threading.Thread(target=self._run, name="upload", daemon=True).start()

    async def take(self, request: httputil.HTTPServerRequest, most_bytes: int) -> None:
        """Read the body of a request whose handler streams it, from within its `prepare`; tornado reads none then.

        One that is longer than `most_bytes`, or says no length, is left to tornado; so is one that breaks off, once
        what came of it was taken.
        """
        text = request.headers.get("Content-Length", "")
        special = "Transfer-Encoding" in request.headers or "Expect" in request.headers
        stream: Any = getattr(request.connection, "stream", None)
        if special or stream is None or not text.isascii() or not text.isdecimal() or not 0 < int(text) <= most_bytes:
            return
        wakes = Wakes(None if isinstance(stream, iostream.SSLIOStream) else stream.socket)
        try:
            await self._take(stream, int(text), wakes)
            request.headers["Content-Length"] = "0"
        except iostream.StreamClosedError:
            return
        finally:
            wakes.at(0)
            self._over = True
            while self._free:
                _memory.append(self._free.pop())
            del _memory[_KEPT:]

    _over = False  # no more is read

    async def _take(self, stream: iostream.IOStream, left_bytes: int, wakes: Wakes) -> None:
        while left_bytes:
            buffer = await self._buffer()
            view = memoryview(buffer)[:left_bytes]
            filled, begun_s = 0, self._loop.time()
            try:
                while filled < len(view) and (not filled or self._loop.time() - begun_s < _HAND_OVER_S):
                    filled += await stream.read_into(view[filled:], partial=True)  # type: ignore[arg-type]
                    wakes.at(len(view) - filled if filled < len(view) else left_bytes - filled)
            finally:
                self._put(view[:filled])
            left_bytes -= filled
            await asyncio.sleep(0)  # who sends quickly leaves the loop to others too

    async def _buffer(self) -> bytearray:
        if not self._free and self._more:
            self._more -= 1
            return _memory.pop() if _memory else bytearray(_PIECE_BYTES)
        while not self._free:
            self._room.clear()
            await self._room.wait()
        return self._free.pop()

    def _put(self, view: memoryview) -> None:
        if self._outcome.done() or not len(view):
            self._give_back(view)
        else:
            self._chunks.put(view)

    def _give_back(self, view: memoryview) -> None:
        if self._over:
            _keep(view)
        else:
            self._free.append(view.obj)  # type: ignore[arg-type]
            self._room.set()

    async def feed(self, chunk: bytes) -> None:
        """Take a part; waits while too much of it is not stored yet."""
        if self._outcome.done():
            return
        self._chunks.put(chunk)
        self._waiting += len(chunk)
        while self._waiting > _PIECES * _PIECE_BYTES and not self._outcome.done():
            self._room.clear()
            await self._room.wait()

    async def finish(self) -> T:
        """All of it came; raises what the storing raised."""
        self._chunks.put(b"")
        outcome = await self._outcome
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def abandon(self) -> None:
        """No more will come."""
        self._chunks.put(b"")

    def _run(self) -> None:
        try:
            outcome = self._store(Pieces(self._next))
        except Exception as error:  # noqa: BLE001 raised where the request is answered
            outcome = error
        self._tell(self._end, outcome)

    def _next(self) -> bytes | memoryview:
        if self._read:
            self._tell(self._was_read, self._read)
        try:
            self._read = self._chunks.get(timeout=_STALLED_S)
        except queue.Empty:
            self._read = b""
            raise PackError(f"nothing came for {_STALLED_S:.0f} s; send it again") from None
        return self._read

    def _tell(self, function: Callable[..., object], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended, and all requests with it
            self._loop.call_soon_threadsafe(function, *arguments)

    def _was_read(self, piece: bytes | memoryview) -> None:
        if isinstance(piece, memoryview):
            self._give_back(piece)
        else:
            self._waiting -= len(piece)
            self._room.set()

    def _end(self, outcome: T | Exception) -> None:
        self._outcome.set_result(outcome)
        if isinstance(self._read, memoryview):
            self._give_back(self._read)
        with contextlib.suppress(queue.Empty):  # what waited is let go by
            while True:
                self._was_read(self._chunks.get_nowait())
        self._room.set()


async def send_span(connection: httputil.HTTPConnection, span: Span) -> None:
    """Send a file's part, after the headers. At once where it is in memory, else it is read in a thread.

    Raises OSError, `StreamClosedError`.
    """
    stream: Any = getattr(connection, "stream", None)
    if isinstance(stream, iostream.IOStream) and stream.socket is not None:
        unpaced(stream.socket)
    view = memoryview(_memory.pop() if _memory else bytearray(_PIECE_BYTES))
    at, end = span.offset, span.offset + span.size
    with SpanReader() as reader:
        descriptor = reader.descriptor(span.path)
        while at < end:
            piece: Any = view[: end - at]
            count = _read_now(descriptor, piece, at)
            if count is None:
                piece = await asyncio.to_thread(read_at, descriptor, len(piece), at)
                count = len(piece)
            if not count:
                return  # it was cut short: tornado closes the connection, and so the other side knows
            await connection.write(piece[:count])
            await asyncio.sleep(0)  # who reads quickly leaves the loop to others too
            at += count
    _keep(view)  # of one that broke off something may still be on its way


_memory: list[bytearray] = []  # of pieces that are used no more: new memory costs a third of what is done with it


def _keep(view: memoryview) -> None:
    if len(_memory) < _KEPT:
        _memory.append(view.obj)  # type: ignore[arg-type]


_NOW = getattr(os, "RWF_NOWAIT", 0)  # of Linux


def _read_now(descriptor: int, target: memoryview, offset: int) -> int | None:
    """Read what is in memory already; how much, None where a disk would have to be waited for."""
    if not _NOW:
        return None
    try:
        return os.preadv(descriptor, [target], offset, _NOW)
    except OSError:  # nothing of it is; or a file system that doesn't say
        return None

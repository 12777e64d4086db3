"""A websocket whose frames cost few turns of the loop. The protocol is tornado's; what it reads comes from here.

Tornado reads a frame in four steps: two bytes, its length, its mask, its data. Here what has come is taken at once, and
the steps read from that: one wake-up for a small frame. A frame that is sent goes to the stream as it is, without the
task that tornado makes for each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, Protocol

from tornado import websocket
from tornado.iostream import IOStream, StreamClosedError

from gpulayer_server.http.base import Socket

_AHEAD_BYTES = 64 * 1024
_BINARY = 0x82  # a whole message, in one frame


class Stream(Protocol):
    """What is read: an `IOStream`."""

    def read_bytes(self, num_bytes: int, partial: bool = False) -> Awaitable[bytes]: ...


class ReadAhead:
    """A stream that is read by what has come, not by what is asked for. All but reading is the stream's own."""

    def __init__(self, stream: Stream):
        self._stream = stream
        self._data = b""
        self._at = 0  # what is before it was given

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def read_bytes(self, num_bytes: int) -> bytes:
        """So many bytes. Raises `StreamClosedError`."""
        start, end = self._at, self._at + num_bytes
        if end <= len(self._data):
            self._at = end
            return self._data[start:end]
        return await self._more(self._data[start:], num_bytes)

    async def _more(self, data: bytes, num_bytes: int) -> bytes:
        """`data`, and as much as lacks of `num_bytes`."""
        self._data, self._at = b"", 0
        lacking = num_bytes - len(data)
        if lacking >= _AHEAD_BYTES:
            return data + await self._stream.read_bytes(lacking)
        while len(data) < num_bytes:
            coming = self._stream.read_bytes(_AHEAD_BYTES, partial=True)
            if isinstance(coming, asyncio.Future) and coming.done():
                await asyncio.sleep(0)  # whoever sends without a pause leaves others their turn
            data += await coming
        self._data, self._at = data, num_bytes
        return data[:num_bytes]


class FrameSocket(Socket):
    """A websocket of binary frames. `on_message` is handed one after the other, and what it returns is waited for."""

    def open(self, *args: str, **kwargs: str) -> None:
        """Read ahead from here on."""
        super().open(*args, **kwargs)
        connection = self.ws_connection
        if connection is not None and connection.stream is not None:
            connection.stream = _as_stream(ReadAhead(connection.stream))

    def write_frame(self, frame: bytes) -> asyncio.Future[None] | None:
        """See `Socket.write_frame`."""
        connection = self.ws_connection
        stream = connection.stream if connection is not None else None
        if connection is None or stream is None or connection.is_closing():
            raise websocket.WebSocketClosedError
        try:
            sent = stream.write(_head(len(frame)) + frame)
        except StreamClosedError:
            raise websocket.WebSocketClosedError from None
        return sent if stream.writing() else None


def _as_stream(stream: Any) -> IOStream:
    return stream


def _head(size_bytes: int) -> bytes:
    """What stands before a message of so many bytes, by RFC 6455: from a server, without a mask."""
    if size_bytes < 126:
        return bytes((_BINARY, size_bytes))
    if size_bytes < 1 << 16:
        return bytes((_BINARY, 126)) + size_bytes.to_bytes(2, "big")
    return bytes((_BINARY, 127)) + size_bytes.to_bytes(8, "big")

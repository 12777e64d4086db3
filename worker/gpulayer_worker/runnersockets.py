"""The two sockets of a runner, from the agent's side."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Protocol

from gpulayer_worker.runner import wire

_ANSWER_BYTES = 1 << 20


class Hearer(Protocol):
    """Whoever hears what a runner says."""

    def connected(self, data: Data) -> None:
        """The data connection is open."""
        ...

    def said(self, frames: list[wire.Frame]) -> None:
        """It said something."""
        ...

    def lost(self, data: Data) -> None:
        """A data connection is closed."""
        ...

    def on_fault(self, error: Exception) -> None:
        """Something in one of these failed."""
        ...


class Data(asyncio.Protocol):
    """A connection to the data socket: frames are given on in the turn of the loop in which they come."""

    def __init__(self, runner: Hearer):
        self._runner = runner
        self._splitter = wire.Splitter()
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if isinstance(transport, asyncio.WriteTransport):
            self._transport = transport
        self._runner.connected(self)

    def data_received(self, data: bytes) -> None:
        try:
            frames = self._splitter.feed(data)
            if frames:
                self._runner.said(frames)
        except Exception as error:  # noqa: BLE001 - the loop would only log it
            self._runner.on_fault(error)

    def connection_lost(self, exc: Exception | None) -> None:
        try:
            self._runner.lost(self)
        except Exception as error:  # noqa: BLE001 - as above
            self._runner.on_fault(error)

    def write(self, data: bytes) -> None:
        """Send, now or as the other side reads."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()


class Control:
    """A connection to the control socket, made when something is asked. One question at a time."""

    def __init__(self, path: Path):
        self._path = path
        self._turn = asyncio.Lock()
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Raises OSError, or ValueError for what is no answer."""
        async with self._turn:
            if self._streams is None:
                self._streams = await asyncio.open_unix_connection(str(self._path), limit=_ANSWER_BYTES)
            reader, writer = self._streams
            try:
                writer.write(wire.write_object(request))
                line = await reader.readline()
                if not line.endswith(b"\n"):
                    raise ConnectionResetError("the connection was closed")
                return wire.read_object(line)
            except BaseException:  # an answer that comes later would be taken for another one's
                self.close()
                raise

    def close(self) -> None:
        """Close the connection."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

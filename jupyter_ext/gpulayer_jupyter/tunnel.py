"""Websockets through Jupyter's port: after the handshake their bytes go by Jupyter's loop, on a thread of our own.

A handler of another extension that holds Jupyter's loop so delays none of them. Frames are not looked at: pings,
closing codes and the pressure of a slow reader pass from end to end.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from dataclasses import dataclass

from tornado.iostream import IOStream, SSLIOStream, StreamClosedError

from gpulayer_jupyter.place import Place
from gpulayer_jupyter.upstream import Away, Head, Request, ask

_READ_BYTES = 65_536
_LAST_WORDS_S = 5.0
_REFUSAL_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Shaken:
    """What a control plane answered to a handshake; without a stream it refused."""

    head: Head
    stream: IOStream | None = None
    body: bytes = b""


async def shake_hands(place: Place, request: Request) -> Shaken:
    """Ask the control plane to upgrade, on the loop on which its stream will live. Raises `Away`."""
    exchange, head = await ask(place, request)
    if head.status == 101:
        return Shaken(head=head, stream=exchange.stream)
    body = bytearray()

    async def keep(chunk: bytes) -> None:
        if len(body) + len(chunk) > _REFUSAL_BYTES:
            raise Away(f"{exchange.endpoint.url} answers a handshake with too many words")
        body.extend(chunk)

    try:
        await exchange.copy(keep)
    finally:
        exchange.close()
    return Shaken(head=head, body=bytes(body))


async def close(stream: IOStream) -> None:
    """Close a stream on its own loop."""
    stream.close()


def release(stream: IOStream) -> tuple[socket.socket, bytes]:
    """A stream's socket, taken off its loop, and what came on it and was not read yet. Raises `StreamClosedError`."""
    client = stream.socket
    if client is None:
        raise StreamClosedError
    waiting = asyncio.ensure_future(stream.read_bytes(stream.max_buffer_size, partial=True))
    early = waiting.result() if waiting.done() else b""
    stream.set_close_callback(None)
    stream.io_loop.remove_handler(stream.fileno())
    return client, early


class Tunnels:
    """The tunnels of one loop."""

    def __init__(self) -> None:
        self._open: set[asyncio.Task[None]] = set()

    async def add(self, client: socket.socket, early: bytes, upstream: IOStream) -> None:
        """Join a client's socket to a stream of this loop, until one of the two ends; then both are closed."""
        client.setblocking(False)
        stream = SSLIOStream(client) if isinstance(client, ssl.SSLSocket) else IOStream(client)
        task = asyncio.ensure_future(_join(stream, early, upstream))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def close(self) -> None:
        """End all of them."""
        tasks = list(self._open)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _join(client: IOStream, early: bytes, upstream: IOStream) -> None:
    try:
        client.set_nodelay(True)
        if early:
            await upstream.write(early)
        up, down = asyncio.ensure_future(_pump(client, upstream)), asyncio.ensure_future(_pump(upstream, client))
        try:
            await asyncio.wait([up, down], return_when=asyncio.FIRST_COMPLETED)
            if upstream.closed():  # its last words may still be on their way
                await asyncio.wait([down], timeout=_LAST_WORDS_S)
        finally:
            up.cancel()
            down.cancel()
            await asyncio.gather(up, down, return_exceptions=True)
    except StreamClosedError:
        return
    finally:
        client.close()
        upstream.close()


async def _pump(source: IOStream, sink: IOStream) -> None:
    """Until the source ends; then all that came of it has been handed to the operating system."""
    try:
        while True:
            await sink.write(await source.read_bytes(_READ_BYTES, partial=True))
    except StreamClosedError:
        return

"""A client's socket, taken off one loop and joined to a stream of another."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tornado.iostream import IOStream, StreamClosedError

from gpulayer_jupyter.thread import LoopThread
from gpulayer_jupyter.tunnel import Tunnels, release
from tests.support.processes import PATIENCE_S, until


class Ends:
    """A tunnel's two outer ends, as blocking sockets; the inner ones are its own."""

    def __init__(self, thread: LoopThread, tunnels: Tunnels):
        self.client, inner = _pair()
        self.upstream, other = _pair()
        self._thread = thread
        self._tunnels = tunnels
        self._inner, self._other = inner, other

    def open(self, before: bytes = b"") -> Ends:
        """Take the client's end off a loop that is there for that only. `before` has come with the handshake."""

        async def taken() -> tuple[socket.socket, bytes]:
            stream = IOStream(self._inner)
            if before:
                self.client.sendall(b"GET\n" + before)
                assert await stream.read_until(b"\n") == b"GET\n"
            return release(stream)

        client, early = asyncio.run(taken())

        async def add() -> None:
            await self._tunnels.add(client, early, IOStream(self._other))

        self._thread.submit(add()).result(PATIENCE_S)
        return self

    def close(self) -> None:
        self.client.close()
        self.upstream.close()


def _pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        outer = socket.create_connection(server.getsockname())
        inner, _ = server.accept()
    outer.settimeout(PATIENCE_S)
    inner.setblocking(False)
    return outer, inner


@pytest.fixture
def ends() -> Iterator[Any]:
    """Makes tunnels; all of them end with the test."""
    thread, tunnels = LoopThread("of-tunnels"), Tunnels()
    thread.start()
    made: list[Ends] = []

    def make(before: bytes = b"") -> Ends:
        made.append(Ends(thread, tunnels))
        return made[-1].open(before)

    make.tunnels = tunnels  # type: ignore[attr-defined]
    make.thread = thread  # type: ignore[attr-defined]
    yield make
    for each in made:
        each.close()
    asyncio.run(thread.run(tunnels.close()))
    asyncio.run(thread.stop())


def exactly(end: socket.socket, size: int) -> bytes:
    """That many bytes."""
    got = bytearray()
    while len(got) < size:
        data = end.recv(min(size - len(got), 1 << 20))
        assert data, f"it ended after {len(got)} of {size} bytes"
        got += data
    return bytes(got)


def test_bytes_pass_both_ways(ends: Any) -> None:
    tunnel = ends()
    tunnel.client.sendall(b"up")
    assert exactly(tunnel.upstream, 2) == b"up"
    tunnel.upstream.sendall(b"down")
    assert exactly(tunnel.client, 4) == b"down"


def test_what_came_with_the_handshake_is_not_lost(ends: Any) -> None:
    early = bytes(range(256)) * 1000
    tunnel = ends(early)
    tunnel.client.sendall(b"late")
    assert exactly(tunnel.upstream, len(early) + 4) == early + b"late"


@pytest.mark.parametrize("end", ["client", "upstream"])
def test_when_one_end_closes_the_other_does(ends: Any, end: str) -> None:
    tunnel = ends()
    first, second = (tunnel.client, tunnel.upstream) if end == "client" else (tunnel.upstream, tunnel.client)
    first.sendall(b"last words")
    first.close()
    assert exactly(second, 10) == b"last words"
    assert second.recv(1) == b""
    until(lambda: not ends.tunnels._open, "the tunnel's end")


def test_a_reader_that_does_not_read_holds_the_writer_back(ends: Any) -> None:
    tunnel = ends()
    size = 64 << 20
    sent = threading.Event()

    def send() -> None:
        tunnel.upstream.settimeout(None)
        tunnel.upstream.sendall(bytes(size))
        sent.set()

    sending = threading.Thread(target=send)
    sending.start()
    other = ends()  # it is no hindrance to another
    other.client.sendall(b"x")
    assert exactly(other.upstream, 1) == b"x"
    assert not sent.is_set()
    assert len(exactly(tunnel.client, size)) == size
    sending.join(PATIENCE_S)
    assert sent.is_set()


def test_all_of_them_end_when_told_to(ends: Any) -> None:
    made = [ends() for _ in range(3)]
    asyncio.run(ends.thread.run(ends.tunnels.close()))
    for tunnel in made:
        assert tunnel.client.recv(1) == b""
        assert tunnel.upstream.recv(1) == b""


def test_a_client_that_is_gone_is_no_tunnel() -> None:
    async def closed() -> None:
        outer, inner = _pair()
        outer.close()
        stream = IOStream(inner)
        with pytest.raises(StreamClosedError):
            await stream.read_bytes(1)
        with pytest.raises(StreamClosedError):
            release(stream)

    asyncio.run(closed())

"""Frames as they come off the wire, in whichever pieces, and as they go on it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest
from tornado import websocket
from tornado.httpserver import HTTPServer
from tornado.web import Application
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosedOK

from gpulayer_server.http.frames import FrameSocket, ReadAhead

SIZES = [0, 1, 125, 126, 65_535, 65_536, 300_000]


# ---------------------------------------------------------------- reading ahead


class Pieces:
    """A stream that gives what it has in these pieces."""

    def __init__(self, *pieces: bytes):
        self._pieces = list(pieces)
        self.asked: list[tuple[int, bool]] = []
        self.colour = "blue"

    def read_bytes(self, num_bytes: int, partial: bool = False) -> Awaitable[bytes]:
        self.asked.append((num_bytes, partial))
        found: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        if partial:
            found.set_result(self._pieces.pop(0))
        else:
            whole = b"".join(self._pieces)
            self._pieces = [whole[num_bytes:]]
            found.set_result(whole[:num_bytes])
        return found


async def parts(stream: ReadAhead, *sizes: int) -> list[bytes]:
    return [await stream.read_bytes(size) for size in sizes]


@pytest.mark.parametrize("cut", range(1, 9))
def test_what_is_asked_for_comes_out_of_any_pieces(cut: int) -> None:
    data = bytes(range(9))
    found = asyncio.run(_read(Pieces(data[:cut], data[cut:]), 2, 1, 4, 2))
    assert found == [data[:2], data[2:3], data[3:7], data[7:]]


async def _read(pieces: Pieces, *sizes: int) -> list[bytes]:
    return await parts(ReadAhead(pieces), *sizes)


def test_a_small_frame_is_read_once_and_a_large_one_is_not_copied_in_pieces() -> None:
    async def run() -> None:
        pieces = Pieces(b"ab" + b"c" * 10, b"x" * 200_000)
        stream = ReadAhead(pieces)
        assert await parts(stream, 1, 1) == [b"a", b"b"]
        assert len(pieces.asked) == 1
        assert await stream.read_bytes(150_000) == b"c" * 10 + b"x" * 149_990
        assert pieces.asked[1] == (149_990, False)

    asyncio.run(run())


def test_others_have_their_turn_while_one_sends_without_a_pause() -> None:
    async def run() -> None:
        stream = ReadAhead(Pieces(*[b"x"] * 4))
        turns: list[int] = []
        for number in range(4):
            asyncio.get_running_loop().call_soon(turns.append, number)
            assert await stream.read_bytes(1) == b"x"
            assert turns[-1] == number

    asyncio.run(run())


def test_all_but_reading_is_the_streams_own() -> None:
    assert ReadAhead(Pieces()).colour == "blue"


# ---------------------------------------------------------------- a socket


class Echo(FrameSocket):
    """Says everything again."""

    made: list[Echo]
    closed: list[int | None]

    def prepare(self) -> None:
        """Whoever comes may."""

    def open(self, *args: str, **kwargs: str) -> None:
        super().open(*args, **kwargs)
        self.made.append(self)

    def on_message(self, message: str | bytes) -> None:
        if message == b"fault":
            raise RuntimeError("a fault of ours")
        self.write_frame(message if isinstance(message, bytes) else message.encode())

    def on_close(self) -> None:
        self.closed.append(self.close_code)


def with_echo(body: Callable[[ClientConnection, type[Echo]], Coroutine[Any, Any, None]]) -> None:
    class Here(Echo):
        made: list[Echo] = []
        closed: list[int | None] = []

    async def run() -> None:
        server = HTTPServer(Application([("/", Here, {"shell": None, "access": None, "owner": ""})]))
        listening = socket.create_server(("127.0.0.1", 0))
        listening.setblocking(False)
        server.add_socket(listening)
        url = f"ws://127.0.0.1:{listening.getsockname()[1]}/"
        try:
            async with connect(url, proxy=None, compression=None, max_size=None, close_timeout=5) as client:
                await body(client, Here)
            await asyncio.wait_for(_until(lambda: bool(Here.closed)), 30)
        finally:
            server.stop()
            await server.close_all_connections()

    asyncio.run(run())


async def _until(there: Callable[[], bool]) -> None:
    while not there():  # noqa: ASYNC110 - there are some conditions, on the other side of a socket
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("size", SIZES)
def test_a_frame_of_any_size_goes_there_and_back(size: int) -> None:
    async def body(client: ClientConnection, _: type[Echo]) -> None:
        await client.send(b"x" * size)
        assert await client.recv() == b"x" * size

    with_echo(body)


def test_many_frames_in_a_row_and_one_in_parts_come_in_order() -> None:
    async def body(client: ClientConnection, _: type[Echo]) -> None:
        for number in range(500):
            await client.send(b"%d" % number)
        await client.send([b"in ", b"three ", b"parts"])
        await client.send("a text")
        found = [await client.recv() for _ in range(502)]
        assert found == [*[b"%d" % number for number in range(500)], b"in three parts", b"a text"]

    with_echo(body)


def test_pings_are_answered_between_frames_and_the_end_says_why() -> None:
    async def body(client: ClientConnection, here: type[Echo]) -> None:
        await client.send(b"a")
        await asyncio.wait_for(await client.ping(), 30)
        assert await client.recv() == b"a"
        await client.close(4001, "enough")
        await asyncio.wait_for(_until(lambda: here.closed == [4001]), 30)
        with pytest.raises(websocket.WebSocketClosedError):
            here.made[0].write_frame(b"too late")

    with_echo(body)


def test_a_socket_that_is_closed_here_takes_no_frame_more() -> None:
    async def body(client: ClientConnection, here: type[Echo]) -> None:
        await asyncio.wait_for(_until(lambda: bool(here.made)), 30)
        here.made[0].close(1000, "done")
        with pytest.raises(websocket.WebSocketClosedError):
            here.made[0].write_frame(b"too late")
        with pytest.raises(ConnectionClosedOK):
            await client.recv()

    with_echo(body)


def test_a_fault_of_ours_ends_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    async def body(client: ClientConnection, here: type[Echo]) -> None:
        await client.send(b"fault")
        await asyncio.wait_for(client.wait_closed(), 30)
        await asyncio.wait_for(_until(lambda: here.closed == [None]), 30)

    with_echo(body)
    assert "a fault of ours" in caplog.text


def test_a_frame_that_does_not_go_at_once_is_waited_for() -> None:
    async def body(client: ClientConnection, here: type[Echo]) -> None:
        await asyncio.wait_for(_until(lambda: bool(here.made)), 30)
        sent: asyncio.Future[None] | None = None
        count = 0
        while sent is None:
            sent = here.made[0].write_frame(b"x" * 1_000_000)
            count += 1
        received = [await client.recv() for _ in range(count)]
        await asyncio.wait_for(sent, 30)
        assert [len(each) for each in received] == [1_000_000] * count

    with_echo(body)

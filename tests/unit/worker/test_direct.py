"""Messages that are heard in the turn of the loop in which they come, and those that have to be read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from gpulayer_worker.direct import DirectConnection

Server = Callable[[ServerConnection], Coroutine[Any, Any, None]]
Client = Callable[[DirectConnection], Coroutine[Any, Any, None]]


def talk(server: Server, client: Client) -> None:
    async def run() -> None:
        async with serve(server, "127.0.0.1", 0, max_size=None) as listening:
            port = next(iter(listening.sockets)).getsockname()[1]
            url = f"ws://127.0.0.1:{port}"
            options: dict[str, Any] = {"proxy": None, "max_size": None, "compression": None, "close_timeout": 5}
            async with connect(url, create_connection=DirectConnection, **options) as connection:
                assert isinstance(connection, DirectConnection)
                await asyncio.wait_for(client(connection), 30)

    asyncio.run(run())


async def read_all(connection: DirectConnection, heard: list[bytes]) -> None:
    async for message in connection:
        connection.caught_up()
        heard.append(message if isinstance(message, bytes) else message.encode())


def test_messages_come_in_order_whichever_way_each_comes() -> None:
    async def server(connection: ServerConnection) -> None:
        for message in (b"1", b"2", [b"3, ", b"in parts"], b"4", "5", b"6"):
            await connection.send(message)

    async def client(connection: DirectConnection) -> None:
        heard: list[bytes] = []
        connection.hear(heard.append)
        await read_all(connection, heard)
        assert heard == [b"1", b"2", b"3, in parts", b"4", b"5", b"6"]

    talk(server, client)


def test_what_came_before_anybody_heard_is_read_first() -> None:
    came = asyncio.Event()

    async def server(connection: ServerConnection) -> None:
        await connection.send(b"early")
        await (await connection.ping())  # answered behind it
        came.set()
        await connection.wait_closed()

    async def client(connection: DirectConnection) -> None:
        heard: list[bytes] = []
        await came.wait()
        connection.hear(heard.append)
        assert heard == []
        reading = asyncio.ensure_future(read_all(connection, heard))
        await connection.close()
        await reading
        assert heard == [b"early"]

    talk(server, client)


def test_a_fault_of_who_hears_breaks_the_connection_and_nothing_is_heard_after_it() -> None:
    async def server(connection: ServerConnection) -> None:
        await connection.recv()
        for message in (b"good", b"bad", b"after"):
            await connection.send(message)
        await connection.wait_closed()

    async def client(connection: DirectConnection) -> None:
        heard: list[bytes] = []

        def hear(message: bytes) -> None:
            heard.append(message)
            if message == b"bad":
                raise ValueError("no message of ours")

        connection.hear(hear)
        connection.put(b"begin")
        with pytest.raises(ConnectionClosed):
            await read_all(connection, heard)
        assert heard == [b"good", b"bad"]
        assert isinstance(connection.failure, ValueError)

    talk(server, client)


def test_a_message_is_put_at_once_while_the_connection_takes_it() -> None:
    received: list[Any] = []
    over = asyncio.Event()

    async def server(connection: ServerConnection) -> None:
        async for message in connection:
            received.append(message)
        over.set()

    async def client(connection: DirectConnection) -> None:
        assert connection.ready
        connection.put(b"now")
        big = b"x" * 1_000_000
        count = 0
        while connection.ready:
            connection.put(big)
            count += 1
        await connection.send(b"last")
        await connection.close()
        assert not connection.ready
        await over.wait()
        assert received == [b"now", *[big] * count, b"last"]

    talk(server, client)

"""The websocket over a blocking socket."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

import pytest
from websockets.sync.server import Server, ServerConnection, serve

from gpulayer.client.wire import Wire, WireClosed

HOST = "127.0.0.1"


class Peer:
    """A websocket server that does what the test says."""

    def __init__(self, handler: Any, **options: Any):
        self.server: Server = serve(handler, HOST, 0, **options)
        self.url = f"http://{HOST}:{self.server.socket.getsockname()[1]}/v1/client"
        self._thread = threading.Thread(target=self.server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self._thread.join()


@pytest.fixture
def start() -> Iterator[Any]:
    peers: list[Peer] = []

    def start(handler: Any, **options: Any) -> Peer:
        peers.append(Peer(handler, **options))
        return peers[-1]

    yield start
    for peer in peers:
        peer.close()


def echo(connection: ServerConnection) -> None:
    for message in connection:
        connection.send(message)


def test_messages_go_both_ways(start: Any) -> None:
    wire = Wire(start(echo, max_size=None).url, "token")
    messages = wire.messages()
    for data in (b"", b"one", b"x" * 3_000_000):
        wire.send(data)
        assert next(messages) == data
    wire.close()


def test_a_message_in_parts_is_one(start: Any) -> None:
    def parts(connection: ServerConnection) -> None:
        connection.send([b"one ", b"two ", b"three"])
        connection.recv()

    wire = Wire(start(parts).url, "token")
    assert next(wire.messages()) == b"one two three"
    wire.close()


def test_pings_are_answered_while_someone_reads(start: Any) -> None:
    def ping(connection: ServerConnection) -> None:
        assert connection.ping().wait(30)
        connection.send(b"answered")
        connection.recv()

    wire = Wire(start(ping).url, "token")
    assert next(wire.messages()) == b"answered"
    wire.close()


def test_a_refused_token_says_what_the_other_side_said(start: Any) -> None:
    def refuse(connection: ServerConnection, request: Any) -> Any:
        assert request.headers["Authorization"] == "Bearer token"
        return connection.respond(HTTPStatus.UNAUTHORIZED, "no")

    with pytest.raises(WireClosed, match=r"refused the connection.*401"):
        Wire(start(echo, process_request=refuse).url, "token")


def test_nobody_there_is_an_error_of_the_system() -> None:
    with socket.create_server((HOST, 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(OSError, match="refused"):
        Wire(f"http://{HOST}:{port}/v1/client", "token")


def test_someone_who_says_nothing_is_not_waited_for_for_ever() -> None:
    with socket.create_server((HOST, 0)) as silent, pytest.raises(OSError, match="timed out"):
        Wire(f"http://{HOST}:{silent.getsockname()[1]}/", "token", timeout_s=0.2)


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 200 OK\r\n\r\n", b"SSH-2.0-OpenSSH\r\n"])
def test_someone_who_is_no_control_plane_is_refused(said: bytes) -> None:
    with socket.create_server((HOST, 0)) as stranger:

        def answer() -> None:
            connection, _ = stranger.accept()
            with connection:
                connection.recv(10_000)
                connection.sendall(said)
                connection.shutdown(socket.SHUT_WR)
                connection.recv(10_000)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(WireClosed):
            Wire(f"http://{HOST}:{stranger.getsockname()[1]}/", "token")
        thread.join()


def test_the_other_sides_end_is_told(start: Any) -> None:
    wire = Wire(start(lambda connection: connection.send(b"bye")).url, "token")
    messages = wire.messages()
    assert next(messages) == b"bye"
    with pytest.raises(WireClosed):
        next(messages)
    with pytest.raises(WireClosed):
        wire.send(b"too late")
    wire.close()


def test_hanging_up_wakes_a_reader(start: Any) -> None:
    wire = Wire(start(echo).url, "token")
    ended = threading.Event()

    def read() -> None:
        try:
            list(wire.messages())
        except WireClosed:
            ended.set()

    thread = threading.Thread(target=read)
    thread.start()
    wire.hang_up()
    thread.join(30)
    assert ended.is_set()
    wire.close()
    wire.close()  # again: no error


def test_many_threads_may_send(start: Any) -> None:
    wire = Wire(start(echo).url, "token")
    threads = [threading.Thread(target=lambda n=n: [wire.send(bytes([n]) * 1000) for _ in range(50)]) for n in range(4)]
    for thread in threads:
        thread.start()
    messages = wire.messages()
    got = [next(messages) for _ in range(200)]
    for thread in threads:
        thread.join()
    assert sorted(got) == sorted(bytes([n]) * 1000 for n in range(4) for _ in range(50))
    wire.close()


def test_what_came_before_the_end_is_given_first_then_the_end(start: Any) -> None:
    def say(connection: ServerConnection) -> None:
        connection.send(b"one")
        connection.send(b"two")

    wire = Wire(start(say).url, "token")
    messages = wire.messages()
    assert [next(messages), next(messages)] == [b"one", b"two"]
    with pytest.raises(WireClosed):
        next(messages)
    wire.close()


def test_an_end_of_a_pair_makes_the_reader_look_up(start: Any) -> None:
    wire = Wire(start(echo).url, "token")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        wire.wakes_by(theirs)
        ours.send(b"x")
        assert wire.receive(30) == []
        wire.send(b"after")
        assert wire.receive(30) == [b"after"]
        wire.close()

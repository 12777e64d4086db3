"""The websocket over a blocking socket."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.server import Server, ServerConnection, serve

from gpulayer.client.errors import ControlPlaneError
from gpulayer.client.wire import Wire, WireClosed
from gpulayer.protocol.pin import pin, trusting
from gpulayer_server.tls import Certificate, own_certificate

HOST = "127.0.0.1"


class Peer:
    """A websocket server that does what the test says; with a certificate by TLS."""

    def __init__(self, handler: Any, certificate: Certificate | None = None, **options: Any):
        secured = certificate is not None
        self.server: Server = serve(handler, HOST, 0, ssl=certificate.context() if certificate else None, **options)
        port = self.server.socket.getsockname()[1]
        self.url = f"{'https' if secured else 'http'}://{HOST}:{port}/v1/client"
        self._thread = threading.Thread(target=self.server.serve_forever)
        self._thread.start()
        self._tls = trusting(pin(self.url, certificate.fingerprint)) if certificate else None

    def open(self) -> Wire:
        """A connection to it."""
        return Wire(self.url, "token", tls=self._tls)

    def close(self) -> None:
        self.server.shutdown()
        self._thread.join()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return own_certificate(tmp_path_factory.mktemp("data"))


@pytest.fixture(params=["plain", "tls"])
def start(request: pytest.FixtureRequest, certificate: Certificate) -> Iterator[Any]:
    peers: list[Peer] = []

    def start(handler: Any, **options: Any) -> Peer:
        peers.append(Peer(handler, certificate if request.param == "tls" else None, **options))
        return peers[-1]

    yield start
    for peer in peers:
        peer.close()


def echo(connection: ServerConnection) -> None:
    for message in connection:
        connection.send(message)


def test_messages_go_both_ways(start: Any) -> None:
    wire = start(echo, max_size=None).open()
    messages = wire.messages()
    for data in (b"", b"one", b"x" * 3_000_000):
        wire.send(data)
        assert next(messages) == data
    wire.close()


def test_a_message_in_parts_is_one(start: Any) -> None:
    def parts(connection: ServerConnection) -> None:
        connection.send([b"one ", b"two ", b"three"])
        connection.recv()

    wire = start(parts).open()
    assert next(wire.messages()) == b"one two three"
    wire.close()


def test_pings_are_answered_while_someone_reads(start: Any) -> None:
    def ping(connection: ServerConnection) -> None:
        assert connection.ping().wait(30)
        connection.send(b"answered")
        connection.recv()

    wire = start(ping).open()
    assert next(wire.messages()) == b"answered"
    wire.close()


def test_a_refused_token_says_what_the_other_side_said(start: Any) -> None:
    def refuse(connection: ServerConnection, request: Any) -> Any:
        assert request.headers["Authorization"] == "Bearer token"
        return connection.respond(HTTPStatus.UNAUTHORIZED, "no")

    with pytest.raises(WireClosed, match=r"refused the connection.*401"):
        start(echo, process_request=refuse).open()


def refusing(status: HTTPStatus, code: str) -> Any:
    """A control plane's refusal, as a websocket server gives it."""

    def refuse(connection: ServerConnection, _: Any) -> Any:
        answer = connection.respond(status, json.dumps({"status": status, "code": code, "title": "no", "detail": "d"}))
        del answer.headers["Content-Type"]
        answer.headers["Content-Type"] = "application/problem+json"
        return answer

    return refuse


@pytest.mark.parametrize(
    ("status", "code", "final"),
    [
        (HTTPStatus.FORBIDDEN, "wrong_role", True),
        (HTTPStatus.UNAUTHORIZED, "token_revoked", True),
        (HTTPStatus.UNAUTHORIZED, "token_expired", True),
        (HTTPStatus.UNAUTHORIZED, "unauthorized", False),  # the control plane may be started again, with another token
        (HTTPStatus.SERVICE_UNAVAILABLE, "away", False),
    ],
)
def test_a_token_that_may_not_is_refused_for_good(start: Any, status: HTTPStatus, code: str, final: bool) -> None:
    peer = start(echo, process_request=refusing(status, code))
    with pytest.raises(ControlPlaneError if final else WireClosed, match="no: d"):
        peer.open()


def test_another_certificate_gets_no_token(certificate: Certificate, tmp_path: Path) -> None:
    heard: list[bytes] = []

    def listen(connection: socket.socket) -> None:
        heard.append(connection.recv(10_000))

    other = own_certificate(tmp_path)
    with socket.create_server((HOST, 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                try:
                    with other.context().wrap_socket(connection, server_side=True) as secure:
                        listen(secure)
                except ssl.SSLError:
                    pass  # the client has turned away

        thread = threading.Thread(target=answer)
        thread.start()
        trusted = trusting(pem_of(certificate))
        with pytest.raises(ssl.SSLCertVerificationError):
            Wire(f"https://{HOST}:{server.getsockname()[1]}/v1/client", "token", tls=trusted)
        thread.join()
    assert heard in ([], [b""])


def pem_of(certificate: Certificate) -> str:
    text = certificate.path.read_text()
    return text[text.index("-----BEGIN CERTIFICATE-----") :]


def test_records_that_come_in_pieces_are_whole(certificate: Certificate) -> None:
    """A byte at a time: the socket can be read, and there is nothing to be had yet."""
    backend = Peer(echo, certificate)
    with socket.create_server((HOST, 0)) as front:

        def trickle() -> None:
            client, _ = front.accept()
            behind = socket.create_connection((HOST, backend.server.socket.getsockname()[1]))
            with client, behind:
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                done = threading.Thread(target=pump, args=(client, behind, 65_536))
                done.start()
                pump(behind, client, 1)
                done.join()

        thread = threading.Thread(target=trickle)
        thread.start()
        url = f"https://{HOST}:{front.getsockname()[1]}/v1/client"
        wire = Wire(url, "token", tls=trusting(pem_of(certificate)))
        wire.send(b"x" * 2000)
        assert next(wire.messages()) == b"x" * 2000
        assert wire.receive(0.01) == []
        wire.close()
        thread.join()
    backend.close()


def pump(source: socket.socket, sink: socket.socket, size: int) -> None:
    try:
        while data := source.recv(size):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        return  # the other side is gone


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
    wire = start(lambda connection: connection.send(b"bye")).open()
    messages = wire.messages()
    assert next(messages) == b"bye"
    with pytest.raises(WireClosed):
        next(messages)
    with pytest.raises(WireClosed):
        wire.send(b"too late")
    wire.close()


def test_hanging_up_wakes_a_reader(start: Any) -> None:
    wire = start(echo).open()
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
    wire = start(echo).open()
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

    wire = start(say).open()
    messages = wire.messages()
    assert [next(messages), next(messages)] == [b"one", b"two"]
    with pytest.raises(WireClosed):
        next(messages)
    wire.close()


def test_an_end_of_a_pair_makes_the_reader_look_up(start: Any) -> None:
    wire = start(echo).open()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        wire.wakes_by(theirs)
        ours.send(b"x")
        assert wire.receive(30) == []
        wire.send(b"after")
        assert wire.receive(30) == [b"after"]
        wire.close()

"""Requests whose large bodies are moved with few copies."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from gpulayer.protocol.pin import trusting
from gpulayer.source.direct import Direct
from gpulayer.source.streams import PARTS, Pieces, body_of
from tests.support.front import certificate

LARGE = os.urandom(3_000_000)
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Peer:
    """A server of one connection after the other; `play` is given each, and reads requests by `request`."""

    def __init__(self, play: Callable[[Peer, socket.socket], None], certificate: Path | None):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER) if certificate else None
        if self.tls is not None and certificate is not None:
            self.tls.load_cert_chain(certificate)
        self.url = f"http{'s' if certificate else ''}://127.0.0.1:{self.listener.getsockname()[1]}"
        self.connections = 0
        self.closed = threading.Event()  # the first one is
        self.play = play
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.connections += 1
            if self.tls is not None:
                connection = self.tls.wrap_socket(connection, server_side=True)
            with connection, contextlib.suppress(OSError):  # the other side has gone
                self.play(self, connection)
            self.closed.set()

    @staticmethod
    def request(connection: socket.socket) -> tuple[str, bytes]:
        """The head and the body of the next request; '' at the end."""
        data = b""
        while b"\r\n\r\n" not in data:
            more = connection.recv(65_536)
            if not more:
                return "", b""
            data += more
        head, _, body = data.partition(b"\r\n\r\n")
        text = head.decode().lower()
        if "content-length: " in text:
            length = int(text.split("content-length: ")[1].split("\r\n")[0])
            while len(body) < length:
                body += connection.recv(1 << 20)
        elif "transfer-encoding: chunked" in text:
            while not body.endswith(b"0\r\n\r\n"):
                body += connection.recv(1 << 20)
        return text, body


@contextmanager
def peer(
    play: Callable[[Peer, socket.socket], None], certificate: Path | None = None
) -> Iterator[tuple[Peer, httpx.Client]]:
    made = Peer(play, certificate)
    tls = trusting(certificate.read_text().partition("-----BEGIN PRIVATE")[0]) if certificate else None
    with httpx.Client(base_url=made.url, transport=Direct(made.url, tls), timeout=20.0) as client:
        yield made, client
    made.listener.shutdown(socket.SHUT_RDWR)
    made.thread.join()
    made.listener.close()


def always(answer: bytes) -> Callable[[Peer, socket.socket], None]:
    def play(peer: Peer, connection: socket.socket) -> None:
        while peer.request(connection)[0]:
            connection.sendall(answer)

    return play


def with_length(body: bytes, said: int | None = None) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (len(body) if said is None else said) + body


def drained(body: Pieces) -> bytes:
    """The digest of all that comes."""
    digest = hashlib.sha256()
    while piece := body.read(1 << 20):
        digest.update(piece)
    return digest.digest()


def test_a_connection_is_kept_once_its_answer_was_read() -> None:
    with peer(always(with_length(LARGE))) as (server, client):
        for _ in range(3):
            assert client.get("/x").content == LARGE
        assert server.connections == 1
        with client.stream("GET", "/x") as answer:
            next(answer.iter_bytes())  # the rest would stand before the next answer
        assert client.get("/x").content == LARGE
        assert server.connections == 2


def test_a_large_body_comes_in_the_same_memory_again_and_again() -> None:
    with peer(always(with_length(LARGE))) as (_, client):
        with client.stream("GET", "/x") as answer:
            assert drained(body_of(answer)) == hashlib.sha256(LARGE).digest()
        assert client.get("/x").content == LARGE  # small pieces wake again


def test_the_same_through_tls(tmp_path: Path) -> None:
    bodies: list[bytes] = []

    def play(peer: Peer, connection: socket.socket) -> None:
        while (asked := peer.request(connection))[0]:
            bodies.append(asked[1])
            connection.sendall(with_length(LARGE))

    with peer(play, certificate(tmp_path)) as (server, client):
        for _ in range(2):
            with client.stream("POST", "/x", content=LARGE) as answer:
                assert drained(body_of(answer)) == hashlib.sha256(LARGE).digest()
        assert server.connections == 1
    assert bodies == [LARGE, LARGE]


def test_a_body_that_is_cut_short_is_an_error_of_the_transport() -> None:
    def play(peer: Peer, connection: socket.socket) -> None:
        peer.request(connection)
        connection.sendall(with_length(LARGE[:1_000_000], said=len(LARGE)))

    with peer(play) as (_, client):
        with pytest.raises(httpx.RemoteProtocolError, match="ended after 1000000 of 3000000 bytes"):
            client.get("/x")
        with client.stream("GET", "/x") as answer:
            body = body_of(answer)
            with pytest.raises(httpx.RemoteProtocolError, match="ended after 1000000 of 3000000 bytes"):
                drained(body)


def test_pieces_of_any_size_are_sent_as_they_are() -> None:
    bodies: list[bytes] = []

    def play(peer: Peer, connection: socket.socket) -> None:
        while (asked := peer.request(connection))[0]:
            bodies.append(asked[1])
            connection.sendall(OK)

    pieces = [b"head", memoryview(LARGE), b"", b"between", memoryview(LARGE)[:100_000], b"end"]
    whole = b"".join(pieces)
    with peer(play) as (_, client):
        sized = client.post("/x", content=iter(pieces), headers={"Content-Length": str(len(whole))})  # type: ignore[arg-type]
        chunked = client.post("/x", content=iter([b"one", b"", b"two"]))
        assert (sized.text, chunked.text) == ("ok", "ok")
    assert bodies[0] == whole
    assert bodies[1] == b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"


@pytest.mark.parametrize("tls", [False, True])
def test_files_are_sent_by_the_system_where_bytes_travel_as_they_are(tmp_path: Path, tls: bool) -> None:
    path, bodies = tmp_path / "file", list[bytes]()
    path.write_bytes(LARGE)

    def play(peer: Peer, connection: socket.socket) -> None:
        while (request := peer.request(connection))[0]:
            bodies.append(request[1])
            connection.sendall(OK)

    with peer(play, certificate(tmp_path) if tls else None) as (server, client), path.open("rb") as file:
        for end in (b"end", b"END"):  # over one connection
            file.seek(0)
            parts = iter([b"be", b"gin", file, end])
            headers = {"Content-Length": str(len(LARGE) + 8)}
            content = iter([b"begin", LARGE, end])
            answer = client.post("/", content=content, headers=headers, extensions={PARTS: parts})
            assert answer.content == b"ok"
            assert (next(parts, None) is None) is not tls
        assert bodies == [b"begin" + LARGE + b"end", b"begin" + LARGE + b"END"]
        assert server.connections == 1


def test_who_is_refused_before_all_was_sent_reads_why() -> None:
    def play(peer: Peer, connection: socket.socket) -> None:
        connection.recv(1000)
        connection.sendall(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 3\r\nConnection: close\r\n\r\nwho")
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(1 << 20):
            pass

    with peer(play) as (_, client):
        answer = client.post("/x", content=LARGE * 4)
        assert (answer.status_code, answer.text) == (401, "who")


def test_a_connection_that_the_other_side_closed_is_not_used_again() -> None:
    def play(peer: Peer, connection: socket.socket) -> None:
        peer.request(connection)
        connection.sendall(OK)

    with peer(play) as (server, client):
        client.get("/x")
        assert server.closed.wait(20.0)
        assert client.get("/x").text == "ok"
        assert server.connections == 2


def test_nobody_there_and_no_answer_are_errors_of_httpx() -> None:
    def play(peer: Peer, connection: socket.socket) -> None:
        peer.request(connection)

    with peer(play) as (_, client), pytest.raises(httpx.RemoteProtocolError, match="no answer of HTTP"):
        client.get("/x")
    with socket.create_server(("127.0.0.1", 0)) as bound:
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
    with httpx.Client(base_url=url, transport=Direct(url, None)) as client, pytest.raises(httpx.ConnectError):
        client.get("/x")


def test_who_says_nothing_for_too_long_is_not_waited_for() -> None:
    done = threading.Event()

    def play(peer: Peer, connection: socket.socket) -> None:
        peer.request(connection)
        done.wait(20.0)

    with peer(play) as (_, client):
        with pytest.raises(httpx.ReadTimeout):
            client.get("/x", timeout=0.05)
        done.set()


def test_no_header_brings_a_line_of_its_own() -> None:
    with peer(always(OK)) as (_, client), pytest.raises(httpx.LocalProtocolError, match="line break"):
        client.get("/x", headers={"A": "b\r\nC: d"})


def test_closing_ends_what_another_thread_waits_for() -> None:
    asked, done = threading.Event(), threading.Event()

    def play(peer: Peer, connection: socket.socket) -> None:
        peer.request(connection)
        asked.set()
        done.wait(20.0)

    def close() -> None:
        asked.wait(20.0)
        client.close()

    with peer(play) as (_, client):
        closing = threading.Thread(target=close)
        closing.start()
        with pytest.raises(httpx.TransportError):
            client.get("/x")
        closing.join()
        done.set()

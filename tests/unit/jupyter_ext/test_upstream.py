"""Requests to a control plane, as streams."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tornado.httputil import HTTPHeaders

from gpulayer.protocol.endpoint import Endpoint
from gpulayer_jupyter.place import Status
from gpulayer_jupyter.upstream import Away, Exchange, Head, Request, ask, connect
from gpulayer_server.tls import own_certificate

Answering = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Places:
    """Names one endpoint after the other; the last stays."""

    def __init__(self, *endpoints: Endpoint | None, state: Any = "attached"):
        self.left = list(endpoints)
        self._state = state

    def endpoint(self) -> Endpoint | None:
        return self.left.pop(0) if len(self.left) > 1 else self.left[0]

    def status(self) -> Status:
        return Status(state=self._state, text="how it stands", data="/d")


class Upstreams:
    """Servers that answer as a test says."""

    def __init__(self) -> None:
        self._servers: list[asyncio.Server] = []

    async def add(
        self, answering: Answering, token: str = "t", path: str = "", tls: ssl.SSLContext | None = None
    ) -> Endpoint:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await answering(reader, writer)
            except asyncio.IncompleteReadError:
                pass  # who only looked at the certificate
            finally:
                writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
        self._servers.append(server)
        port = server.sockets[0].getsockname()[1]
        return Endpoint(url=f"http://127.0.0.1:{port}{path}", token=token, pid=1, version="0")

    def close(self) -> None:
        for server in self._servers:
            server.close()


def run(test: Callable[[Upstreams], Coroutine[Any, Any, None]]) -> None:
    """Run it on a loop, and fail rather than wait for ever."""

    async def all_of_it() -> None:
        upstreams = Upstreams()
        try:
            await asyncio.wait_for(test(upstreams), 60)
        finally:
            upstreams.close()

    asyncio.run(all_of_it())


async def head_of(reader: asyncio.StreamReader) -> str:
    return (await reader.readuntil(b"\r\n\r\n")).decode()


def saying(text: str, seen: list[str] | None = None) -> Answering:
    """Read a head, and answer with this."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await head_of(reader)
        if seen is not None:
            seen.append(head)
        writer.write(text.encode())
        await writer.drain()

    return answer


def getting(path: str = "/v1/jobs") -> Request:
    return Request(method="GET", path=path, headers=HTTPHeaders({"Accept": "text/html"}))


async def body_of(exchange: Exchange) -> bytes:
    parts: list[bytes] = []

    async def keep(chunk: bytes) -> None:
        parts.append(chunk)

    await exchange.copy(keep)
    exchange.close()
    return b"".join(parts)


def test_a_request_carries_the_token_of_the_control_plane() -> None:
    async def test(upstreams: Upstreams) -> None:
        seen: list[str] = []
        endpoint = await upstreams.add(
            saying("HTTP/1.1 200 Fine\r\nContent-Length: 4\r\n\r\nbody", seen), path="/user/x"
        )
        exchange, head = await ask(Places(endpoint), getting("/v1/jobs?limit=1"))
        assert (head.status, head.reason, await body_of(exchange)) == (200, "Fine", b"body")
        lines = seen[0].split("\r\n")
        assert lines[0] == "GET /user/x/v1/jobs?limit=1 HTTP/1.1"
        assert f"Host: {endpoint.url.split('/')[2]}" in lines
        assert {"Authorization: Bearer t", "Accept: text/html", "Connection: close"} <= set(lines)

    run(test)


def test_a_token_of_whoever_asks_stays_as_it_is() -> None:
    async def test(upstreams: Upstreams) -> None:
        seen: list[str] = []
        endpoint = await upstreams.add(saying("HTTP/1.1 401 No\r\nContent-Length: 0\r\n\r\n", seen))
        other = Endpoint(url="http://127.0.0.1:1", token="t", pid=1, version="0")
        request = Request(method="GET", path="/v1/worker", headers=HTTPHeaders(), token="Bearer gl-worker-x")
        exchange, head = await ask(Places(endpoint, other), request)
        exchange.close()
        assert head.status == 401
        assert "Authorization: Bearer gl-worker-x\r\n" in seen[0]
        assert "Bearer t" not in seen[0]

    run(test)


@pytest.mark.parametrize(
    "answer",
    [
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n3\r\ndef\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\n\r\nabcdef",
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nabcdef",
    ],
    ids=["in chunks", "until it closes", "after 100"],
)
def test_every_form_of_a_body(answer: str) -> None:
    async def test(upstreams: Upstreams) -> None:
        exchange, head = await ask(Places(await upstreams.add(saying(answer))), getting())
        assert (head.status, await body_of(exchange)) == (200, b"abcdef")

    run(test)


@pytest.mark.parametrize(
    "answer",
    [
        "HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\nabc",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nnonsense\r\n",
    ],
)
def test_a_body_that_breaks_off_is_no_whole_one(answer: str) -> None:
    async def test(upstreams: Upstreams) -> None:
        exchange, head = await ask(Places(await upstreams.add(saying(answer))), getting())
        assert head.status == 200
        with pytest.raises(Away, match="closed the connection"):
            await body_of(exchange)
        exchange.close()

    run(test)


@pytest.mark.parametrize("answer", ["", "HTTP/1.1 2", "nonsense\r\n\r\n"])
def test_no_answer_at_all(answer: str) -> None:
    async def test(upstreams: Upstreams) -> None:
        with pytest.raises(Away, match="closed the connection"):
            await ask(Places(await upstreams.add(saying(answer))), getting())

    run(test)


def test_an_answer_that_comes_before_the_body_went_is_heard() -> None:
    """It refuses, and reads no more: what is still sent is let go by."""

    async def test(upstreams: Upstreams) -> None:
        over = asyncio.Event()

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await saying("HTTP/1.1 507 Full\r\nContent-Length: 4\r\n\r\nfull")(reader, writer)
            await over.wait()

        exchange = await connect(Places(await upstreams.add(answer)))
        exchange.begin(Request(method="POST", path="/v1/blobs", headers=HTTPHeaders()))
        for _ in range(1000):
            await exchange.send(b"x" * 65_536)
        exchange.finish()
        assert ((await exchange.head()).status, await body_of(exchange)) == (507, b"full")
        over.set()

    run(test)


def test_a_body_is_sent_in_parts() -> None:
    async def test(upstreams: Upstreams) -> None:
        got: list[bytes] = []

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            assert "Transfer-Encoding: chunked\r\n" in await head_of(reader)
            got.append(await reader.readuntil(b"0\r\n\r\n"))
            writer.write(b"HTTP/1.1 204 Done\r\n\r\n")

        exchange = await connect(Places(await upstreams.add(answer)))
        exchange.begin(Request(method="POST", path="/v1/blobs", headers=HTTPHeaders()))
        await exchange.send(b"abc")
        await exchange.send(b"de")
        exchange.finish()
        assert (await exchange.head()).status == 204
        exchange.close()
        assert got == [b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"]

    run(test)


def test_a_reader_that_fails_ends_the_exchange() -> None:
    async def test(upstreams: Upstreams) -> None:
        exchange, _ = await ask(Places(await upstreams.add(saying("HTTP/1.1 200 OK\r\n\r\nabc"))), getting())

        async def gone(chunk: bytes) -> None:
            raise BrokenPipeError("gone")

        with pytest.raises(BrokenPipeError):
            await exchange.copy(gone)
        assert exchange.stream.closed()

    run(test)


def test_a_slow_reader_holds_the_answer_back() -> None:
    async def test(upstreams: Upstreams) -> None:
        sent = 0
        whole = 64 << 20

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal sent
            await head_of(reader)
            writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {whole}\r\n\r\n".encode())
            while sent < whole:
                writer.write(bytes(65_536))
                sent += 65_536
                await writer.drain()

        exchange, _ = await ask(Places(await upstreams.add(answer)), getting())
        go, taken, first = asyncio.Event(), 0, asyncio.Event()

        async def slow(chunk: bytes) -> None:
            nonlocal taken
            taken += len(chunk)
            first.set()
            await go.wait()

        copying = asyncio.ensure_future(exchange.copy(slow))
        await first.wait()
        for _ in range(1000):
            await asyncio.sleep(0)  # whatever could go on does
        assert taken <= 65_536
        assert sent < whole
        go.set()
        await copying
        exchange.close()
        assert taken == whole

    run(test)


def test_one_that_has_moved_is_asked_where_it_is_now() -> None:
    async def test(upstreams: Upstreams) -> None:
        old = await upstreams.add(saying("HTTP/1.1 401 No\r\nContent-Length: 0\r\n\r\n"), "old")
        seen: list[str] = []
        new = await upstreams.add(saying("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", seen), "new")
        exchange, head = await ask(Places(old, new), Request(method="POST", path="/v1/jobs", headers=HTTPHeaders(
            {"Content-Length": "2"})), b"{}")  # fmt: skip
        exchange.close()
        assert head.status == 200
        assert "Authorization: Bearer new\r\n" in seen[0]

    run(test)


def test_a_refusal_by_one_that_has_not_moved_stands() -> None:
    async def test(upstreams: Upstreams) -> None:
        endpoint = await upstreams.add(saying("HTTP/1.1 401 No\r\nContent-Length: 0\r\n\r\n"))
        exchange, head = await ask(Places(endpoint), getting())
        exchange.close()
        assert head.status == 401

    run(test)


def test_one_that_is_just_being_taken_over_is_waited_for() -> None:
    async def test(upstreams: Upstreams) -> None:
        nobody = Endpoint(url="http://127.0.0.1:1", token="t", pid=1, version="0")
        endpoint = await upstreams.add(saying("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"))
        places = Places(None, nobody, endpoint)
        exchange, head = await ask(places, getting())
        exchange.close()
        assert (head.status, places.left) == (200, [endpoint])

    run(test)


def test_with_nobody_there_it_says_how_it_stands() -> None:
    async def test(upstreams: Upstreams) -> None:
        with pytest.raises(Away, match="how it stands"):
            await connect(Places(None, state="failed"))

    run(test)


def test_an_upgrade_gives_the_connection_away() -> None:
    async def test(upstreams: Upstreams) -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            assert "Connection: Upgrade\r\n" in await head_of(reader)
            writer.write(b"HTTP/1.1 101 Go\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nfirst")
            writer.write(await reader.readexactly(2))
            await writer.drain()

        headers = HTTPHeaders({"Upgrade": "websocket", "Connection": "Upgrade"})
        request = Request(method="GET", path="/v1/watch", headers=headers)
        exchange, head = await ask(Places(await upstreams.add(answer)), request)
        assert isinstance(head, Head)
        assert head.status == 101
        await exchange.stream.write(b"go")
        assert await exchange.stream.read_until_close() == b"firstgo"

    run(test)


# -------------------------------------------------------------------- by TLS


def test_a_pinned_one_is_asked_by_its_own_certificate_alone(tmp_path: Path) -> None:
    own = own_certificate(tmp_path)

    async def test(upstreams: Upstreams) -> None:
        seen: list[str] = []
        plain = await upstreams.add(saying("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", seen), tls=own.context())
        url = plain.url.replace("http:", "https:")
        endpoint = Endpoint(url=url, token="t", pid=1, version="0", fingerprint=own.fingerprint)
        exchange, head = await ask(Places(endpoint), getting())
        assert head.status == 200
        exchange.close()
        other = msgspec.structs.replace(endpoint, fingerprint=f"SHA256:{'0' * 64}")
        with pytest.raises(
            Away, match=r"presents the fingerprint .*; name the right one with GpulayerApp\.fingerprint"
        ):
            await ask(Places(other), getting())
        assert len(seen) == 1, "nothing was sent"

    run(test)

"""How messages are put into frames, and who is let in."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import msgspec
import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.datastructures import Headers
from websockets.http11 import Request, Response

from gpulayer.protocol.calls import CallRun, CallsDone
from gpulayer.protocol.endpoint import Endpoint
from gpulayer.protocol.messages import (
    Order,
    Output,
    Refuse,
    Sampled,
    ServerMessage,
    Started,
    WorkerMessage,
    from_worker,
)
from gpulayer.protocol.types import FRAME_DATA_BYTES, Problem, Sample
from gpulayer_server.tls import own_certificate
from gpulayer_worker import channel as channel_module
from gpulayer_worker.channel import Channel, frames


def output(size: int) -> Output:
    return Output(attempt="a", offset=0, data=b"x" * size)


def test_small_messages_share_a_frame() -> None:
    messages: list[WorkerMessage] = [Started(attempt="a"), output(10), output(20)]
    assert list(frames(messages)) == [messages]
    assert list(frames([])) == []


def test_large_results_have_frames_of_their_own() -> None:
    def done(size: int) -> CallsDone:
        return CallsDone(attempt="a", runs=(CallRun(map="m", first=0, codes=b"\0", data=(b"x" * size,)),))

    messages: list[WorkerMessage] = [done(2 * FRAME_DATA_BYTES), done(1), done(2), done(FRAME_DATA_BYTES)]
    assert list(frames(messages)) == [messages[:1], messages[1:3], messages[3:]]


def test_a_frame_holds_no_more_output_than_the_protocol_says() -> None:
    messages: list[WorkerMessage] = [
        output(FRAME_DATA_BYTES),
        Started(attempt="a"),
        output(1),
        output(FRAME_DATA_BYTES - 1),
        output(1),
        Started(attempt="a"),
    ]
    assert list(frames(messages)) == [messages[:2], messages[2:4], messages[4:]]


def test_of_samples_only_the_newest_waits_for_a_slow_connection() -> None:
    """The machine is measured once a second, and a line may be full for minutes."""
    samples: list[WorkerMessage] = [Sampled(sample=Sample(cpu=part / 10)) for part in range(3)]
    begin, end = Started(attempt="a"), Started(attempt="b")

    class Slow:
        """A connection that takes a frame, and takes the next one when it is told to."""

        def __init__(self) -> None:
            self.sent: list[bytes] = []
            self.goes_on, self.blocked = asyncio.Event(), asyncio.Event()

        async def send(self, frame: bytes) -> None:
            self.sent.append(frame)
            self.blocked.set()
            await self.goes_on.wait()

    async def run() -> None:
        slow = Slow()
        channel = Channel(lambda: None, opened=lambda: None, received=lambda _: None, closed=lambda: None)
        channel._connection = slow  # type: ignore[assignment]
        sending = asyncio.ensure_future(channel._send_all(slow, Order()))  # type: ignore[arg-type]
        channel.send([output(1)])
        await slow.blocked.wait()
        for messages in ([begin, samples[0]], [samples[1]], [end, samples[2]]):
            channel.send(messages)
        assert channel._outgoing == [begin, end, samples[2]]
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)

    asyncio.run(run())


def test_what_is_said_after_a_pause_leaves_at_once_and_what_follows_in_one_frame() -> None:
    """A person waits for one call's result; those of a map come in a row."""
    begin, end = Started(attempt="a"), Started(attempt="b")

    class Line:
        """A connection: what is put left at once, what is sent when the loop came to it."""

        def __init__(self) -> None:
            self.put_now: list[bytes] = []
            self.sent: list[bytes] = []
            self.ready = True

        def put(self, frame: bytes) -> None:
            self.put_now.append(frame)

        async def send(self, frame: bytes) -> None:
            self.sent.append(frame)

    async def run() -> None:
        line, there = Line(), Order()
        channel = Channel(lambda: None, opened=lambda: None, received=lambda _: None, closed=lambda: None)
        channel._connection = channel._direct = line  # type: ignore[assignment]
        sending = asyncio.ensure_future(channel._send_all(line, channel._order))  # type: ignore[arg-type]
        channel.send([begin])
        assert [read(there, frame) for frame in line.put_now] == [[begin]]
        channel._sent_at = float("inf")  # just now
        channel.send([begin])
        channel.send([end])
        await turns()
        assert [read(there, frame) for frame in line.sent] == [[begin, end]]
        line.ready, channel._sent_at = False, 0.0  # it is full
        channel.send([end])
        assert channel._outgoing == [end]
        await turns()
        assert [read(there, frame) for frame in line.sent[1:]] == [[end]]
        line.ready, channel._sent_at = True, 0.0
        channel.send([output(FRAME_DATA_BYTES), output(1)])  # more than one frame
        await turns()
        assert len(line.put_now) == 1
        assert [read(there, frame) for frame in line.sent[2:]] == [[output(FRAME_DATA_BYTES)], [output(1)]]
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)

    async def turns() -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    def read(order: Order, frame: bytes) -> list[WorkerMessage]:
        data = order.accept(frame)
        assert data is not None
        return from_worker(data)

    asyncio.run(run())


# ---------------------------------------------------------------- the way in


def turned_away(status: int, code: str, kind: str = "application/problem+json") -> Response:
    """The answer to a worker that may not come in."""
    body = msgspec.json.encode(Problem(status=status, code=code, title="no", detail="ask"))
    return Response(status, HTTPStatus(status).phrase, Headers({"Content-Type": kind}), body)


class Door:
    """A control plane's socket that turns workers away as told, one answer after the other; then it lets them in."""

    def __init__(self, *answers: Response):
        self._answers: Iterator[Response] = iter(answers)
        self.asked: list[tuple[str, str]] = []
        self.opened = asyncio.Event()
        self.received: list[ServerMessage] = []
        self.heard = asyncio.Event()
        self.prefix = ""
        self.tokens = iter(("t1", "t2", "t3", "t4"))

    async def run(self, until: asyncio.Event) -> None:
        """Let a channel knock until `until`."""

        def look(_: ServerConnection, request: Request) -> Response | None:
            self.asked.append((request.path, request.headers["Authorization"]))
            return next(self._answers, None)

        async def let_in(connection: ServerConnection) -> None:
            await connection.wait_closed()

        async with serve(let_in, "127.0.0.1", 0, process_request=look) as server:
            port = next(iter(server.sockets)).getsockname()[1]
            url = f"http://127.0.0.1:{port}{self.prefix}"
            channel = Channel(
                lambda: Endpoint(url=url, token=next(self.tokens, "t9"), pid=0, version=""),
                opened=self.opened.set,
                received=self._take,
                closed=lambda: None,
            )
            knocking = asyncio.ensure_future(channel.run())
            await asyncio.wait_for(until.wait(), 30)
            knocking.cancel()
            await asyncio.gather(knocking, return_exceptions=True)

    def _take(self, messages: list[ServerMessage]) -> None:
        self.received += messages
        self.heard.set()


@pytest.mark.parametrize("code", ["token_revoked", "token_expired"])
def test_a_credential_that_ended_ends_the_worker(code: str) -> None:
    async def run() -> None:
        door = Door(turned_away(401, code))
        await door.run(door.heard)
        assert door.received == [Refuse(code=code, text="no: ask")]

    asyncio.run(run())


def test_any_other_answer_is_tried_again_with_what_the_file_says_then() -> None:
    """An address of one that has just begun, a proxy whose control plane is away, a file that is about to change."""

    async def run() -> None:
        door = Door(
            turned_away(401, "unauthorized"),
            turned_away(401, "token_revoked", "text/html"),
            Response(502, "Bad Gateway", Headers(), b""),
        )
        await door.run(door.opened)
        assert door.received == []
        assert [token for _, token in door.asked] == [f"Bearer t{n}" for n in (1, 2, 3, 4)]

    asyncio.run(run())


@pytest.mark.parametrize("where", ["same", "other"])
def test_no_redirect_is_followed(where: str, caplog: pytest.LogCaptureFixture) -> None:
    """A credential goes to where it belongs, and to nowhere that somebody's answer names."""

    async def run() -> None:
        elsewhere: list[str] = []

        def look(_: ServerConnection, request: Request) -> Response:
            elsewhere.append(request.path)
            return Response(502, "Bad Gateway", Headers(), b"")

        async def nobody(_: ServerConnection) -> None: ...

        async with serve(nobody, "127.0.0.1", 0, process_request=look) as other:
            port = next(iter(other.sockets)).getsockname()[1]
            place = "/login" if where == "same" else f"ws://127.0.0.1:{port}/v1/worker"
            door = Door(Response(302, "Found", Headers({"Location": place}), b""))
            await door.run(door.opened)
        assert [path for path, _ in door.asked] == ["/v1/worker"] * 2
        assert elsewhere == []

    asyncio.run(run())
    assert "HTTP 302" in caplog.text


@pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:1", "nonsense://x"])
def test_a_proxy_that_can_not_be_used_is_said_and_tried_again(
    proxy: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("https_proxy", "HTTPS_PROXY"):
        monkeypatch.setenv(name, proxy)

    async def run() -> None:
        asked = asyncio.Event()
        tries: list[int] = []

        def endpoint() -> Endpoint:
            tries.append(1)
            if len(tries) > 1:
                asked.set()
            return Endpoint(url="https://192.0.2.1:1", token="t", pid=0, version="")

        channel = Channel(endpoint, opened=asked.set, received=lambda _: None, closed=lambda: None)
        knocking = asyncio.ensure_future(channel.run())
        await asyncio.wait_for(asked.wait(), 30)
        knocking.cancel()
        await asyncio.gather(knocking, return_exceptions=True)

    asyncio.run(run())
    assert "control plane https://192.0.2.1:1 out of reach for 0 s: " in caplog.text


def test_the_socket_lies_below_the_addresss_own_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """And on this machine no proxy of the environment is asked for it."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")

    async def run() -> None:
        door = Door()
        door.prefix = "/user/x/gpulayer"
        await door.run(door.opened)
        assert door.asked == [("/user/x/gpulayer/v1/worker", "Bearer t1")]

    asyncio.run(run())


def test_while_nobody_answers_it_says_where_how_long_and_when_it_tries_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Situation 20: address, how long, next try in; jobs go on. At once, and then ever more seldom."""
    monkeypatch.setattr(channel_module, "_LAST_BACKOFF_S", 0.05)
    monkeypatch.setattr(channel_module, "_SAID_AGAIN_S", 0.4)
    monkeypatch.setattr(channel_module, "_TOLD_AFTER_S", 0.1)
    told: list[str] = []  # on the terminal: once, as nothing changes

    async def run() -> None:
        tries: list[int] = []
        enough = asyncio.Event()

        def endpoint() -> Endpoint:
            tries.append(1)
            if len(tries) > 14:
                enough.set()
            return Endpoint(url="http://127.0.0.1:1", token="t", pid=0, version="")

        channel = Channel(endpoint, opened=lambda: None, received=lambda _: None, closed=lambda: None, tell=told.append)
        knocking = asyncio.ensure_future(channel.run())
        await asyncio.wait_for(enough.wait(), 30)
        knocking.cancel()
        await asyncio.gather(knocking, return_exceptions=True)

    asyncio.run(run())
    said = [record.getMessage() for record in caplog.records if "out of reach" in record.getMessage()]
    assert 1 <= len(said) <= 4, said
    form = r"control plane http://127\.0\.0\.1:1 out of reach for \d+ s: .*refused.*; next try in \d\.\d s; jobs go on"
    assert all(re.fullmatch(form, line, re.IGNORECASE | re.DOTALL) for line in said), said
    [line] = told
    assert re.fullmatch(form, line, re.IGNORECASE | re.DOTALL)


def test_another_certificate_than_the_pinned_one_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        own, other = [own_certificate(folder) for folder in (tmp_path / "a", tmp_path / "b")]
        text = own.path.read_text()
        pem = text[text.index("-----BEGIN CERTIFICATE") :]
        tried = asyncio.Event()
        count = iter(range(100))

        async def let_in(connection: ServerConnection) -> None:
            raise AssertionError("nobody may come in")

        async with serve(let_in, "127.0.0.1", 0, ssl=other.context()) as server:
            port = next(iter(server.sockets)).getsockname()[1]

            def endpoint() -> Endpoint:
                if next(count):
                    tried.set()
                url = f"https://127.0.0.1:{port}"
                return Endpoint(url=url, token="t", pid=0, version="", fingerprint=own.fingerprint, certificate=pem)

            channel = Channel(endpoint, opened=lambda: None, received=lambda _: None, closed=lambda: None)
            knocking = asyncio.ensure_future(channel.run())
            await asyncio.wait_for(tried.wait(), 30)
            knocking.cancel()
            await asyncio.gather(knocking, return_exceptions=True)

    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    asyncio.run(run())
    assert "presents another certificate than the one that this worker joined with, SHA256:" in caplog.text


def test_a_control_plane_that_comes_is_found_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not when it would be tried next; what was tried already is not tried again for that."""
    monkeypatch.setattr(channel_module, "_FIRST_BACKOFF_S", 3600.0)

    async def run() -> None:
        nobody = Endpoint(url="http://127.0.0.1:1", token="t", pid=0, version="")
        there = [nobody]
        tried, opened = asyncio.Event(), asyncio.Event()

        def endpoint() -> Endpoint:
            tried.set()
            return there[0]

        async def let_in(connection: ServerConnection) -> None:
            await connection.wait_closed()

        channel = Channel(endpoint, opened=opened.set, received=lambda _: None, closed=lambda: None)
        knocking = asyncio.ensure_future(channel.run())
        await asyncio.wait_for(tried.wait(), 30)
        channel.look()
        assert not channel._moved.is_set()
        async with serve(let_in, "127.0.0.1", 0) as server:
            there[0] = msgspec.structs.replace(
                nobody, url=f"http://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"
            )
            channel.look()
            await asyncio.wait_for(opened.wait(), 30)
            knocking.cancel()
            await asyncio.gather(knocking, return_exceptions=True)

    asyncio.run(run())

"""Requests to the control plane, as streams in both directions."""

from __future__ import annotations

import asyncio
import urllib.parse
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tornado.http1connection import HTTP1Connection, HTTP1ConnectionParameters
from tornado.httputil import HTTPHeaders, HTTPMessageDelegate, RequestStartLine, ResponseStartLine
from tornado.iostream import IOStream, StreamClosedError
from tornado.tcpclient import TCPClient

from gpulayer.protocol.endpoint import Endpoint
from gpulayer.protocol.pin import PinError, context_of
from gpulayer_jupyter.place import Place

_CONNECT_S = 10.0
_COMES_BACK_S = 5.0  # whoever takes over listens again by then
_STARTS_S = 30.0  # a control plane of many jobs, on a machine that has much else to do
_LOOK_S = 0.1
_MAX_BODY_BYTES = 1 << 40  # of an answer, which is never held in whole
_READ_BYTES = 65_536

Sink = Callable[[bytes], Awaitable[None]]


class Away(Exception):
    """No control plane answers; says why."""


@dataclass(frozen=True, kw_only=True)
class Head:
    """How an answer begins."""

    status: int
    reason: str
    headers: HTTPHeaders


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request to a control plane; `path` lies below its address, and begins with /v1."""

    method: str
    path: str
    headers: HTTPHeaders
    token: str | None = None  # that of whoever asks; None: the control plane's own, which `ask` adds


class Exchange:
    """One request and its answer, on the loop that made it. Nothing is held but what is under way."""

    def __init__(self, endpoint: Endpoint, stream: IOStream):
        """`stream`: a connection to `endpoint`, which is closed by `close`."""
        self.endpoint = endpoint
        self.stream = stream
        params = HTTP1ConnectionParameters(no_keep_alive=True, chunk_size=_READ_BYTES, max_body_size=_MAX_BODY_BYTES)
        self._connection = HTTP1Connection(stream, is_client=True, params=params)
        self._answer = _Answer(self._connection)

    def begin(self, request: Request) -> None:
        """Send the request's head. Its answer is read from here on: it may come before the body went."""
        url = urllib.parse.urlsplit(self.endpoint.url)
        headers = HTTPHeaders(request.headers)
        headers["Host"] = url.netloc
        headers["Authorization"] = f"Bearer {self.endpoint.token}" if request.token is None else request.token
        if "Upgrade" not in headers:
            headers["Connection"] = "close"
        self._connection.write_headers(RequestStartLine(request.method, url.path + request.path, "HTTP/1.1"), headers)
        self._reading = asyncio.ensure_future(self._read())

    async def send(self, chunk: bytes) -> None:
        """Send a part of the body, and wait until it is on its way. Once there is an answer nothing more is sent."""
        for _ in range(2):  # an answer that is here already is read first: a failed write would lose it
            await asyncio.sleep(0)
        if self._answer.head.done() or self.stream.closed():
            return
        try:
            await self._connection.write(chunk)
        except StreamClosedError:
            return  # the answer, or that there is none, says why

    def finish(self) -> None:
        """The request is whole."""
        if not self._answer.head.done() and not self.stream.closed():
            self._connection.finish()

    async def head(self) -> Head:
        """The answer's status and headers; after status 101 `stream` is the caller's. Raises `Away`."""
        return await self._answer.head

    async def copy(self, sink: Sink) -> None:
        """Hand the answer's body on as fast as `sink` takes it. Raises `Away`, and what `sink` raises."""
        self._answer.give_to(sink)
        await self._answer.end

    def close(self) -> None:
        """End it, wherever it is."""
        self.stream.close()
        self._answer.fail(Away("the request was given up"))

    async def _read(self) -> None:
        try:
            await self._connection.read_response(self._answer)
        except StreamClosedError:
            self._answer.fail(Away(f"{self.endpoint.url} closed the connection"))


class _Answer(HTTPMessageDelegate):
    """What comes back."""

    def __init__(self, connection: HTTP1Connection):
        loop = asyncio.get_running_loop()
        self.head: asyncio.Future[Head] = loop.create_future()
        self.end: asyncio.Future[None] = loop.create_future()
        for future in (self.head, self.end):
            future.add_done_callback(_looked_at)
        self._connection = connection
        self._sink: Sink | None = None
        self._released = asyncio.Event()

    def give_to(self, sink: Sink) -> None:
        self._sink = sink
        self._released.set()

    def headers_received(self, start_line: RequestStartLine | ResponseStartLine, headers: HTTPHeaders) -> None:
        if not isinstance(start_line, ResponseStartLine) or start_line.code == 100 or self.head.done():
            return
        if start_line.code == 101:
            self._connection.detach()
        self.head.set_result(Head(status=start_line.code, reason=start_line.reason, headers=headers))

    async def data_received(self, chunk: bytes) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        await self._released.wait()
        if self._sink is None or self.end.done():
            return
        try:
            await self._sink(chunk)
        except Exception as error:  # noqa: BLE001 raised where `end` is waited for
            self.fail(error)
            self._connection.close()

    def finish(self) -> None:
        if not self.end.done():
            self.end.set_result(None)

    def on_connection_close(self) -> None:
        self.fail(Away("the control plane closed the connection"))

    def fail(self, error: Exception) -> None:
        for future in (self.head, self.end):
            if not future.done():
                future.set_exception(error)
        self._released.set()


def _looked_at(future: asyncio.Future[Head] | asyncio.Future[None]) -> None:
    """Nobody may have waited for it."""
    if not future.cancelled():
        future.exception()


async def connect(place: Place) -> Exchange:
    """A connection to the control plane, wherever it is by now. Raises `Away`, after a few seconds of looking."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    while True:
        endpoint = place.endpoint()
        why = ""
        if endpoint is not None:
            try:
                return Exchange(endpoint, await _connected(endpoint))
            except PinError as error:
                raise Away(f"{error}; name the right one with GpulayerApp.fingerprint") from error
            except (OSError, StreamClosedError, asyncio.TimeoutError) as error:
                why = f"{endpoint.url} does not answer: {error}"
        status = place.status()
        patience_s = {"failed": 0.0, "starting": _STARTS_S}.get(status.state, _COMES_BACK_S)
        if loop.time() - began >= patience_s:
            raise Away(why if why and status.state != "failed" else status.text)
        await asyncio.sleep(_LOOK_S)  # whoever takes over is another process: there is nothing to wait for


async def ask(place: Place, request: Request, body: bytes = b"") -> tuple[Exchange, Head]:
    """Send a request whose body is at hand. Where the control plane has moved meanwhile, it is asked where it is now.

    Raises `Away`. The caller closes the exchange.
    """
    while True:
        exchange = await connect(place)
        try:
            exchange.begin(request)
            if body:
                await exchange.send(body)
            exchange.finish()
            head = await exchange.head()
        except BaseException:
            exchange.close()
            raise
        if head.status != 401 or request.token is not None or place.endpoint() == exchange.endpoint:
            return exchange, head
        exchange.close()


async def _connected(endpoint: Endpoint) -> IOStream:
    url = urllib.parse.urlsplit(endpoint.url)
    tls = None
    if url.scheme == "https":  # what is pinned is compared first, which takes a connection of its own
        tls = await asyncio.to_thread(context_of, endpoint)
    port = url.port or (443 if tls else 80)
    stream = await TCPClient().connect(url.hostname or "", port, ssl_options=tls, timeout=_CONNECT_S)
    stream.set_nodelay(True)
    return stream

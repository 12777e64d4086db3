"""Jupyter's routes to the control plane, below `gpulayer/` of the server's base URL.

A browser, or whoever has Jupyter's token, is known to Jupyter: its requests go on with the control plane's own token.
A worker of another machine is not: its requests go on with the token that it brings, and the control plane judges it.
"""

from __future__ import annotations

import contextlib
import urllib.parse
from dataclasses import dataclass
from typing import Any

import msgspec
from jupyter_server.auth.decorator import allow_unauthenticated
from jupyter_server.auth.utils import HTTP_METHOD_TO_AUTH_ACTION
from jupyter_server.base.handlers import APIHandler, JupyterHandler
from jupyter_server.utils import ensure_async
from tornado import web
from tornado.httputil import HTTPHeaders
from tornado.iostream import IOStream, StreamClosedError

from gpulayer._version import __version__
from gpulayer.protocol.types import Problem
from gpulayer_jupyter.place import Place
from gpulayer_jupyter.thread import LoopThread, ThreadEnded
from gpulayer_jupyter.tunnel import Tunnels, close, release, shake_hands
from gpulayer_jupyter.upstream import Away, Exchange, Head, Request, ask, connect

RESOURCE = "gpulayer"
"""What a Jupyter authorizer is asked about."""

_WORKER_TOKEN = "Bearer gl-worker-"
_SMALL_BYTES = 65_536  # a body that is held, so that it can be sent again where the control plane has moved
_MAX_UPLOAD_BYTES = 8 << 30  # the control plane has its own limit, and says so
_TO_UPSTREAM = (
    *("Accept", "Content-Type", "Content-Encoding", "If-None-Match", "Range", "Upload-Offset", "Upload-Checksum"),
)
_TO_CLIENT = (
    *("Content-Type", "Content-Length", "Content-Encoding", "Content-Range", "Accept-Ranges", "Cache-Control", "ETag"),
    *("Retry-After", "Last-Modified", "Upload-Offset"),
)
_HANDSHAKE = ("Sec-WebSocket-Key", "Sec-WebSocket-Version", "Sec-WebSocket-Extensions", "Sec-WebSocket-Protocol")
_HANDSHAKE_ANSWER = ("Sec-WebSocket-Accept", "Sec-WebSocket-Extensions", "Sec-WebSocket-Protocol")


@dataclass(frozen=True, kw_only=True)
class Bridge:
    """What the handlers share: where the control plane is, and the thread on which websockets go by."""

    place: Place
    thread: LoopThread
    tunnels: Tunnels


def handlers(bridge: Bridge) -> list[tuple[str, type[web.RequestHandler], dict[str, Any]]]:
    """Paths below the base URL, and their handlers."""
    given = {"bridge": bridge}
    return [
        (r"gpulayer/status", StatusHandler, given),
        (r"gpulayer(/v1/(?:worker|join))", WorkerHandler, given),
        (r"gpulayer(/v1/(?:blobs|bundles|uploads|health)(?:/.*)?)", SharedHandler, given),
        (r"gpulayer(/v1/.*)", ProxyHandler, given),
    ]


class _Handler(APIHandler):
    """Knows the bridge, and speaks in problems."""

    auth_resource = RESOURCE

    def initialize(self, bridge: Bridge) -> None:
        """Taken from the route table."""
        self.bridge = bridge

    async def prepare(self) -> None:
        """Jupyter's own checks: who asks, from which site. Raises 403 before a byte of the body is taken."""
        self._track_activity = self.request.method != "GET"  # a panel that looks on keeps no server from being culled
        await JupyterHandler.prepare(self)
        if not self.check_origin():
            raise web.HTTPError(403, f"a page of {self.get_origin()} may not use {self.request.host}")
        if self.request.method == "OPTIONS" or self._finished:
            return
        if self.current_user is None:
            raise web.HTTPError(403)
        self._check_fetch_site()
        await self._check_authorized()

    def _check_fetch_site(self) -> None:
        """A browser says when another site asks, also where there is no Origin."""
        site = self.request.headers.get("Sec-Fetch-Site", "none")
        trusted = self.token_authenticated or self.allow_origin or self.allow_origin_pat
        if site not in ("none", "same-origin") and not trusted:
            raise web.HTTPError(403, f"a page of another site may not use {self.request.host}")

    async def _check_authorized(self) -> None:
        action = "execute" if self._upgrades else HTTP_METHOD_TO_AUTH_ACTION[self.request.method or "GET"]
        if not await ensure_async(self.authorizer.is_authorized(self, self.current_user, action, RESOURCE)):
            raise web.HTTPError(403, f"this user may not {action} {RESOURCE}")

    @property
    def _upgrades(self) -> bool:
        return self.request.headers.get("Upgrade", "").lower() == "websocket"

    def problem(self, status: int, code: str, title: str, detail: str) -> None:
        """Answer with a problem, as the control plane would."""
        self.set_status(status)
        body = msgspec.json.encode(Problem(status=status, code=code, title=title, detail=detail))
        self.finish(body, set_content_type="application/problem+json")


class StatusHandler(_Handler):
    """GET gpulayer/status"""

    @web.authenticated
    async def get(self) -> None:
        """How this server stands to the control plane."""
        status = self.bridge.place.status()
        shown = {"version": __version__, "state": status.state, "text": status.text}
        self.finish(msgspec.json.encode(shown | {"data": status.data, "url": status.url}))


@web.stream_request_body
class _Proxy(_Handler):
    """Hands requests on, as streams; a request to upgrade becomes a tunnel."""

    _exchange: Exchange | None = None
    _whole = False  # the request was read to its end

    # ---------------------------------------------------------------- the request

    async def prepare(self) -> None:
        """After Jupyter's checks: a large body goes on while it comes."""
        await self.check()
        if self.request.method == "OPTIONS" or self._finished:
            return
        self._body = bytearray()
        self._path = self._target()
        chunked = "Transfer-Encoding" in self.request.headers
        length = self.request.headers.get("Content-Length", "0")
        if not chunked and length.isdecimal() and int(length) <= _SMALL_BYTES:
            return
        self.request.connection.set_max_body_size(_MAX_UPLOAD_BYTES)  # type: ignore[union-attr]
        try:
            self._exchange = await connect(self.bridge.place)
        except Away as error:
            self._away(error)
            return
        headers = self._only(_TO_UPSTREAM)
        if length.isdecimal() and not chunked:
            headers["Content-Length"] = length
        self._exchange.begin(self._asked(headers))

    async def check(self) -> None:
        """Who may use this route."""
        await super().prepare()

    def set_default_headers(self) -> None:
        """An answer that comes before the request's end is the last of its connection, and has to say so."""
        super().set_default_headers()
        if not self._whole:
            self.set_header("Connection", "close")

    def begin_answer(self) -> None:
        """The request is whole."""
        self._whole = True
        self.clear_header("Connection")

    def check_worker(self) -> None:
        """A worker is no user of Jupyter's, and no browser."""
        self.current_user = self._jupyter_current_user = None
        if not self.check_host():
            raise web.HTTPError(403)
        if self.get_origin() is not None:
            raise web.HTTPError(403, "workers come here, and no browser")

    def authorization(self) -> str | None:
        """The Authorization header that goes on; None: the control plane's own token."""
        return None

    def _target(self) -> str:
        """The path that is asked for, as it came, with its query but for Jupyter's token. Raises 400 if it climbs."""
        if ".." in urllib.parse.unquote(self.path_args[0]).split("/"):
            raise web.HTTPError(400, "a path may not climb")
        path, _, query = (self.request.uri or "").partition("?")
        kept = "&".join(part for part in query.split("&") if part and not part.startswith("token="))
        return path[len(self.base_url.rstrip("/") + "/gpulayer") :] + (f"?{kept}" if kept else "")

    def _asked(self, headers: HTTPHeaders) -> Request:
        return Request(method=self.request.method or "", path=self._path, headers=headers, token=self.authorization())

    def _only(self, names: tuple[str, ...]) -> HTTPHeaders:
        return HTTPHeaders({name: self.request.headers[name] for name in names if name in self.request.headers})

    async def data_received(self, chunk: bytes) -> None:
        """A part of the body."""
        if self._exchange is not None:
            await self._exchange.send(chunk)
        else:
            self._body += chunk

    def on_connection_close(self) -> None:
        """Whoever asked is gone."""
        super().on_connection_close()
        self.on_finish()

    def on_finish(self) -> None:
        """The exchange ends, however the request did."""
        if self._exchange is not None:
            self._exchange.close()

    # ---------------------------------------------------------------- the answer

    async def forward(self) -> None:
        """Hand the request on and the answer back."""
        self.begin_answer()
        try:
            if self._exchange is not None:
                self._exchange.finish()
                head = await self._exchange.head()
            else:
                headers = self._only(_TO_UPSTREAM)
                if self._body or self.request.method != "GET":
                    headers["Content-Length"] = str(len(self._body))
                self._exchange, head = await ask(self.bridge.place, self._asked(headers), bytes(self._body))
        except Away as error:
            self._away(error)
            return
        if not self._refused(head):
            await self._hand_back(self._exchange, head)

    async def _hand_back(self, exchange: Exchange, head: Head) -> None:
        self._take_head(head, _TO_CLIENT)
        try:
            await self.flush()
            if head.status not in (204, 304):
                await exchange.copy(self._pass_on)
        except (Away, StreamClosedError):
            self.detach().close()  # what looks whole must be whole
            return
        finally:
            exchange.close()
        self.finish(set_content_type=head.headers.get("Content-Type", "application/octet-stream"))

    async def _pass_on(self, chunk: bytes) -> None:
        self.write(chunk)
        await self.flush()

    def _take_head(self, head: Head, names: tuple[str, ...]) -> None:
        self.set_status(head.status, head.reason)
        for name in names:
            if name in head.headers:
                self.set_header(name, head.headers[name])

    def _away(self, error: Away) -> None:
        self.problem(503, "control_plane_away", "the control plane does not answer", str(error))

    def _refused(self, head: Head) -> bool:
        """Whether the control plane would not have *us*; whoever asked hears something else than its own refusal."""
        if 300 <= head.status < 400 and head.status != 304:
            detail = f"it answered with a redirect (HTTP {head.status}); name its own address"
            self.problem(502, "redirected", "this is not a control plane", detail)
            return True
        if head.status == 401 and self.authorization() is None:
            detail = self.bridge.place.status().text
            self.problem(502, "token_refused", "the control plane refuses the token of this Jupyter server", detail)
            return True
        return False

    # ---------------------------------------------------------------- websockets

    async def tunnel(self) -> None:
        """Connect to the control plane first; then answer with what it answered, and let the bytes go by."""
        self.begin_answer()
        headers = self._only(_HANDSHAKE)
        headers["Upgrade"], headers["Connection"] = "websocket", "Upgrade"
        try:
            opened = await self.bridge.thread.run(shake_hands(self.bridge.place, self._asked(headers)))
        except (Away, ThreadEnded) as error:
            self._away(Away(str(error)))
            return
        if opened.stream is None:
            if not self._refused(opened.head):
                self._take_head(opened.head, ("Content-Type", "Retry-After"))
                self.finish(opened.body, set_content_type=opened.head.headers.get("Content-Type", "text/plain"))
            return
        try:
            await self._splice(opened.head, opened.stream)
        except (StreamClosedError, ThreadEnded):  # who asked is gone, or Jupyter ends
            with contextlib.suppress(ThreadEnded):
                await self.bridge.thread.run(close(opened.stream))

    async def _splice(self, head: Head, upstream: IOStream) -> None:
        self._take_head(head, _HANDSHAKE_ANSWER)
        self.set_header("Upgrade", "websocket")
        self.set_header("Connection", "Upgrade")
        answered = self.finish()
        stream = self.detach()
        try:
            await answered
            client, early = release(stream)
        except BaseException:
            stream.close()
            raise
        await self.bridge.thread.run(self.bridge.tunnels.add(client, early, upstream))


class ProxyHandler(_Proxy):
    """gpulayer/v1/…, for those whom Jupyter knows."""

    @web.authenticated
    async def get(self, path: str) -> None:
        """Read, or open a websocket."""
        await (self.tunnel() if self._upgrades else self.forward())

    @web.authenticated
    async def post(self, path: str) -> None:
        """Write."""
        await self.forward()

    @web.authenticated
    async def delete(self, path: str) -> None:
        """Write."""
        await self.forward()


class WorkerHandler(_Proxy):
    """gpulayer/v1/worker and gpulayer/v1/join, for workers of other machines: the control plane checks their tokens."""

    async def check(self) -> None:
        """Nobody that Jupyter has to know."""
        self.check_worker()

    def authorization(self) -> str | None:
        """The worker's own, wrong as it may be."""
        return self.request.headers.get("Authorization", "")

    @allow_unauthenticated
    async def get(self, path: str) -> None:
        """The workers' socket."""
        await (self.tunnel() if self._upgrades else self.forward())

    @allow_unauthenticated
    async def post(self, path: str) -> None:
        """A join token for a credential."""
        await self.forward()


class SharedHandler(_Proxy):
    """gpulayer/v1/blobs…, bundles…, uploads… and health, for those whom Jupyter knows and for workers."""

    @property
    def _of_worker(self) -> bool:
        return self.request.headers.get("Authorization", "").startswith(_WORKER_TOKEN)

    async def check(self) -> None:
        """A worker by the control plane's judgement, everybody else by Jupyter's."""
        if self._of_worker:
            self.check_worker()
        else:
            await super().check()

    def authorization(self) -> str | None:
        """A worker's own."""
        return self.request.headers["Authorization"] if self._of_worker else None

    @allow_unauthenticated  # `check` has asked whom Jupyter has to know
    async def get(self, path: str) -> None:
        """Read."""
        await self.forward()

    @allow_unauthenticated
    async def head(self, path: str) -> None:
        """Whether a blob is there."""
        await self.forward()

    @allow_unauthenticated
    async def post(self, path: str) -> None:
        """Write."""
        await self.forward()

    @allow_unauthenticated
    async def patch(self, path: str) -> None:
        """A chunk of a blob."""
        await self.forward()

"""What every handler shares: authentication before anything else, problems as JSON."""

from __future__ import annotations

import asyncio
import hmac
import re
import traceback
from typing import Any

import msgspec
from tornado import web, websocket

from gpulayer.protocol.types import Problem
from gpulayer_server.auth import ADMIN, JOIN, WORKER, Token
from gpulayer_server.shell import Shell, log
from gpulayer_server.tokens import Tokens

MAY: dict[str, re.Pattern[str]] = {
    ADMIN: re.compile(r"(?!POST /v1/join$).*"),
    JOIN: re.compile(r"POST /v1/join"),
    WORKER: re.compile(r"GET /v1/(health|worker)|[A-Z]+ /v1/(blobs|bundles)(/.*)?"),
}
"""Role: the methods and paths that it may use. What is not named here is the admin's alone."""


class Access:
    """Who may do what: the token of `endpoint.json`, and those that were given out."""

    def __init__(self, token: str, tokens: Tokens):
        self.tokens = tokens
        self._admin = f"Bearer {token}".encode()

    def check(self, authorization: str, method: str, path: str) -> Token | None:
        """The token that a request brings, None for that of `endpoint.json`. Raises `ProblemError`: 401 or 403."""
        given = authorization.encode()
        if hmac.compare_digest(given, self._admin):
            token, role = None, ADMIN
        else:
            scheme, _, text = authorization.partition(" ")
            token = self.tokens.find(text) if scheme == "Bearer" else None
            if token is None:
                raise ProblemError(_UNKNOWN)
            problem = self.tokens.problem(token)
            if problem is not None:
                raise ProblemError(problem)
            role = token.role
        if not MAY[role].fullmatch(f"{method} {path}"):
            raise ProblemError(_wrong_role(role, method, path))
        return token


_UNKNOWN = Problem(
    status=401,
    code="unauthorized",
    title="wrong or missing token",
    detail="the token is in endpoint.json of the control plane's data folder",
)


def _wrong_role(role: str, method: str, path: str) -> Problem:
    needed = " or ".join(name for name, pattern in MAY.items() if pattern.fullmatch(f"{method} {path}"))
    return Problem(
        status=403,
        code="wrong_role",
        title=f"a token of the role {role} may not do this",
        detail=f"{method} {path[:200]} needs a token of the role {needed}",
    )


class Handler(web.RequestHandler):
    """A handler of `/v1`: needs the token of `endpoint.json`, or one of a role that may use it."""

    shell: Shell
    owner: str
    access: Access
    token: Token | None = None  # that of the request; None: the one of endpoint.json

    def initialize(self, shell: Shell, access: Access, owner: str) -> None:
        """Taken from the route table."""
        self.shell = shell
        self.owner = owner
        self.access = access

    def prepare(self) -> None:
        """No request goes further without a token that may."""
        request = self.request
        self.token = self.access.check(request.headers.get("Authorization", ""), request.method or "", request.path)

    def answer(self, value: Any, status: int = 200) -> None:
        """Finish with JSON."""
        self.set_status(status)
        self.set_header("Content-Type", "application/json")
        self.finish(msgspec.json.encode(value))

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Errors as problem details, RFC 9457."""
        error = kwargs.get("exc_info", (None, None, None))[1]
        if isinstance(error, ProblemError):
            problem = error.problem
        else:
            problem = Problem(status=status_code, code="error", title=self._reason, detail=str(error or ""))
        self.set_header("Content-Type", "application/problem+json")
        self.finish(msgspec.json.encode(problem))

    def log_exception(self, typ: Any, value: Any, tb: Any) -> None:
        """A problem is the client's to read; anything else is ours and goes to the log whole."""
        if not isinstance(value, web.HTTPError):
            log.error("%s: %s", self.request.path, "".join(traceback.format_exception(typ, value, tb)))


class ProblemError(web.HTTPError):
    """A problem as an exception."""

    def __init__(self, problem: Problem):
        super().__init__(problem.status, problem.title)
        self.problem = problem


class Socket(Handler, websocket.WebSocketHandler):
    """A websocket with the same authentication, before the upgrade."""

    def open(self, *args: str, **kwargs: str) -> None:
        """Without this each hop waits 40 ms for Nagle's algorithm."""
        self.set_nodelay(True)

    def write_frame(self, frame: bytes) -> asyncio.Future[None] | None:
        """Send one frame: None when all of it is with the operating system, else a future to wait for.

        Raises `WebSocketClosedError` for a closed socket, also by the future.
        """
        sent = self.write_message(frame, binary=True)
        stream = self.ws_connection.stream if self.ws_connection is not None else None
        if stream is None or stream.writing():
            return sent
        sent.add_done_callback(ignored)
        return None


def ignored(sent: asyncio.Future[None]) -> None:
    """A socket that closes under a frame says so by `on_close`; asyncio wants its exception looked at."""
    if not sent.cancelled():
        sent.exception()


def parse(body: bytes, kind: type[Any]) -> Any:
    """A JSON body of a type; a wrong one is a problem 400 that names the field."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.MsgspecError as error:
        raise ProblemError(
            Problem(status=400, code="bad_request", title="the request's body is not of its form", detail=str(error))
        ) from error

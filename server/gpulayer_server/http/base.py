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
from gpulayer_server.auth import ADMIN, JOIN, METRICS, READER, SUBMITTER, WORKER, Token, wrong_role
from gpulayer_server.shell import Shell, log
from gpulayer_server.tokens import Tokens

_LOOKING = (
    r"GET /v1/(health|openapi\.json|workers|watch|sessions|jobs(/[^/]+(/.*)?)?|maps(/[^/]+(/results)?)?)"
    r"|(GET|HEAD) /v1/blobs/[0-9a-f]{64}|POST /v1/(jobs/states|blobs/fetch|explain)"
)
_SUBMITTING = (
    r"POST /v1/(jobs(/batch|/[^/]+/cancel)?|maps/[^/]+/cancel|blobs|bundles)|(GET|HEAD|PATCH) /v1/uploads/.*"
    r"|DELETE /v1/sessions/[^/]+|GET /v1/client"
)

MAY: dict[str, re.Pattern[str]] = {
    METRICS: re.compile(r"GET /(metrics|v1/health)"),
    JOIN: re.compile(r"POST /v1/join"),
    WORKER: re.compile(r"GET /v1/(health|worker)|[A-Z]+ /v1/(blobs|bundles|uploads)(/.*)?"),
    READER: re.compile(_LOOKING),
    SUBMITTER: re.compile(f"{_LOOKING}|{_SUBMITTING}"),
    ADMIN: re.compile(r"(?!POST /v1/join$).*"),
}
"""Role: the methods and paths that it may use, the least role first. What is not named here is the admin's alone."""


CUT_OFF = 4401
"""The code with which a websocket closes whose token has ended."""

_REASON_BYTES = 120
_LEAST_S, _MOST_S = 0.05, 3600.0  # between two looks at a token that will end: clocks are set


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
    asked = f"{method} {path}"
    needed = [name for name, pattern in MAY.items() if name != WORKER and pattern.fullmatch(asked)]
    return wrong_role(role, "joining with a machine" if path == "/v1/join" else asked[:200], needed)


class Handler(web.RequestHandler):
    """A handler of `/v1`: needs the token of `endpoint.json`, or one of a role that may use it."""

    shell: Shell
    user: str  # of the operating system, whose control plane this is
    owner: str  # whose the jobs and sessions are that this request brings: the user's, or those of its token's name
    access: Access
    token: Token | None = None  # that of the request; None: the one of endpoint.json

    def initialize(self, shell: Shell, access: Access, owner: str) -> None:
        """Taken from the route table."""
        self.shell = shell
        self.user = self.owner = owner
        self.access = access

    def prepare(self) -> None:
        """No request goes further without a token that may."""
        request = self.request
        self.token = self.access.check(request.headers.get("Authorization", ""), request.method or "", request.path)
        if self.token is not None and self.token.role != WORKER:
            self.owner = self.token.name

    def may_touch(self, owner: str) -> bool:
        """Whether this request may cancel or release what is `owner`'s: a submitter its own, an admin everybody's."""
        if self.token is None or self.token.role == ADMIN:
            return True
        return self.token.role == SUBMITTER and owner == self.owner

    def not_theirs(self, job: str, owner: str | None) -> Problem | None:
        """Why this request may not cancel a job; None where it may, and where there is no such job."""
        if owner is None or self.may_touch(owner):
            return None
        title = f"job {job} is {owner}'s, and a token of the role {SUBMITTER} may cancel its own jobs only"
        detail = "ask its owner, or use a token of the role admin"
        return Problem(status=403, code="wrong_role", title=title, detail=detail)

    def not_their_map(self, name: str, owner: str, what: str) -> Problem | None:
        """Why this request may not `what` a map that is `owner`'s; None where it may."""
        if self.may_touch(owner):
            return None
        title = f"map {name} is {owner}'s, and a token of the role {SUBMITTER} may {what} its own maps only"
        detail = "ask its owner, or use a token of the role admin"
        return Problem(status=403, code="wrong_role", title=title, detail=detail)

    def answer(self, value: Any, status: int = 200) -> None:
        """Finish with JSON. Who asked to wait, and whose token has ended meanwhile, is told that instead."""
        if self.token is not None and self.request.method == "GET":
            problem = self.access.tokens.problem(self.token)
            if problem is not None:
                raise ProblemError(problem)
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
        """Without `set_nodelay` each hop waits 40 ms for Nagle's algorithm."""
        self.set_nodelay(True)
        if self.token is not None and self.token.role != WORKER:  # workers' sockets do the same, and are told more
            self.access.tokens.opened(self.token, self)
            self._check_token(self.token)

    _token_check: asyncio.TimerHandle | None = None

    def _check_token(self, token: Token) -> None:
        """Cut off whose token has ended; it is looked at when it does."""
        problem = self.access.tokens.problem(token)
        if problem is not None:
            self.cut_off(problem)
        elif token.expires_at is not None:
            left_s = token.expires_at - self.shell.clock.now()
            loop = asyncio.get_running_loop()
            self._token_check = loop.call_later(min(max(left_s, _LEAST_S), _MOST_S), self._check_token, token)

    def cut_off(self, problem: Problem) -> None:
        """Close the connection: its token has ended. The other side may take its time, but is not heard any more."""
        self.__dict__["on_message"] = _unheard
        self.close(CUT_OFF, problem.title.encode()[:_REASON_BYTES].decode(errors="ignore"))

    def on_connection_close(self) -> None:
        """The token has a connection less."""
        super().on_connection_close()
        if self._token_check is not None:
            self._token_check.cancel()
        if self.token is not None and self.token.role != WORKER:
            self.access.tokens.closed(self.token, self)

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


def _unheard(message: str | bytes) -> None:
    """What follows the end of a token."""


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

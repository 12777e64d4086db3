"""What every handler shares: authentication before anything else, problems as JSON."""

from __future__ import annotations

import asyncio
import hmac
import traceback
from typing import Any

import msgspec
from tornado import web, websocket

from gpulayer.protocol.types import Problem
from gpulayer_server.shell import Shell, log


class Handler(web.RequestHandler):
    """A handler of `/v1`: needs the token of `endpoint.json`."""

    shell: Shell
    owner: str

    def initialize(self, shell: Shell, token: str, owner: str) -> None:
        """Taken from the route table."""
        self.shell = shell
        self.owner = owner
        self._token = token

    def prepare(self) -> None:
        """No request goes further without the token."""
        given = self.request.headers.get("Authorization", "")
        if not hmac.compare_digest(given.encode(), f"Bearer {self._token}".encode()):
            raise ProblemError(
                Problem(
                    status=401,
                    code="unauthorized",
                    title="wrong or missing token",
                    detail="the token is in endpoint.json of the control plane's data folder",
                )
            )

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

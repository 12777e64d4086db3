"""The routes of the control plane."""

from __future__ import annotations

from typing import Any

from tornado import web

from gpulayer_server.http.base import Access
from gpulayer_server.http.rest import NothingHandler
from gpulayer_server.http.routes import ROUTES
from gpulayer_server.shell import Shell
from gpulayer_server.tokens import Tokens


def routes() -> list[tuple[str, type[web.RequestHandler]]]:
    """Paths and their handlers, for tornado."""
    return [(route.pattern, route.handler) for route in ROUTES]


def make_app(shell: Shell, token: str, owner: str) -> web.Application:
    """The tornado application; every route needs a token, and `token` is good for all of them."""
    access = Access(token, Tokens(shell, shell.store.tokens(), shell.clock.now, shell.limit))
    given: dict[str, Any] = {"shell": shell, "access": access, "owner": owner}
    return web.Application(
        [(path, handler, given) for path, handler in routes()],
        default_handler_class=NothingHandler,
        default_handler_args=given,
        websocket_ping_interval=20,
        websocket_ping_timeout=20,
        websocket_max_message_size=64 * 1024 * 1024,
        log_function=lambda handler: None,  # a log line per request is a cost on the hot path
    )

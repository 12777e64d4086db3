"""The routes of the control plane."""

from __future__ import annotations

from typing import Any

from tornado import web

from gpulayer_server.http import rest, source, tokens
from gpulayer_server.http.base import Access
from gpulayer_server.http.client_socket import ClientSocket
from gpulayer_server.http.events import EventsSocket
from gpulayer_server.http.watch import WatchSocket
from gpulayer_server.http.worker_socket import WorkerSocket
from gpulayer_server.shell import Shell
from gpulayer_server.tokens import Tokens

_ID = r"([A-Za-z0-9_-]{1,64})"


def routes() -> list[tuple[str, type[web.RequestHandler]]]:
    """Paths and their handlers."""
    return [
        (r"/v1/health", rest.HealthHandler),
        (r"/v1/worker", WorkerSocket),
        (r"/v1/client", ClientSocket),
        (r"/v1/jobs", rest.JobsHandler),
        (rf"/v1/jobs/{_ID}", rest.JobHandler),
        (rf"/v1/jobs/{_ID}/cancel", rest.CancelHandler),
        (rf"/v1/jobs/{_ID}/stream", rest.StreamSocket),
        (rf"/v1/jobs/{_ID}/events", EventsSocket),
        (r"/v1/watch", WatchSocket),
        (r"/v1/workers", rest.WorkersHandler),
        (r"/v1/sessions", rest.SessionsHandler),
        (r"/v1/sessions/([^/]{1,200})", rest.SessionHandler),
        (r"/v1/tokens", tokens.TokensHandler),
        (rf"/v1/tokens/{_ID}", tokens.TokenHandler),
        (r"/v1/join", tokens.JoinHandler),
        (r"/v1/bundles", source.BundlesHandler),
        (r"/v1/blobs", source.BlobsHandler),
        (r"/v1/blobs/fetch", source.FetchHandler),
        (r"/v1/blobs/([0-9a-f]{64})", source.BlobHandler),
    ]


def make_app(shell: Shell, token: str, owner: str) -> web.Application:
    """The tornado application; every route needs a token, and `token` is good for all of them."""
    access = Access(token, Tokens(shell, shell.store.tokens(), shell.clock.now))
    given: dict[str, Any] = {"shell": shell, "access": access, "owner": owner}
    return web.Application(
        [(path, handler, given) for path, handler in routes()],
        default_handler_class=rest.NothingHandler,
        default_handler_args=given,
        websocket_ping_interval=20,
        websocket_ping_timeout=20,
        websocket_max_message_size=64 * 1024 * 1024,
        log_function=lambda handler: None,  # a log line per request is a cost on the hot path
    )

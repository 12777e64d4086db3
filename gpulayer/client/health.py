"""Asking a control plane how it is: one request, with nothing but the standard library."""

from __future__ import annotations

import http.client
import urllib.parse
from dataclasses import dataclass

from gpulayer.client.tls import tls_context
from gpulayer.protocol.endpoint import Endpoint
from gpulayer.protocol.pin import dial
from gpulayer.protocol.problems import problem_in
from gpulayer.protocol.types import Problem

_PROBLEM_BYTES = 65_536


class NobodyThere(ConnectionError):
    """No connection can be made to that address."""


@dataclass(frozen=True, kw_only=True)
class Health:
    """What was answered."""

    status: int  # of HTTP
    problem: Problem | None  # of a control plane that refuses; None also where somebody else answered


def ask_health(endpoint: Endpoint, timeout_s: float) -> Health:
    """GET /v1/health with the endpoint's token.

    Raises `NobodyThere`, OSError where somebody does not answer, `HTTPException` for what is no HTTP, and
    `ControlPlaneError` for a certificate that is not the pinned one: the token is not sent then.
    """
    parts = urllib.parse.urlsplit(endpoint.url)
    context = tls_context(endpoint)
    try:
        made = dial(endpoint.url, timeout_s)
    except OSError as error:
        raise NobodyThere(str(error)) from error
    try:
        if context is not None:
            made = context.wrap_socket(made, server_hostname=parts.hostname)
    except BaseException:
        made.close()
        raise
    connection = http.client.HTTPConnection(parts.netloc, timeout=timeout_s)
    connection.sock = made
    try:
        connection.request("GET", f"{parts.path}/v1/health", headers={"Authorization": f"Bearer {endpoint.token}"})
        answer = connection.getresponse()
        body = answer.read(_PROBLEM_BYTES) if answer.status >= 400 else b""
        return Health(status=answer.status, problem=problem_in(answer.getheader("Content-Type") or "", body))
    finally:
        connection.close()

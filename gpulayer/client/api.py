"""The HTTP API, for what is asked now and then."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from gpulayer.client.errors import ControlPlaneError, RequestRefused
from gpulayer.protocol.endpoint import Endpoint
from gpulayer.protocol.types import JobView, Problem, SessionView, WorkerView

T = TypeVar("T")


class Api:
    """Requests to one control plane. httpx is imported when the first one is made."""

    def __init__(self, endpoint: Endpoint, *, timeout_s: float = 30.0):
        self._endpoint = endpoint
        self._timeout_s = timeout_s

    def jobs(self, limit: int = 10) -> list[JobView]:
        """The last jobs, newest first."""
        return self._ask("GET", f"/v1/jobs?limit={limit}", list[JobView])

    def job(self, job_id: str) -> JobView:
        """One job."""
        return self._ask("GET", f"/v1/jobs/{job_id}", JobView)

    def cancel(self, job_id: str, *, give_up: bool = False) -> JobView:
        """A wish to cancel."""
        return self._ask("POST", f"/v1/jobs/{job_id}/cancel", JobView, {"give_up": give_up})

    def workers(self) -> list[WorkerView]:
        """Every known worker."""
        return self._ask("GET", "/v1/workers", list[WorkerView])

    def sessions(self) -> list[SessionView]:
        """Open sessions."""
        return self._ask("GET", "/v1/sessions", list[SessionView])

    def release(self, name: str) -> None:
        """Let a session go."""
        import urllib.parse

        self._ask("DELETE", f"/v1/sessions/{urllib.parse.quote(name, safe='')}", None)

    def _ask(self, method: str, path: str, kind: Any, body: Any = None) -> Any:
        import httpx

        headers = {"Authorization": f"Bearer {self._endpoint.token}"}
        content = msgspec.json.encode(body) if body is not None else None
        url = self._endpoint.url
        # without TLS there are no certificates to load, which takes longer than the request
        options = {"base_url": url, "verify": url.startswith("https"), "trust_env": False}
        try:
            with httpx.Client(headers=headers, timeout=self._timeout_s, **options) as client:
                answer = client.request(method, path, content=content)
        except httpx.HTTPError as error:
            raise ControlPlaneError(f"{self._endpoint.url} does not answer: {error}") from error
        if answer.status_code >= 400:
            raise RequestRefused(msgspec.json.decode(answer.content, type=Problem))
        return msgspec.json.decode(answer.content, type=kind) if kind is not None else None

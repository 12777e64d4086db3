"""The HTTP API, asked by a thread that waits for the answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from gpulayer.client import asks
from gpulayer.client.asks import Ask, Away
from gpulayer.client.errors import ControlPlaneError, NobodyAnswers, RequestRefused
from gpulayer.client.tls import httpx_options
from gpulayer.protocol.endpoint import Endpoint
from gpulayer.protocol.types import JobView, SessionView, WorkerView

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")
Find = Callable[[], Endpoint]

PATIENCE_S = 30.0
"""So long a control plane may be away that is asked for something: one that is started again needs a second or two."""

_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 2.0


class Tries:
    """Whether an ask that met nobody is asked again, and after which pause. Owned by one ask."""

    def __init__(self, *, patience_s: float = PATIENCE_S, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._until_s = clock() + patience_s
        self._pause_s = _PAUSE_S
        self._refused = False

    def pause_s(self, error: Exception, ask: Ask[Any], url: str) -> float:
        """The pause before the next try. Raises what a person is told where there is none.

        Args:
            error: of this try.
            ask: what was asked; one that must not be done twice is asked again only if it did not arrive.
            url: of whom.
        """
        if isinstance(error, RequestRefused):
            # A control plane that was started again has another token, which is in its file by now.
            if error.problem.status != 401 or self._refused:
                raise error
            self._refused = True
            return 0.0
        if self._clock() >= self._until_s or not (ask.again or not _arrived(error)):
            if isinstance(error, ControlPlaneError):
                raise error
            raise NobodyAnswers(f"{url} does not answer: {error}") from error
        pause_s, self._pause_s = self._pause_s, min(_LONGEST_PAUSE_S, self._pause_s * 2)
        return pause_s


def _arrived(error: Exception) -> bool:
    """Whether a request may have been read by somebody."""
    import httpx

    return not isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout, OSError))


class Api:
    """Requests to one control plane. httpx is imported when the first one is made.

    With `endpoint` alone each request has a connection of its own, and is made once. With `find` connections are kept,
    and where nobody answers, `find` is asked where the control plane is now: it may be started again meanwhile.
    """

    def __init__(self, endpoint: Endpoint | None = None, *, find: Find | None = None, timeout_s: float = 30.0):
        if endpoint is None and find is None:
            raise TypeError("Api needs an endpoint, or a way to find one")
        self._endpoint = endpoint
        self._find = find
        self._timeout_s = timeout_s
        self._client: httpx.Client | None = None
        self._lock = threading.Lock()
        self.met = False  # it has answered before

    @property
    def endpoint(self) -> Endpoint:
        """Whom it asks. Raises `ControlPlaneError` or OSError where nobody is found."""
        if self._endpoint is None and self._find is not None:
            self._endpoint = self._find()
        if self._endpoint is None:
            raise ControlPlaneError("no control plane is known")
        return self._endpoint

    def ask(self, ask: Ask[T], *, patience_s: float = PATIENCE_S) -> T:
        """The answer. Raises `RequestRefused`, `ControlPlaneError`; with `find` only once it was away for long."""
        if self._find is None:
            return self._once(ask)
        import httpx

        # Before it ever answered nothing is on its way: whoever named the address hears of it at once.
        tries, url = Tries(patience_s=patience_s if self.met else 0.0), ""
        while True:
            try:
                url = self.endpoint.url
                answer = self._kept(ask)
                self.met = True
                return answer
            except (httpx.TransportError, Away, OSError, RequestRefused) as error:
                pause_s = tries.pause_s(error, ask, url or "the control plane")
            self._forget()
            time.sleep(pause_s)  # nobody tells when it is back

    def close(self) -> None:
        """Close the connections that are kept."""
        self._forget()

    def _once(self, ask: Ask[T]) -> T:
        import httpx

        try:
            with self._open() as client:
                answer = self._send(client, ask)
        except (httpx.HTTPError, OSError) as error:
            raise ControlPlaneError(f"{self.endpoint.url} does not answer: {error}") from error
        try:
            return ask.answer(answer.status_code, answer.content)
        except Away as error:
            raise ControlPlaneError(f"{self.endpoint.url} does not answer: {error}") from error

    def _kept(self, ask: Ask[T]) -> T:
        with self._lock:
            if self._client is None:
                self._client = self._open()
            client = self._client
        try:
            answer = self._send(client, ask)
        except RuntimeError as error:
            if not client.is_closed:
                raise
            raise Away("another thread met that nobody answers") from error
        return ask.answer(answer.status_code, answer.content)

    def _open(self) -> httpx.Client:
        import httpx

        return httpx.Client(timeout=self._timeout_s, **httpx_options(self.endpoint))

    def _send(self, client: httpx.Client, ask: Ask[T]) -> httpx.Response:
        import httpx

        timeout = httpx.Timeout(self._timeout_s, read=self._timeout_s + ask.takes_s)
        return client.request(ask.method, ask.path, content=ask.content, timeout=timeout)

    def _forget(self) -> None:
        with self._lock:
            client, self._client = self._client, None
            if self._find is not None:
                self._endpoint = None
        if client is not None:
            client.close()

    # ---------------------------------------------------------------- what is asked now and then

    def jobs(self, limit: int = 10) -> list[JobView]:
        """The last jobs, newest first."""
        return self.ask(asks.jobs(limit))

    def job(self, job_id: str) -> JobView:
        """One job."""
        return self.ask(asks.job(job_id))

    def cancel(self, job_id: str, *, give_up: bool = False) -> JobView:
        """A wish to cancel."""
        return self.ask(asks.cancel(job_id, give_up=give_up))

    def workers(self) -> list[WorkerView]:
        """Every known worker."""
        return self.ask(asks.workers())

    def sessions(self) -> list[SessionView]:
        """Open sessions."""
        return self.ask(asks.sessions())

    def release(self, name: str) -> None:
        """Let a session go."""
        self.ask(asks.release(name))

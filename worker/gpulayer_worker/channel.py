"""The one outbound websocket of a worker."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import ssl
import time
from collections.abc import Callable, Iterator
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from gpulayer.protocol.calls import CallsDone
from gpulayer.protocol.endpoint import Endpoint, on_loopback
from gpulayer.protocol.messages import (
    Order,
    Output,
    ProtocolError,
    Refuse,
    Sampled,
    ServerMessage,
    WorkerMessage,
    to_worker,
)
from gpulayer.protocol.pin import PinError, context_of
from gpulayer.protocol.problems import ENDED_TOKENS, problem_in
from gpulayer.protocol.types import FRAME_DATA_BYTES
from gpulayer_worker.direct import DirectConnection

log = logging.getLogger("gpulayer.worker")

_FIRST_BACKOFF_S = 0.05
_LAST_BACKOFF_S = 5.0
_SAID_AGAIN_S = 5.0  # after the first word that nobody answers; then at twice the time
_SAID_AT_LEAST_S = 600.0
_TOLD_AFTER_S = 1.0  # of being away: a control plane that is only started again is back by then
_TOLD_AGAIN_S = 60.0  # at the earliest, where the reason is another one
_TOGETHER_S = 0.001  # what is said so soon after something else waits for what this turn of the loop says besides


def frames(messages: list[WorkerMessage]) -> Iterator[list[WorkerMessage]]:
    """The messages in order, in frames whose output and results are at most FRAME_DATA_BYTES together."""
    start = held = 0
    for number, message in enumerate(messages):
        size = _size(message)
        if number > start and held + size > FRAME_DATA_BYTES:
            yield messages[start:number]
            start, held = number, 0
        held += size
    if start < len(messages):
        yield messages[start:]


def _size(message: WorkerMessage) -> int:
    """The bytes in it that may be many."""
    if isinstance(message, Output):
        return len(message.data)
    if isinstance(message, CallsDone):
        return sum(len(data) for run in message.runs for data in run.data)
    return 0


def _secured(endpoint: Endpoint) -> dict[str, Any]:
    """What a connection by TLS trusts."""
    context = context_of(endpoint)
    return {"ssl": context} if context is not None else {}


class _Straight(connect):
    """A connection to where the credential belongs, and to nowhere that the answer leads."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        """No redirect is followed."""
        return exc


def _why(error: Exception) -> str:
    """In few words: asyncio's own name the address once more."""
    if type(error) in (ConnectionRefusedError, ConnectionResetError, OSError) and (getattr(error, "errno", 0) or 0) > 0:
        return os.strerror(error.errno)  # type: ignore[attr-defined]
    return " ".join(str(error).split()) or type(error).__name__


class Channel:
    """Connects, and connects again. Everything happens on one loop.

    Where the control plane is, is asked anew before every try: it may have moved.
    """

    def __init__(
        self,
        endpoint: Callable[[], Endpoint | None],
        *,
        opened: Callable[[], None],
        received: Callable[[list[ServerMessage]], None],
        closed: Callable[[], None],
        tell: Callable[[str], None] = lambda _: None,
    ):
        """`tell` takes a line for the worker's terminal: that nobody answers, why, and that somebody does again."""
        self._endpoint = endpoint
        self._opened = opened
        self._received = received
        self._closed = closed
        self._tell = tell
        self._outgoing: list[WorkerMessage] = []
        self._wake = asyncio.Event()
        self._connection: ClientConnection | None = None
        self._direct: DirectConnection | None = None  # the same, where nothing waits for it
        self._order = Order()
        self._sent_at = 0.0  # by the loop's clock, seconds
        self._backoff_s = _FIRST_BACKOFF_S
        self.away_since: float | None = None  # the loop's time since when nobody answers
        self._say_after_s = 0.0  # of being away: then it is said again
        self._told: tuple[float, str] | None = None  # when and why, of this time of being away
        self._url = self._fingerprint = ""
        self._tried: Endpoint | None = None  # the last one that was
        self._moved = asyncio.Event()  # there is another one

    def look(self) -> None:
        """Where the control plane is may be told anew: one that is not tried yet is tried at once."""
        if self._connection is None and self._endpoint() != self._tried:
            self._moved.set()

    def send(self, messages: list[WorkerMessage]) -> None:
        """Send in order; without a connection nothing: the next hello declares everything."""
        if self._connection is not None:
            if any(isinstance(message, Sampled) for message in messages):  # one that still waits is of the past
                self._outgoing = [message for message in self._outgoing if not isinstance(message, Sampled)]
            self._outgoing += messages
            if not self._sent_now():
                self._wake.set()

    def _sent_now(self) -> bool:
        """Send what waits, if it is one frame that is not likely to have another one behind it, and nothing is full."""
        direct, now = self._direct, time.monotonic()
        if direct is None or now < self._sent_at + _TOGETHER_S or self._wake.is_set():
            return False
        if sum(map(_size, self._outgoing)) > FRAME_DATA_BYTES or not direct.ready:
            return False
        messages, self._outgoing, self._sent_at = self._outgoing, [], now
        direct.put(self._order.number(messages))
        return True

    def reconnect(self, reason: str) -> None:
        """Close the connection, and come back after a while."""
        if self._connection is not None:
            log.warning("reconnecting: %s", reason)
            self._closing = asyncio.ensure_future(self._connection.close(1000, reason[:120]))

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            why = ""
            try:
                await self._once()
            except InvalidStatus as error:
                why = self._turned_away(error)
            except ssl.SSLCertVerificationError as error:
                why = self._untrusted(error)
            except (OSError, ValueError, ImportError, WebSocketException, ProtocolError, TimeoutError) as error:
                why = _why(error)
            except PinError as error:
                why = str(error)
            # jittered, so that a fleet does not come back in one moment
            pause_s = self._backoff_s * random.uniform(0.5, 1.5)
            if why:
                self._away(why, pause_s)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._moved.wait(), pause_s)
            self._backoff_s = min(self._backoff_s * 2, _LAST_BACKOFF_S)

    def _away(self, why: str, pause_s: float) -> None:
        """Say that nobody answers: at once, and then ever more seldom."""
        now = asyncio.get_running_loop().time()
        if self.away_since is None:
            self.away_since, self._say_after_s = now, 0.0
        away_s = now - self.away_since
        text = f"{self._who()} out of reach for {away_s:.0f} s: {why}; next try in {pause_s:.1f} s; jobs go on"
        if away_s >= self._say_after_s:
            self._say_after_s = min(max(2 * away_s, _SAID_AGAIN_S), away_s + _SAID_AT_LEAST_S)
            log.warning("%s", text)
        told = self._told
        news = away_s >= _TOLD_AFTER_S if told is None else why != told[1] and away_s >= told[0] + _TOLD_AGAIN_S
        if news:
            self._told = away_s, why
            self._tell(text)

    def _who(self) -> str:
        return f"control plane {self._url or 'of this machine'}"

    def _untrusted(self, error: ssl.SSLCertVerificationError) -> str:
        if not self._fingerprint:
            return f"it presents a certificate that this system does not trust ({error.verify_message})"
        text = f"it presents another certificate than the one that this worker joined with, {self._fingerprint}"
        return f"{text}; if that was made anew, join with a new line"

    def _turned_away(self, error: InvalidStatus) -> str:
        """Why the control plane, or what stands before it, let us not in; '' where it knows that our token ended."""
        answer = error.response
        problem = problem_in(answer.headers.get("Content-Type", ""), bytes(answer.body or b""))
        if problem is not None and problem.code in ENDED_TOKENS:
            self._received([Refuse(code=problem.code, text=problem.line())])
            return ""
        return f"{error}: {problem.line()}" if problem is not None else str(error)

    async def _once(self) -> None:
        self._moved.clear()
        endpoint = self._tried = self._endpoint()
        if endpoint is None:
            raise OSError("no endpoint.json or credential.json names a control plane")
        self._url, self._fingerprint = endpoint.url, endpoint.fingerprint
        url = endpoint.url.replace("http", "ws", 1) + "/v1/worker"
        async with _Straight(
            url,
            additional_headers={"Authorization": f"Bearer {endpoint.token}"},
            compression=None,
            max_size=64 * 1024 * 1024,
            ping_interval=20,
            ping_timeout=20,
            open_timeout=10,
            close_timeout=2,
            **_secured(endpoint),
            proxy=None if on_loopback(endpoint.url) else True,
            create_connection=DirectConnection,
        ) as connection:
            if isinstance(connection, DirectConnection):
                await self._converse(connection)

    async def _converse(self, connection: DirectConnection) -> None:
        self._order = Order()
        self._connection, self._outgoing = connection, []
        sender = asyncio.create_task(self._send_all(connection, self._order))
        try:
            self._opened()
            self._direct = connection
            connection.hear(self._take)
            async for frame in connection:  # what came before, or in parts
                connection.caught_up()
                self._take(frame if isinstance(frame, bytes) else frame.encode())
        finally:
            self._connection = self._direct = None
            sender.cancel()
            self._closed()
            if connection.failure is not None:
                raise connection.failure

    def _take(self, frame: bytes) -> None:
        """A frame came."""
        data = self._order.accept(frame)
        if data is not None:
            messages = to_worker(data)
            if not any(isinstance(message, Refuse) for message in messages):
                self._heard()  # who is refused comes back ever more seldom
            self._received(messages)

    def _heard(self) -> None:
        self._backoff_s = _FIRST_BACKOFF_S
        if self.away_since is not None:
            away_s = asyncio.get_running_loop().time() - self.away_since
            log.warning("control plane back after %.0f s", away_s)
            if self._told is not None:
                self._tell(f"{self._who()} back after {away_s:.0f} s")
            self.away_since = self._told = None

    async def _send_all(self, connection: ClientConnection, order: Order) -> None:
        try:
            while True:
                await self._wake.wait()
                messages, self._outgoing = self._outgoing, []
                for frame in frames(messages):
                    await connection.send(order.number(frame))
                self._sent_at = time.monotonic()
                if not self._outgoing:
                    self._wake.clear()
        except ConnectionClosed:
            return  # the reader sees it too, and connects again

"""A job that is followed: what comes of it, in order, and from where to go on after a break."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from gpulayer.client.wire import WireClosed
from gpulayer.protocol.messages import Chunk, ClientMessage, Follow, ServerToClient, Submit, Update
from gpulayer.protocol.types import JobSpec

_QUEUED_BYTES = 4 * 1024 * 1024  # more of a stream is not taken from the socket before it was replayed


class Subscription:
    """What comes of one job, in order: `Chunk`, `Update`, `Refused`, or an exception of the connection."""

    def __init__(
        self,
        n: int,
        spec: JobSpec | None = None,
        key: str = "",
        job: str = "",
        index: int | None = None,
        source: MessageSource | None = None,
    ):
        self.n = n
        self.spec = spec
        self.key = key
        self.job = job
        self.index = index
        self.attempt: str | None = None
        self.offset = 0
        self.over = False  # the job's last state came: nothing follows
        self._source = source
        self._waiting = False
        self._messages: queue.SimpleQueue[ServerToClient | Exception | None] = queue.SimpleQueue()
        self._again: deque[ServerToClient] = deque()
        self._room = threading.Condition()
        self._queued = 0
        self._closed = False

    def get(self, timeout_s: float) -> ServerToClient | None:
        """The next message; None after `timeout_s` or a `wake`. Raises what ended the connection for good."""
        if self._again:
            return self._again.popleft()
        deadline = time.monotonic() + timeout_s
        left_s = timeout_s
        self._waiting = True
        try:
            while left_s > 0 and self._messages.empty() and self._source is not None:
                if not self._source.read_here(left_s, self._messages.empty):
                    break
                left_s = deadline - time.monotonic()
            message = self._messages.get(timeout=max(0.0, left_s))
        except queue.Empty:
            return None
        finally:
            self._waiting = False
        if isinstance(message, Exception):
            raise message
        if isinstance(message, Chunk):
            with self._room:
                self._queued -= len(message.data)
                self._room.notify()
        return message

    def give_back(self, messages: list[ServerToClient]) -> None:
        """Let `get` return these again, before anything else: whoever took them only wanted to look."""
        self._again.extend(messages)

    def wake(self) -> bool:
        """Let `get` return; whether somebody waits in it. A signal handler may call this."""
        self._messages.put(None)
        if self._source is not None:
            self._source.look_up()
        return self._waiting

    def empty(self) -> bool:
        """Whether nothing waits to be taken."""
        return not self._again and self._messages.empty()

    def put(self, message: ServerToClient | Exception) -> None:
        """From the reading thread: take it, once there is room."""
        if isinstance(message, Update):
            self.job, self.over = message.job.id, message.job.terminal
        elif isinstance(message, Chunk):
            if message.attempt != self.attempt:
                self.attempt, self.offset = message.attempt, 0
            if message.offset != self.offset:
                raise WireClosed(f"bytes {self.offset} to {message.offset} of the stream are missing")
            self.offset += len(message.data)
            with self._room:
                # Whoever waits for messages, and so reads them here itself, waits for nobody to take them.
                self._room.wait_for(lambda: self._queued < _QUEUED_BYTES or self._closed or self._waiting)
                self._queued += len(message.data)
        self._messages.put(message)

    def close(self) -> None:
        """Nobody takes any more."""
        with self._room:
            self._closed = True
            self._room.notify()

    def openings(self) -> list[ClientMessage]:
        """What asks for this again on a new connection: from where it was."""
        return [self.opening()]

    def opening(self) -> ClientMessage:
        """The same, which is one message."""
        if self.spec is not None and not self.job:
            return Submit(n=self.n, key=self.key, spec=self.spec)
        return Follow(n=self.n, job=self.job, attempt=self.attempt, offset=self.offset, index=self.index)


class MessageSource(Protocol):
    """Where a subscription's messages come from."""

    def read_here(self, timeout_s: float, wanted: Callable[[], bool]) -> bool: ...

    def look_up(self) -> None: ...

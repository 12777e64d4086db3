"""What a command writes, as it comes: its stream's records as bytes with the name of the stream."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import TypeAlias

from gpulayer.client.connection import Connection, Subscription
from gpulayer.client.errors import RequestRefused
from gpulayer.protocol.messages import Chunk, Refused, Update
from gpulayer.protocol.records import Kind, Splitter, decode_call, decode_json, decode_text
from gpulayer.protocol.types import JobView

News: TypeAlias = "tuple[str, bytes] | JobView"

LOOK_S = 0.2

_NAMES = {
    Kind.STDOUT: "stdout",
    Kind.STDERR: "stderr",
    Kind.CALL_STDOUT: "stdout",
    Kind.CALL_STDERR: "stderr",
}


class Following:
    """One job, followed from its first byte to its end.

    As an iterator it gives (stream, bytes) and, whenever the job changed, its view; the last one is of its end.
    """

    def __init__(self, connection: Connection, job: str, *, index: int | None = None):
        """Ask for it; nothing is waited for yet."""
        self.connection = connection
        self.subscription: Subscription = connection.follow(job, index=index)
        self.view: JobView | None = None
        self.truncated = False  # its machine was lost, and with it the end of what it wrote
        self._attempt: str | None = None
        self._splitter = Splitter()

    def take(self, timeout_s: float = LOOK_S) -> list[News]:
        """What came, at the latest `timeout_s` later; [] where nothing did, or somebody woke the subscription.

        Raises `RequestRefused`, and what ended the connection for good.
        """
        message = self.subscription.get(timeout_s)
        if isinstance(message, Chunk):
            return list(self._written(message))
        if isinstance(message, Refused):
            raise RequestRefused(message.problem)
        if isinstance(message, Update):
            self.view = message.job
            return [message.job]
        return []

    @property
    def over(self) -> bool:
        """Whether nothing more comes."""
        return self.subscription.over

    def __iter__(self) -> Iterator[News]:
        while not (self.view is not None and self.view.terminal):
            yield from self.take()

    def _written(self, chunk: Chunk) -> Iterator[tuple[str, bytes]]:
        if chunk.attempt != self._attempt:
            self._attempt, self._splitter = chunk.attempt, Splitter()
        for _, kind, body in self._splitter.feed(chunk.data):
            if kind in (Kind.STDOUT, Kind.STDERR):
                yield _NAMES[Kind(kind)], bytes(body)
            elif kind in (Kind.CALL_STDOUT, Kind.CALL_STDERR):
                yield _NAMES[Kind(kind)], bytes(decode_call(body)[-1])
            elif kind == Kind.TEXT:
                fd, text = decode_text(body)
                yield "stderr" if fd == 2 else "stdout", text
            elif kind == Kind.MARK and decode_json(body).get("mark") == "truncated":
                self.truncated = True

    def close(self) -> None:
        """Follow it no more; the job goes on."""
        self.connection.unfollow(self.subscription)

    def __enter__(self) -> Following:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

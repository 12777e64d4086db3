"""What an agent sends: most of it at once, what attempts report together with what others report soon."""

from __future__ import annotations

from collections.abc import Callable

from gpulayer.protocol.messages import Ahead, Finished, Output, WorkerMessage


class Outbox:
    """Puts messages into frames. What waits of a stream is never overtaken by what follows of it.

    Arguments:
        send: sends messages in one frame.
    """

    def __init__(self, send: Callable[[list[WorkerMessage]], None]):
        self._channel_send = send
        self._now: list[WorkerMessage] = []
        self._waits: list[WorkerMessage] = []

    def put(self, message: WorkerMessage) -> None:
        """Add a message; `send` or `keep` says when it goes."""
        self._now.append(message)

    def send(self) -> None:
        """What was put goes now."""
        if self._now:
            if self._waits and not _ordered(self._now).isdisjoint(_ordered(self._waits)):
                self.send_kept()  # what waits of the same stream comes first
            self._channel_send(self._now)
            self._now = []

    def keep(self) -> None:
        """What was put waits for more."""
        self._waits += self._now
        self._now = []

    def send_kept(self) -> None:
        """What waits goes now."""
        if self._waits:
            self._channel_send(self._waits)
            self._waits = []

    def forget(self) -> None:
        """What waits was for a connection that is gone."""
        self._waits = []


def _ordered(messages: list[WorkerMessage]) -> set[str]:
    """Of what in these the order matters: attempts of which bytes or the end are told, and '' for the room ahead."""
    return {
        message.attempt if isinstance(message, (Output, Finished)) else ""
        for message in messages
        if isinstance(message, (Output, Finished, Ahead))
    }

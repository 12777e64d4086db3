"""Drives a worker's link by hand: one event after the other, on a clock of its own."""

from __future__ import annotations

from typing import Any

from gpulayer.protocol.messages import (
    Assign,
    ServerMessage,
    Verdict,
    Welcome,
)
from gpulayer.protocol.types import CellSpec, JobSpec, Outcome, State
from gpulayer_worker.link import (
    Connected,
    Effect,
    Event,
    Link,
    Received,
    Send,
    SendOutput,
)

DONE = Outcome(state=State.SUCCEEDED)


def assign(attempt: str = "a", *, session: str | None = None, leased: bool = False) -> Assign:
    """An assignment of a cell."""
    return Assign(attempt=attempt, job="j", spec=JobSpec(cell=CellSpec(code="1")), session=session, leased=leased)


class Wire:
    """A link, its clock, and the effects of the last event."""

    def __init__(self, link: Link | None = None) -> None:
        self.link = link or Link()
        self.now = 0.0
        self.out: list[Effect] = []

    def do(self, event: Event) -> list[Effect]:
        """One event, now."""
        self.out = self.link.handle(event, self.now)
        return self.out

    def hear(self, message: ServerMessage) -> list[Effect]:
        """A message of the control plane."""
        return self.do(Received(message=message))

    def welcome(self, *verdicts: Verdict, end_sessions: tuple[str, ...] = ()) -> list[Effect]:
        """A new connection, up to the welcome."""
        self.do(Connected())
        return self.hear(Welcome(epoch=1, heartbeat_s=2, lost_after_s=60, verdicts=verdicts, end_sessions=end_sessions))

    def found(self, kind: type[Any]) -> list[Any]:
        """The last event's effects of a kind."""
        return [effect for effect in self.out if isinstance(effect, kind)]

    def sent(self) -> list[Any]:
        """The messages that the last event sent."""
        return [effect.message for effect in self.found(Send)]

    def spans(self) -> list[tuple[int, int]]:
        """Offset and size of the bytes that the last event sent."""
        return [(each.offset, each.size) for each in self.found(SendOutput)]

"""What the plane says to workers, in few frames."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from gpulayer.protocol.calls import Calls, MapView
from gpulayer.protocol.failpoints import reach
from gpulayer.protocol.messages import Assign, CommMessage, Recorded, ServerMessage
from gpulayer.protocol.types import JobView
from gpulayer_server.callsdata import CallsData
from gpulayer_server.core.events import Dispatch, Effects
from gpulayer_server.core.state import MapState
from gpulayer_server.store.streams import Streams
from gpulayer_server.telling import Followed

log = logging.getLogger("gpulayer.server")


@dataclass
class Unit:
    """What one event asks for: its rows commit, then its messages leave."""

    effects: Effects
    commits: bool
    views: dict[Followed, JobView] = field(default_factory=dict[Followed, JobView])
    maps: dict[str, MapView] = field(default_factory=dict[str, MapView])
    ended: list[MapState] = field(default_factory=list[MapState])
    sent: bool = False  # what it tells workers has left


class WorkerLink(Protocol):
    """A worker's connection, as the shell needs it."""

    def send(self, messages: list[ServerMessage]) -> None: ...

    def send_now(self) -> None: ...

    def offer(self, message: CommMessage) -> bool: ...

    def drop(self, reason: str) -> None: ...


class Sending:
    """Sends by the links of the workers that are connected. Used on the loop's thread."""

    def __init__(self, links: Mapping[int, WorkerLink], calls: CallsData, streams: Streams):
        self._links = links
        self._calls = calls
        self._streams = streams
        self._loop = asyncio.get_running_loop()
        self._hurried: dict[int, None] = {}  # connections whose calls are to leave with the next `flush`

    def leave(self, units: Iterable[Unit], count: int) -> None:
        """Send what is committed of these: `count` that have rows, and what stands before the next one."""
        for unit in units:
            if count <= 0 and unit.commits:
                break
            count -= unit.commits
            self.send(unit)
        self.flush()

    def send(self, unit: Unit) -> None:
        """Send what a unit tells workers, unless that was done."""
        if unit.sent:
            return
        unit.sent = True
        effects = unit.effects
        if effects.rows:
            reach("server.committed")
        if effects.results:
            reach("server.results-committed")
        for attempt, why in effects.marks:
            self._mark(attempt, why)
        self._send(effects.sends)

    def _mark(self, attempt: str, why: str) -> None:
        try:
            self._streams.truncate_with_mark(attempt, why)
        except OSError as error:
            log.error("the stream of %s has no mark at its end before the next start: %s", attempt, error)

    def _send(self, sends: Iterable[tuple[int, ServerMessage | Dispatch]]) -> None:
        """One frame for each worker that is told something; calls get their arguments."""
        batches: dict[int, list[ServerMessage]] = {}
        for conn, message in sends:
            messages = batches.setdefault(conn, [])
            if isinstance(message, Dispatch):
                messages += self._calls.calls_messages(message)
            else:
                messages.append(message)
        for conn, messages in batches.items():
            self._to_one(conn, messages)

    def flush(self) -> None:
        """Let calls leave: people wait for them."""
        while self._hurried:
            conn, _ = self._hurried.popitem()
            link = self._links.get(conn)
            if link is not None:
                link.send_now()
                reach("server.calls-sent")

    def _to_one(self, conn: int, messages: list[ServerMessage]) -> None:
        kinds = set(map(type, messages))
        link = self._links.get(conn)
        if link is not None:
            link.send(messages)
            if Assign in kinds:
                link.send_now()  # a person waits for it; what is said to clients can follow
            elif Calls in kinds:
                self._hurried[conn] = None
        if Recorded in kinds:
            reach("server.recorded")
        if Assign in kinds:
            for message in messages:
                if isinstance(message, Assign) and message.spec.cell is not None:  # many a command never writes a byte
                    self._loop.call_soon(self._prepare_stream, message.attempt)
            reach("server.assigned")

    def _prepare_stream(self, attempt: str) -> None:
        try:
            self._streams.prepare(attempt)
        except OSError as error:
            log.warning("the stream of %s can't be opened yet: %s", attempt, error)  # its first bytes will try again

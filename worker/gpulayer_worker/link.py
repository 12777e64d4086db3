"""The worker's side of the protocol: what was sent, what is acknowledged, what to send again. No I/O, no clock.

`handle(event, now) -> effects`, as the control plane's core. The agent carries the effects out, in order; `Persist`
comes before whatever relies on it. `now` is in seconds, on a clock that counts sleep.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from gpulayer.protocol.messages import (
    Ack,
    Assign,
    CancelAttempt,
    EndSession,
    Finished,
    Forget,
    HeartbeatAck,
    HeldAttempt,
    HeldSession,
    NotStarted,
    Progress,
    Recorded,
    Refuse,
    Released,
    ServerMessage,
    SessionEnded,
    Shutdown,
    Started,
    Verdict,
    Welcome,
    WorkerMessage,
)
from gpulayer.protocol.types import FRAME_DATA_BYTES, Outcome

#: Bytes of one attempt that may be on their way without an acknowledgement.
WINDOW_BYTES = 4 * 1024 * 1024

#: A connection on which nothing came for so long is not one.
SILENT_S = 12.0

#: The part of `lost_after_s` after which a worker ends a leased attempt by itself.
LEASE_PART = 0.8


# ---------------------------------------------------------------- events


@dataclass(frozen=True, kw_only=True)
class Connected:
    """The socket is open; nothing was said yet."""


@dataclass(frozen=True, kw_only=True)
class Disconnected:
    """The socket is closed."""


@dataclass(frozen=True, kw_only=True)
class Received:
    """A message of the control plane."""

    message: ServerMessage


@dataclass(frozen=True, kw_only=True)
class SpoolGrew:
    """Whole records of an attempt's spool reach to `end`."""

    attempt: str
    end: int


@dataclass(frozen=True, kw_only=True)
class Began:
    """The program's first record is in the spool."""

    attempt: str


@dataclass(frozen=True, kw_only=True)
class Ended:
    """The program ended; its spool is `end` bytes long and will not grow."""

    attempt: str
    end: int
    outcome: Outcome


@dataclass(frozen=True, kw_only=True)
class GaveBack:
    """The attempt could not be started here, and nothing of it ran."""

    attempt: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Gone:
    """No process of the attempt is left."""

    attempt: str


@dataclass(frozen=True, kw_only=True)
class SessionOpened:
    """A session's kernel is being started here."""

    session: str


@dataclass(frozen=True, kw_only=True)
class SessionGone:
    """No process of the session is left."""

    session: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Doing:
    """What an attempt that has not begun is doing."""

    attempt: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Tick:
    """Time passes."""


Event: TypeAlias = (
    Connected
    | Disconnected
    | Received
    | SpoolGrew
    | Began
    | Ended
    | GaveBack
    | Gone
    | SessionOpened
    | SessionGone
    | Doing
    | Tick
)

# ---------------------------------------------------------------- effects


@dataclass(frozen=True, kw_only=True)
class SayHello:
    """Send the hello with these declarations."""

    attempts: tuple[HeldAttempt, ...]
    sessions: tuple[HeldSession, ...]


@dataclass(frozen=True, kw_only=True)
class Send:
    """Send a message."""

    message: WorkerMessage


@dataclass(frozen=True, kw_only=True)
class SendOutput:
    """Send `size` bytes of an attempt's spool from `offset` on."""

    attempt: str
    offset: int
    size: int


@dataclass(frozen=True, kw_only=True)
class Persist:
    """Write the record of an attempt: what a new agent will find."""

    attempt: str


@dataclass(frozen=True, kw_only=True)
class Start:
    """Start an attempt."""

    assign: Assign


@dataclass(frozen=True, kw_only=True)
class Interrupt:
    """Ask an attempt to end; by force after `grace_s`."""

    attempt: str
    grace_s: float


@dataclass(frozen=True, kw_only=True)
class Kill:
    """End an attempt's processes at once: its results are not wanted, `why` says why."""

    attempt: str
    why: str


@dataclass(frozen=True, kw_only=True)
class CloseSession:
    """End a session's processes."""

    session: str


@dataclass(frozen=True, kw_only=True)
class Trim:
    """The spool's bytes before `offset` may go."""

    attempt: str
    offset: int


@dataclass(frozen=True, kw_only=True)
class Drop:
    """Everything of the attempt may go from the disk."""

    attempt: str


@dataclass(frozen=True, kw_only=True)
class Reconnect:
    """Close the socket and come back with a new hello, after a while."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class Stop:
    """The agent is to end for good. `refused`: the control plane will not have it."""

    reason: str
    refused: bool


Effect: TypeAlias = (
    SayHello | Send | SendOutput | Persist | Start | Interrupt | Kill | CloseSession | Trim | Drop | Reconnect | Stop
)


@dataclass(kw_only=True)
class Held:
    """An attempt that this worker holds. Only `Link` changes it."""

    assign: Assign
    began: bool = False
    outcome: Outcome | None = None
    end: int | None = None  # the spool's final length
    gone: bool = False  # no process of it is left
    recorded: bool = False  # the control plane wants nothing more of its results
    killed: bool = False
    spool_end: int = 0
    sent: int = 0  # on this connection
    acked: int = 0
    told_began: bool = False  # on this connection
    told_end: bool = False  # on this connection
    told_gone: bool = False  # on this connection


class Link:
    """Owns what the worker holds and how far the control plane knows of it."""

    def __init__(self, *, held: Iterable[Held] = (), sessions: Iterable[str] = (), now: float = 0.0):
        self.held: dict[str, Held] = {each.assign.attempt: each for each in held}
        self.sessions: set[str] = set(sessions)
        self.ended_sessions: dict[str, str] = {}  # to be told: why each ended
        self.welcomed = False
        self.connected = False
        self.connected_at = now
        self.last_word = now
        self.lost_after_s = 60.0
        self.epoch = 0

    @property
    def busy(self) -> bool:
        """Whether anything is held."""
        return bool(self.held or self.sessions)

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Apply one event; the effects are to be carried out in order."""
        out: list[Effect] = []
        match event:
            case SpoolGrew(attempt=name, end=end):
                self._grew(name, end, out)
            case Received(message=message):
                self.last_word = now
                self._received(message, out)
            case Connected():
                self.connected, self.welcomed, self.connected_at = True, False, now
                out.append(self._hello())
            case Disconnected():
                self.connected = self.welcomed = False
            case Tick():
                self._tick(now, out)
            case _:
                self._local(event, out)
        return out

    # ------------------------------------------------------------ what happens here

    def _local(self, event: Event, out: list[Effect]) -> None:
        match event:
            case Began(attempt=name) if name in self.held:
                self.held[name].began = True
                out.append(Persist(attempt=name))
                self._pump(self.held[name], out)
            case Ended(attempt=name) if name in self.held:
                self._ended(self.held[name], event, out)
            case Gone(attempt=name) if name in self.held:
                self.held[name].gone = True
                out.append(Persist(attempt=name))
                self._pump(self.held[name], out)
            case GaveBack(attempt=name, reason=reason) if name in self.held:
                self._tell(NotStarted(attempt=name, reason=reason), out)
                del self.held[name]
                out.append(Drop(attempt=name))
            case SessionOpened(session=name):
                self.sessions.add(name)
            case SessionGone(session=name, reason=reason) if name in self.sessions:
                self.sessions.discard(name)
                self._tell(SessionEnded(session=name, reason=reason), out)
            case Doing(attempt=name, text=text) if name in self.held:
                self._tell(Progress(attempt=name, text=text), out)
            case _:
                pass  # about an attempt that was let go of meanwhile

    def _tell(self, message: WorkerMessage, out: list[Effect]) -> None:
        """Send what the next hello would make plain anyway: out of touch it is not sent."""
        if self.welcomed:
            out.append(Send(message=message))

    def _grew(self, name: str, end: int, out: list[Effect]) -> None:
        held = self.held.get(name)
        if held is not None and end > held.spool_end:
            held.spool_end = end
            self._pump(held, out)

    def _ended(self, held: Held, event: Ended, out: list[Effect]) -> None:
        if held.outcome is not None:
            return
        held.outcome, held.end = event.outcome, event.end
        held.spool_end = max(held.spool_end, event.end)
        out.append(Persist(attempt=event.attempt))
        self._pump(held, out)

    # ------------------------------------------------------------ what goes out

    def _hello(self) -> SayHello:
        attempts = [
            HeldAttempt(attempt=name, started=held.began, ended=held.outcome is not None, released=held.gone)
            for name, held in self.held.items()
        ]
        return SayHello(attempts=tuple(attempts), sessions=tuple(HeldSession(session=s) for s in sorted(self.sessions)))

    def _pump(self, held: Held, out: list[Effect]) -> None:
        """Send what may be sent of an attempt: its begin, its bytes, its end, its release, each in its turn."""
        if not self.welcomed:
            return
        name = held.assign.attempt
        if held.began and not held.told_began and not held.recorded:
            held.told_began = True
            out.append(Send(message=Started(attempt=name)))
        while not held.recorded and held.sent < held.spool_end and held.sent - held.acked < WINDOW_BYTES:
            size = min(FRAME_DATA_BYTES, held.spool_end - held.sent, WINDOW_BYTES - (held.sent - held.acked))
            out.append(SendOutput(attempt=name, offset=held.sent, size=size))
            held.sent += size
        if held.outcome is not None and held.end is not None and held.sent >= held.end and not held.recorded:
            if held.told_end:
                return
            held.told_end = True
            out.append(Send(message=Finished(attempt=name, end_offset=held.end, outcome=held.outcome)))
        if held.gone and held.recorded and not held.told_gone:
            held.told_gone = True
            out.append(Send(message=Released(attempt=name)))

    # ------------------------------------------------------------ what comes in

    def _received(self, message: ServerMessage, out: list[Effect]) -> None:
        match message:
            case Ack(attempt=name, offset=offset):
                self._acked(self.held.get(name), offset, out)
            case Assign():
                self._assigned(message, out)
            case Welcome():
                self._welcome(message, out)
            case HeartbeatAck():
                pass  # `last_word` is what it is for
            case _:
                self._ordered(message, out)

    def _ordered(self, message: ServerMessage, out: list[Effect]) -> None:
        match message:
            case Recorded(attempt=name):
                self._recorded(self.held.get(name), out)
            case Forget(attempt=name):
                held = self.held.get(name)
                if held is not None and held.gone:
                    del self.held[name]
                    out.append(Drop(attempt=name))
            case CancelAttempt(attempt=name, grace_s=grace_s):
                if name in self.held and self.held[name].outcome is None:
                    out.append(Interrupt(attempt=name, grace_s=grace_s))
            case EndSession(session=name):
                self._end_session(name, out)
            case Refuse(text=text, retry=retry):
                out.append(Reconnect(reason=text) if retry else Stop(reason=text, refused=True))
            case Shutdown(reason=reason):
                out.append(Stop(reason=reason, refused=False))
            case _:
                raise TypeError(f"no rule for {message!r}")

    def _assigned(self, assign: Assign, out: list[Effect]) -> None:
        """At most once: an assignment that is held already changes nothing."""
        if assign.attempt in self.held:
            return
        self.held[assign.attempt] = Held(assign=assign)
        out.append(Persist(attempt=assign.attempt))
        out.append(Start(assign=assign))

    def _acked(self, held: Held | None, offset: int, out: list[Effect]) -> None:
        if held is None:
            return
        if offset > held.acked:
            held.acked = offset
            held.sent = max(held.sent, offset)
            out.append(Trim(attempt=held.assign.attempt, offset=offset))
        self._pump(held, out)

    def _recorded(self, held: Held | None, out: list[Effect]) -> None:
        if held is None or held.recorded:
            return
        held.recorded = True
        out.append(Persist(attempt=held.assign.attempt))
        self._pump(held, out)

    def _end_session(self, name: str, out: list[Effect]) -> None:
        if name in self.sessions:
            out.append(CloseSession(session=name))
        else:
            self._tell(SessionEnded(session=name, reason="it is not here"), out)

    def _welcome(self, welcome: Welcome, out: list[Effect]) -> None:
        self.welcomed = True
        self.epoch = welcome.epoch
        self.lost_after_s = welcome.lost_after_s
        for verdict in welcome.verdicts:
            held = self.held.get(verdict.attempt)
            if held is not None:
                self._judged(held, verdict, out)
        for name in welcome.end_sessions:
            self._end_session(name, out)

    def _judged(self, held: Held, verdict: Verdict, out: list[Effect]) -> None:
        held.told_began = held.told_end = held.told_gone = False
        held.sent = held.acked = verdict.acked
        if not verdict.go_on:
            held.recorded = True
            out.append(Persist(attempt=verdict.attempt))
            if not held.gone:
                self._kill(held, "the control plane no longer wants it", out)
        elif verdict.acked:
            out.append(Trim(attempt=verdict.attempt, offset=verdict.acked))
        self._pump(held, out)

    # ------------------------------------------------------------ leases

    def _tick(self, now: float, out: list[Effect]) -> None:
        """Come back when nobody answers; end leased attempts before another worker may be given them."""
        if self.connected and now - max(self.last_word, self.connected_at) > SILENT_S:
            out.append(Reconnect(reason="no word from the control plane"))
        if now - self.last_word < LEASE_PART * self.lost_after_s:
            return
        for held in self.held.values():
            if held.assign.leased and held.outcome is None and not held.killed:
                self._kill(held, f"no word from the control plane for {now - self.last_word:.0f} s", out)

    def _kill(self, held: Held, why: str, out: list[Effect]) -> None:
        held.killed = True
        out.append(Kill(attempt=held.assign.attempt, why=why))

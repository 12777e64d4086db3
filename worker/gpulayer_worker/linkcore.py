"""The worker's side of the protocol: what was sent, what is acknowledged, what to send again. No I/O, no clock.

`handle(event, now) -> effects`, as the control plane's core. The agent carries the effects out, in order; `Persist`
comes before whatever relies on it. `now` is in seconds, on a clock that counts sleep.

Leases: the control plane gives an attempt with retries to another worker `lost_after_s` after it last heard of this
one. So what it answers holds from when the hello or the heartbeat that it answers was *sent*, however long the answer
was on its way, and an attempt is ended at 0.8 of that time.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpulayer.protocol.calls import Calls, CallsAccepted, DropCalls, EndRunner, RecallCalls
from gpulayer.protocol.messages import (
    Ack,
    Assign,
    CancelAttempt,
    EndSession,
    Forget,
    HeartbeatAck,
    HeldSession,
    InventoryChanged,
    NotStarted,
    Progress,
    Recorded,
    Refuse,
    Sampled,
    ServerMessage,
    SessionEnded,
    Shutdown,
    Verdict,
    Welcome,
    WorkerMessage,
)
from gpulayer.protocol.messages import Ahead as AheadMessage
from gpulayer_worker.ahead import Ahead
from gpulayer_worker.leases import Leases
from gpulayer_worker.link_events import (
    Began,
    CallsBack,
    CallsFound,
    CloseSession,
    Connected,
    Disconnected,
    Doing,
    Drop,
    Effect,
    Ended,
    Event,
    Full,
    GaveBack,
    Gone,
    Held,
    Interrupt,
    Kill,
    MachineChanged,
    Measured,
    Persist,
    Received,
    Reconnect,
    ResultsCame,
    SayHello,
    Send,
    SessionGone,
    SessionOpened,
    SpoolGrew,
    Start,
    Stop,
    Tick,
    Trim,
)
from gpulayer_worker.linkcalls import happen, hear
from gpulayer_worker.linkout import pump

#: The part of `lost_after_s` after which a worker ends a leased attempt by itself.
LEASE_PART = 0.8

#: What a new agent grants the leases that it finds: when the agent before it had a word is not known.
RESUMED_LEASE_S = 5.0

#: A connection on which nothing came for so long is not one.
SILENT_S = 12.0


class Link:
    """Owns what the worker holds and how far the control plane knows of it."""

    def __init__(
        self, *, held: Iterable[Held] = (), sessions: Iterable[str] = (), now: float = 0.0, slots: int | None = None
    ):
        """`slots`: how many attempts run at once; what is assigned beyond them waits. None: no limit."""
        self.held: dict[str, Held] = {each.assign.attempt: each for each in held}
        self.sessions: set[str] = set(sessions)
        self.closing: set[str] = set()  # sessions that are to end once no attempt is left in them
        self.ended_sessions: dict[str, str] = {}  # since the last hello: why each ended
        self.welcomed = False
        self.connected = False
        self.connected_at = now
        self.last_word = now
        self.epoch = 0
        self._full = ""  # why no more work is taken
        self._machine: InventoryChanged | None = None  # since the hello, and not sent: nobody had welcomed us
        self._now = now
        self._leases = Leases(now, part=LEASE_PART, resumed_s=RESUMED_LEASE_S)
        self._ahead = Ahead(slots)
        for each in self.held.values():
            if not each.gone:
                self._ahead.started(each.assign, None)

    @property
    def busy(self) -> bool:
        """Whether anything is held."""
        return bool(self.held or self.sessions)

    @property
    def work_waits(self) -> bool:
        """Whether commands wait here for a slot."""
        return self._ahead.waiting

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Apply one event; the effects are to be carried out in order."""
        out: list[Effect] = []
        self._now = now
        if self._leases.over(self._now):
            self._end_leases(event, out)
        match event:
            case SpoolGrew(attempt=name, end=end):
                self._grew(name, end, out)
            case ResultsCame(attempt=name) | CallsBack(attempt=name) | CallsFound(attempt=name) if name in self.held:
                happen(self.held[name], event, out)
                self._pump(self.held[name], out)
            case Received(message=message):
                self.last_word = now
                self._received(message, out)
            case Connected():
                self.connected, self.welcomed, self.connected_at = True, False, now
                self._leases.connected()
                self.ended_sessions.clear()
                self._ahead.clear()
                self._machine = None  # the hello says it
                out.append(self._hello())
            case Disconnected():
                self.connected = self.welcomed = False
            case Tick():
                self._tick(out)
            case _:
                self._local(event, out)
        if self._ahead.waiting:
            self._start_next(out)
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
                self._gone(self.held[name], out)
            case GaveBack(attempt=name, reason=reason) if name in self.held:
                # Kept until the control plane lets go of it: a new agent must not start it.
                self.held[name].given_back, self.held[name].recorded = reason, True
                self._gone(self.held[name], out)
            case SessionOpened(session=name):
                self.sessions.add(name)
            case SessionGone(session=name, reason=reason) if name in self.sessions:
                self.sessions.discard(name)
                self.closing.discard(name)
                self.ended_sessions[name] = reason
                self._tell(SessionEnded(session=name, reason=reason), out)
            case Full(reason=reason):
                self._full = reason
            case Doing(attempt=name, text=text) if name in self.held:
                self._tell(Progress(attempt=name, text=text), out)
            case MachineChanged() | Measured():
                self._tell_machine(event, out)
            case _:
                pass  # about an attempt that was let go of meanwhile

    def _tell_machine(self, event: MachineChanged | Measured, out: list[Effect]) -> None:
        if isinstance(event, Measured):
            self._tell(Sampled(sample=event.sample), out)
            return
        changed = InventoryChanged(inventory=event.inventory)
        self._machine = None if self.welcomed else changed
        self._tell(changed, out)

    def _tell(self, message: WorkerMessage, out: list[Effect]) -> None:
        """Send what the next hello would make plain anyway: out of touch it is not sent."""
        if self.welcomed:
            out.append(Send(message=message))

    def _grew(self, name: str, end: int, out: list[Effect]) -> None:
        held = self.held.get(name)
        if held is not None and end > held.spool_end:
            held.spool_end = end
            self._pump(held, out)

    def _gone(self, held: Held, out: list[Effect]) -> None:
        held.gone = True
        out.append(Persist(attempt=held.assign.attempt))
        self._pump(held, out)
        self._slot_is_free(held, out)
        if held.assign.session in self.closing:
            self._close_when_free(held.assign.session, out)

    def _ended(self, held: Held, event: Ended, out: list[Effect]) -> None:
        if held.outcome is not None:
            if event.gone and not held.gone:
                self._gone(held, out)
            return
        held.outcome, held.end = event.outcome, event.end
        held.spool_end = max(held.spool_end, event.end)
        held.began = held.began or event.began
        held.gone = held.gone or event.gone
        if held.calls is not None:
            held.calls.over()
        out.append(Persist(attempt=event.attempt))
        self._pump(held, out)
        if held.gone:
            self._slot_is_free(held, out)

    # ------------------------------------------------------------ what goes out

    def _hello(self) -> SayHello:
        attempts = tuple(held.declared for held in self.held.values())
        return SayHello(attempts=attempts, sessions=tuple(HeldSession(session=s) for s in sorted(self.sessions)))

    def _pump(self, held: Held, out: list[Effect]) -> None:
        if self.welcomed:
            pump(held, out)

    # ------------------------------------------------------------ what comes in

    def _received(self, message: ServerMessage, out: list[Effect]) -> None:
        match message:
            case Ack(attempt=name, offset=offset):
                self._acked(self.held.get(name), offset, out)
            case Calls() | CallsAccepted() | RecallCalls() | DropCalls() | EndRunner():
                hear(self.held.get(message.attempt), message, out)
            case Assign():
                self._assigned(message, out)
            case Welcome():
                self._welcome(message, out)
            case HeartbeatAck():
                self._leases.answered()
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
            case CancelAttempt(attempt=name) if self._ahead.drop(name):
                self._tell(NotStarted(attempt=name, reason="it had not started"), out)
            case CancelAttempt(attempt=name, grace_s=grace_s):
                if name in self.held and self.held[name].live:
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
        if assign.attempt in self.held or assign.attempt in self._ahead:
            return
        if self._ahead.may_wait(assign) and (self._ahead.waiting or not self._ahead.free(len(self.sessions))):
            self._ahead.put(assign, self._now)
        else:
            self._take(assign, out)

    def _take(self, assign: Assign, out: list[Effect]) -> None:
        unfit = self._unfit(assign)
        if unfit:
            self._tell(NotStarted(attempt=assign.attempt, reason=unfit), out)
            return
        self._ahead.started(assign, self._now)
        self.held[assign.attempt] = Held(assign=assign)
        out.append(Persist(attempt=assign.attempt))
        out.append(Start(assign=assign))

    def _start_next(self, out: list[Effect]) -> None:
        while self._ahead.waiting and self._ahead.free(len(self.sessions)):
            self._take(self._ahead.next(), out)

    def _slot_is_free(self, held: Held, out: list[Effect]) -> None:
        self._ahead.ended(held.assign.attempt, self._now)
        self._tell_ahead(out)

    def _tell_ahead(self, out: list[Effect]) -> None:
        news = self._ahead.news() if self.welcomed else None
        if news is not None:
            out.append(Send(message=AheadMessage(count=news)))

    def _unfit(self, assign: Assign) -> str:
        """Why an assignment, which was a while on its way, can't be taken any more; '' when it can."""
        if assign.session in self.ended_sessions:
            return f"its session had ended: {self.ended_sessions[assign.session]}"
        if assign.session in self.closing:
            return "its session is ending"
        if self._full:
            return self._full
        if assign.leased and self._leases.over(self._now):
            return "its lease was over when it came"
        return ""

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
        held.told_gone = False
        out.append(Persist(attempt=held.assign.attempt))
        self._pump(held, out)

    def _end_session(self, name: str, out: list[Effect]) -> None:
        """End the cell in it first: one that is about to start would start a kernel for a session that is over."""
        if name not in self.sessions:
            self._tell(SessionEnded(session=name, reason="it is not here"), out)
        elif name not in self.closing:
            self.closing.add(name)
            for held in self.held.values():
                if held.assign.session == name and held.live and not held.killed:
                    self._kill(held, "its session was ended", out)
            self._close_when_free(name, out)

    def _close_when_free(self, name: str, out: list[Effect]) -> None:
        if not any(held.assign.session == name and not held.gone for held in self.held.values()):
            out.append(CloseSession(session=name))

    def _welcome(self, welcome: Welcome, out: list[Effect]) -> None:
        self.welcomed = True
        self.epoch = welcome.epoch
        self._leases.welcomed(self.connected_at, welcome.lost_after_s)
        if self._machine is not None:
            out.append(Send(message=self._machine))
            self._machine = None
        for name, reason in self.ended_sessions.items():  # the hello declared them
            out.append(Send(message=SessionEnded(session=name, reason=reason)))
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
            if held.live:
                self._kill(held, "the control plane no longer wants it", out)
        elif verdict.acked:
            out.append(Trim(attempt=verdict.attempt, offset=verdict.acked))
        if held.calls is not None:
            held.calls.again()
        self._pump(held, out)

    # ------------------------------------------------------------ time

    def _tick(self, out: list[Effect]) -> None:
        """Come back when nobody answers; end what an agent before us was told to end."""
        if self.welcomed:
            self._leases.asked(self._now)
        if self.connected and self._now - max(self.last_word, self.connected_at) > SILENT_S:
            out.append(Reconnect(reason="no word from the control plane"))
        for held in self.held.values():
            if held.recorded and held.live and not held.killed:
                self._kill(held, "its results are not wanted", out)
        overdue = self._ahead.overdue(self._now)
        if overdue:
            self._tell_ahead(out)  # first: else they would be assigned ahead of a slot here again
        for name in overdue:
            self._tell(NotStarted(attempt=name, reason="no slot was free as soon as it was thought"), out)

    def _end_leases(self, event: Event, out: list[Effect]) -> None:
        """End leased attempts before another worker may be given them. Their results are given up.

        Of one that `event` tells the end of, nothing is left to end: a machine that wakes may hear that first.
        """
        over = event.attempt if isinstance(event, (Ended, GaveBack, Gone)) else ""
        for held in self.held.values():
            if held.assign.leased and held.live and not held.recorded:
                held.recorded = True
                out.append(Persist(attempt=held.assign.attempt))
                if held.assign.attempt != over:
                    self._kill(held, "its lease ended: no word from the control plane", out)

    def _kill(self, held: Held, why: str, out: list[Effect]) -> None:
        held.killed = True
        out.append(Kill(attempt=held.assign.attempt, why=why))

"""A worker's agent, around the real `Link`: what it does with each effect, in the order of the real one.

It may die at any moment; the next one takes up what the disk and the kernels tell it.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any

from gpulayer.protocol.calls import CallsDone, CallsReturned
from gpulayer.protocol.messages import (
    Assign,
    Finished,
    Heartbeat,
    Hello,
    InventoryChanged,
    Output,
    Progress,
    Released,
    Sampled,
    Started,
    Welcome,
    WorkerMessage,
    to_worker,
)
from gpulayer.protocol.types import PROTOCOL_VERSION
from gpulayer_worker import link
from tests.simulation.cellrun import CellRun
from tests.simulation.machine import Kernel, Machine
from tests.simulation.network import End, Network
from tests.simulation.notes import alone, held_in, late_events, record_of
from tests.simulation.plans import Plan
from tests.simulation.runnerrun import RunnerRun
from tests.simulation.simulator import Call, Process, Violation

if TYPE_CHECKING:
    from tests.simulation.controlplane import ControlPlane

_TICK_S = 1.0
#: What they said is not so any more, or counts each time.
_NEVER_AGAIN = (Hello, Heartbeat, Sampled, InventoryChanged, CallsDone, CallsReturned)
_OF_HELD = (Started, Finished, Progress, Released)
_FIRST_BACKOFF_S, _LAST_BACKOFF_S = 0.05, 5.0


def _is_runner(of: link.Link, message: WorkerMessage) -> bool:
    """Whether a word is of an attempt that runs calls."""
    held = of.held.get(getattr(message, "attempt", ""))
    return held is not None and held.calls is not None


class Agent(Process):
    """One agent process after the other on one machine."""

    def __init__(self, machine: Machine, network: Network, control_plane: ControlPlane, plan: Plan):
        super().__init__(machine)
        self.machine = machine
        self.network = network
        self.control_plane = control_plane
        self.up = False
        self.name = machine.name
        self.stopped = ""
        self.end: End | None = None
        self.plan = plan
        self.crash_and_return = self.crash  # the world's way, with a new agent after it
        self._said: list[WorkerMessage] = []  # words that a worker may say again: a resend is harmless

    # ---------------------------------------------------------------- life and death

    def start(self) -> None:
        """A new process: it finds what one before it left."""
        machine = self.machine
        self.up = True
        self.stopped = ""
        machine.agent_up_since = self.sim.now
        self.sessions: dict[str, Kernel] = {}
        self.runs: dict[str, CellRun] = {}
        self.outgoing: list[WorkerMessage] = []
        self.end = None
        self._closing = False
        self._told: dict[tuple[type[WorkerMessage], str], int] = {}  # since the welcome, of attempts: with which event
        self._event_n = 0
        self._closed: set[str] = set()  # sessions that this agent was told to close
        self._backoff_s = _FIRST_BACKOFF_S
        self._nonce = f"{self.sim.random.getrandbits(64):x}"
        self.sim.log(self.name, "agent starts")
        self._damage()
        held = [held_in(record) for record in machine.records.values()]
        found = {name: kernel for name, kernel in machine.noted_sessions.items() if kernel.alive}
        machine.noted_sessions = dict(found)
        self.link = link.Link(held=held, sessions=found, now=machine.clock(), slots=machine.slots)
        for name, kernel in found.items():
            self.session_ready(name, kernel)
        noted = [machine.noted.get(each.assign.attempt) for each in held if not each.gone]
        for kernel in list(machine.kernels):
            if kernel not in noted and kernel not in found.values():
                kernel.die()
        for each in held:
            if not each.gone:
                self._take_up(each)
        self._connect()
        self.after(_TICK_S, self._tick)

    def _damage(self) -> None:
        """Seldom a record can't be read: its attempt is given up, though it had begun."""
        machine = self.machine
        for name in [name for name, record in machine.records.items() if alone(held_in(record))]:
            if self.sim.random.random() < self.plan.damaged_records and machine.truth.known_to_run(name):
                self.sim.log(self.name, f"the record of {name} is damaged")
                self._drop(name)
                machine.truth.damaged.add(name)

    def _take_up(self, held: link.Held) -> None:
        assign = held.assign
        if held.outcome is not None:
            run = self.runs[assign.attempt] = self._run(assign)
            run.clean_up_after(self.machine.noted.get(assign.attempt))
            return
        if (
            assign.session is not None
            and assign.session not in self.sessions
            and assign.attempt not in self.machine.noted
        ):
            self.emit(link.GaveBack(attempt=assign.attempt, reason="its session's kernel is gone"))
            return
        self._start(assign)

    def after(self, delay_s: float, call: Call, *args: Any) -> None:
        """Call something later; what a process plans in the moment of its death does not happen."""
        if self.up:
            super().after(delay_s, call, *args)

    def crash(self) -> None:
        """Die now; programs and spools stay."""
        if not self.up:
            return
        self.sim.log(self.name, "agent crashes")
        self.up = False
        self.end_life()
        self.machine.agent_gone()
        if self.end is not None:
            self.network.close(self.end)

    # ---------------------------------------------------------------- the channel

    def _connect(self) -> None:
        if self.stopped:
            return
        reachable = self.network.reachable(self.name)
        plane = self.control_plane
        if not reachable or not plane.up or plane.host.asleep:
            refused = reachable and not plane.host.asleep
            self.after(0.01 if refused else self.sim.random.uniform(1, 10), self._again)
            return
        self._closing = False
        self.end, theirs = self.network.connect(self, plane)
        self.end.heard, self.end.closed = self._heard, self._disconnected
        plane.accept(theirs)
        if self.machine.kernels and self.sim.random.random() < self.plan.unlucky_kernels:
            kernel = self.sim.random.choice(self.machine.kernels)
            self.after(2.0 * self.network.weather.delay_s * self.sim.random.random(), kernel.die)
        self.emit(link.Connected())

    def _again(self) -> None:
        self.after(self._backoff_s * self.sim.random.uniform(0.5, 1.5), self._connect)
        self._backoff_s = min(self._backoff_s * 2, _LAST_BACKOFF_S)

    def _heard(self, data: bytes) -> None:
        self.emit(*[link.Received(message=message) for message in to_worker(data)])
        if self.up and self.link.welcomed:  # one that is refused comes back seldom
            self._backoff_s = _FIRST_BACKOFF_S

    def _disconnected(self) -> None:
        self.end = None
        self.emit(link.Disconnected())
        self._again()

    def _reconnect(self, reason: str) -> None:
        """The closing handshake: until it is done, frames still come in."""
        if self.end is not None and not self._closing:
            self.sim.log(self.name, "reconnects:", reason)
            self._closing = True
            self.after(2.0 * self.sim.random.random(), self._close, self.end)

    def _close(self, end: End) -> None:
        if end is self.end and end.open:
            self.network.close(end)
            self._disconnected()

    def _tick(self) -> None:
        self.after(_TICK_S, self._tick)
        self.emit(link.Tick())
        if self._happens(self.plan.samples):
            self.emit(link.Measured(sample=self.machine.sample))
        if self.link.welcomed:
            self._send([Heartbeat()])

    def machine_changed(self) -> None:
        """A device fell sick, or is mended."""
        self.emit(link.MachineChanged(inventory=self.machine.inventory))

    def _send(self, messages: list[WorkerMessage]) -> None:
        if self.end is None:
            return
        if self.plan.repeated_words and self.link.welcomed and self.sim.random.random() < self.plan.repeated_words:
            messages = [*messages, *self.sim.random.sample(self._said, min(2, len(self._said)))]
        self.network.send(self.end, messages)
        if self.plan.repeated_words:
            self._said += [message for message in messages if not isinstance(message, _NEVER_AGAIN)]
            del self._said[:-60]

    # ---------------------------------------------------------------- the link's effects

    def emit(self, *events: link.Event) -> None:
        """Let the link handle events; what is to be sent goes in one frame."""
        if not self.up:
            return
        now = self.machine.clock()
        for event in events:
            self.sim.events += 1
            self._event_n += 1
            if isinstance(event, link.Received) and isinstance(event.message, Welcome):
                self._told.clear()
            if self.sim.trace is not None and not isinstance(event, link.Received):
                self.sim.log(self.name, event)
            for effect in self.link.handle(event, now):
                self._carry_out(effect)
                if self.plan.crashing_effects and self.sim.random.random() < self.plan.crashing_effects:
                    self.crash_and_return()
                if not self.up:
                    return
        if self.link.welcomed != (self.machine.welcomed_since < inf):
            self._greeted()
        if self.outgoing:
            self._flush()

    def _flush(self) -> None:
        outgoing, self.outgoing = self.outgoing, []
        if len(outgoing) > 1 and self.sim.random.random() < self.plan.small_frames:
            for message in outgoing:
                self._send([message])
        else:
            self._send(outgoing)

    def _greeted(self) -> None:
        """The link is welcomed now, or no longer."""
        self.machine.welcomed_since = self.sim.now if self.link.welcomed else inf
        if self.link.welcomed and self._said and self.sim.random.random() < self.plan.repeated_words:
            self._send(self._said[-20:])

    def _carry_out(self, effect: link.Effect) -> None:
        match effect:
            case link.Send(message=message):
                self._say(message)
            case link.SendOutput(attempt=name, offset=offset, size=size):
                data = self.machine.spools[name].read(offset, size)
                if not self._happens(self.plan.forgotten_output):
                    self.outgoing.append(Output(attempt=name, offset=offset, data=data))
            case link.Persist(attempt=name):
                self.machine.records[name] = record_of(self.link.held[name])
            case link.Trim(attempt=name, offset=offset):
                self._trim(name, offset)
            case link.SayHello():
                self._say_hello(effect)
            case link.Drop(attempt=name):
                self.runs.pop(name, None)
                if self._happens(self.plan.late_events):
                    self.after(self.sim.random.random(), self.emit, *late_events(name))
                self.after(0.05 * self.sim.random.random(), self._drop, name)  # in a thread: it may never happen
            case _:
                self._act(effect)

    def _happens(self, chance: float) -> bool:
        return chance > 0 and self.sim.random.random() < chance

    def _say(self, message: WorkerMessage) -> None:
        if isinstance(message, _OF_HELD) and message.attempt not in self.link.held:
            raise Violation(f"{self.name} says {message}, and holds nothing of that name")
        if isinstance(message, (Started, Finished, Released)):
            said_with = self._told.setdefault((type(message), message.attempt), self._event_n)
            if said_with != self._event_n:
                raise Violation(f"{self.name} says {message} twice after one welcome")
        careless = isinstance(message, (Started, Progress)) and self._happens(self.plan.forgotten_words)
        if not careless or _is_runner(self.link, message):  # who has begun gets its calls by that word
            self.outgoing.append(message)

    def _act(self, effect: link.Effect) -> None:
        match effect:
            case link.Start(assign=assign):
                if assign.session is not None:
                    self.emit(link.SessionOpened(session=assign.session))
                self._start(assign)
            case link.Interrupt(attempt=name, grace_s=grace_s):
                self._must_live(name).interrupt(grace_s)
            case link.Kill(attempt=name, why=why):
                self.sim.log(self.name, "kills", name, why)
                self._must_live(name).kill(why)
            case link.CloseSession(session=name):
                self._close_session(name)
            case link.RunCalls() | link.LetGo() | link.GiveBackCalls() | link.DropMap() | link.WindDown():
                run = self.runs.get(effect.attempt)
                if isinstance(run, RunnerRun):
                    run.follow(effect)
            case link.Reconnect(reason=reason):
                self._reconnect(reason)
            case link.Stop(reason=reason, refused=refused):
                self._stop(reason, refused=refused)
            case _:
                raise TypeError(f"no rule for {effect!r}")

    def _stop(self, reason: str, *, refused: bool) -> None:
        self.stopped = reason
        if refused or not self.machine.local or not self.control_plane.ended:
            raise Violation(f"{self.name} is told to end: {reason}")
        self.sim.log(self.name, "ends:", reason)
        self.crash_and_return()  # whoever starts the control plane again starts it, too

    def _must_live(self, name: str) -> CellRun:
        held, run = self.link.held.get(name), self.runs.get(name)
        if held is None or run is None or not held.live:
            raise Violation(f"{self.name} is to end {name}, of which nothing runs")
        return run

    def _say_hello(self, effect: link.SayHello) -> None:
        machine = self.machine
        self.outgoing.append(
            Hello(
                protocol=PROTOCOL_VERSION,
                worker_id=f"id-{machine.name}",
                nonce=self._nonce,
                name=machine.name,
                version="simulated",
                slots=machine.slots,
                local=machine.local,
                inventory=machine.inventory,
                attempts=effect.attempts,
                sessions=effect.sessions,
            )
        )

    def _trim(self, name: str, offset: int) -> None:
        self.machine.truth.check_trim(name, offset, self.control_plane.streams.length(name))
        spool = self.machine.spools.get(name)
        if spool is not None and offset < spool.trimmed:
            raise Violation(f"{name}: byte {offset} is acknowledged, {spool.trimmed} were before")
        if spool is not None and spool.reply is None:  # the last records tell a new agent how it ended
            spool.trimmed = max(spool.trimmed, offset)

    def _drop(self, name: str) -> None:
        for files in (self.machine.records, self.machine.spools, self.machine.noted):
            files.pop(name, None)

    def _start(self, assign: Assign) -> None:
        run = self.runs[assign.attempt] = self._run(assign)
        run.start()

    def _run(self, assign: Assign) -> CellRun:
        return CellRun(self, assign) if assign.spec.calls is None else RunnerRun(self, assign)

    # ---------------------------------------------------------------- sessions

    def session_ready(self, session: str, kernel: Kernel) -> None:
        """A session's kernel is up: when it dies, by itself or by us, the session is over."""
        self.sessions[session] = kernel
        kernel.died.append(lambda: self.after(0.01, self._session_died, session, kernel))

    def _session_died(self, session: str, kernel: Kernel) -> None:
        if self.sessions.get(session) is kernel:
            self._end_session(session, "its kernel died")

    def _close_session(self, name: str) -> None:
        if name in self._closed or name not in self.link.sessions:
            raise Violation(f"{self.name} is to close session {name}, which is closed or not here")
        self._closed.add(name)
        self._end_session(name, "released")

    def _end_session(self, session: str, reason: str) -> None:
        kernel = self.sessions.pop(session, None)
        self.after(0.02 * self.sim.random.random(), self._session_kernel_ended, session, kernel, reason)

    def _session_kernel_ended(self, session: str, kernel: Kernel | None, reason: str) -> None:
        if kernel is not None:
            kernel.die()
        # the runs in it make their records of the end first
        self.after(0.01, self._session_gone, session, reason)

    def _session_gone(self, session: str, reason: str) -> None:
        self.machine.noted_sessions.pop(session, None)
        self.emit(link.SessionGone(session=session, reason=reason))
        if self._happens(self.plan.late_events):
            self.after(self.sim.random.random(), self.emit, link.SessionGone(session=session, reason="heard twice"))

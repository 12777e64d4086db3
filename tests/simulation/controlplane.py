"""The shell's contract around the real plane, store and streams: what is told is committed, and told in order.

It decides nothing. One event's effects are a unit: its rows commit after a while, together with whatever waits then;
then the unit's marks, messages, replies and closes leave. A failed commit rebuilds the plane from the store.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from gpulayer.protocol.calls import MapView
from gpulayer.protocol.messages import (
    Ack,
    EndSession,
    Finished,
    Forget,
    Hello,
    Output,
    Recorded,
    ServerMessage,
    WorkerMessage,
    from_worker,
)
from gpulayer.protocol.types import JobView, Problem, State
from gpulayer_server.core.events import (
    Effects,
    Event,
    LocalWorkerExpected,
    ShutdownWanted,
    Tick,
    WorkerConnected,
    WorkerGone,
    WorkerSaid,
)
from gpulayer_server.core.plane import Plane
from gpulayer_server.core.state import Job, JobKey, Settings
from gpulayer_server.core.views import job_view, stored_view
from gpulayer_server.store.database import Store, StoreError
from gpulayer_server.store.rows import Op, encoded
from gpulayer_server.store.streams import StreamGap, Streams
from tests.simulation.callsout import maps_of, tell_maps, with_arguments
from tests.simulation.network import End, Network
from tests.simulation.simulator import Host, Process, Violation
from tests.simulation.truth import Truth, keys

Reply = Callable[[Any], None]

TICK_S = 0.5
LOCAL_S = 30.0  # a local worker is expected so long
BROKEN: list[Op] = [("put_task", ())]  # a unit that SQLite refuses


class Unit:
    """One event's effects, and the views of the jobs and tasks that it changed, as they were then."""

    __slots__ = ("commits", "effects", "maps", "views")

    def __init__(self, effects: Effects, commits: bool, views: list[tuple[str, JobView]], maps: list[MapView]):
        self.effects = effects
        self.commits = commits
        self.views = views
        self.maps = maps


class ServerSocket:
    """The control plane's side of one worker's connection."""

    def __init__(self, control_plane: ControlPlane, end: End):
        self.control_plane = control_plane
        self.end = end
        self.conn = 0
        self.dropped = False
        self._heard_words: list[WorkerMessage] = []
        self._said: list[ServerMessage] = []  # answers that may be given again: a resend is harmless
        end.heard, end.closed = self._heard, self._closed

    def _heard(self, data: bytes) -> None:
        acks: dict[str, int] = {}
        for message in from_worker(data):
            if not self.dropped:
                self._take(message, acks)
        self._hand_over()
        if acks:
            self.send([Ack(attempt=attempt, offset=offset) for attempt, offset in acks.items()])

    def _take(self, message: WorkerMessage, acks: dict[str, int]) -> None:
        plane = self.control_plane
        match message:
            case Output():
                try:
                    length = plane.output(self.conn, message)
                except StreamGap:
                    self._hand_over()
                    plane.bytes_missing()
                    self.drop("bytes are missing")
                    return
                if length is not None:
                    acks[message.attempt] = length
            case Hello():
                self._hand_over()
                if self.conn == 0:
                    self.conn = plane.connect(self)
                acked = {held.attempt: plane.streams.length(held.attempt) for held in message.attempts}
                plane.handle(WorkerConnected(conn=self.conn, hello=message, acked=acked))
            case _:
                self._heard_words.append(message)

    def _hand_over(self) -> None:
        """The rest of a frame is one event."""
        words, self._heard_words = tuple(self._heard_words), []
        if words:
            lengths = self.control_plane.streams.length
            acked = {each.attempt: lengths(each.attempt) for each in words if isinstance(each, Finished)}
            self.control_plane.handle(WorkerSaid(conn=self.conn, messages=words, acked=acked))

    def send(self, messages: list[ServerMessage]) -> None:
        """One frame to the worker."""
        plane = self.control_plane
        if plane.doubled_answers and plane.sim.random.random() < plane.doubled_answers:
            again = plane.sim.random.sample(self._said, min(2, len(self._said)))
            messages = [*(message for message in messages for _ in range(2)), *again]
        if plane.doubled_answers:
            self._said += [message for message in messages if isinstance(message, (Ack, Recorded, Forget, EndSession))]
            del self._said[:-20]
        plane.network.send(self.end, messages)

    def drop(self, reason: str) -> None:
        """Close the connection from this side."""
        if not self.dropped:
            self.dropped = True
            self.control_plane.sim.log("cp", f"drops connection {self.conn}:", reason)
            self.control_plane.network.close(self.end)
            self.control_plane.disconnect(self.conn)

    def _closed(self) -> None:
        if self.conn:
            self.control_plane.disconnect(self.conn)


class ControlPlane(Process):
    """One process after the other on one host; the store and the streams' files outlive them."""

    def __init__(
        self,
        host: Host,
        network: Network,
        truth: Truth,
        folder: Path,
        store: Store,
        *,
        settings: Settings | None = None,
    ):
        super().__init__(host)
        self.network = network
        self.truth = truth
        self.settings = settings or Settings()
        self.store = store
        self.folder = folder
        self.up = False
        self.commit_s = 0.01  # a commit's time, at most
        self.failing_commits = 0.0  # probability
        self.crashing_releases = 0.0  # probability: it dies between a commit and the last message that follows from it
        self.doubled_answers = 0.0  # probability: of a frame in which everything is said twice
        self.careless_workers = False  # they say words again, or forget some
        self.ended = False  # once, in order: what was said then may arrive much later
        self.expects_local = False  # a local worker is started with it
        self.attended: Callable[[], frozenset[str]] = frozenset  # maps of which connected clients have more to send
        self._conns = 0

    # ---------------------------------------------------------------- life and death

    def start(self) -> None:
        """A new process: a new epoch, everything else from the store and the files."""
        self.up = True
        self.started_at = self.sim.now
        self.epoch = self.store.raise_epoch()
        self.streams = Streams(self.folder)
        self.links: dict[int, ServerSocket] = {}
        self._sockets: list[ServerSocket] = []
        self.outbox: deque[Unit] = deque()
        self.failing = False
        self.coming: dict[JobKey, list[Callable[[], None]]] = {}  # batches: none here
        self._requests: dict[int, Callable[[Any], None]] = {}
        self._request_n = 0
        self._waiting: list[list[Op]] = []  # units that the committer has not taken yet
        self._committing, self._committer_busy, self._committer_failed = 0, False, False
        self.load(names=0)
        self.sim.log("cp", f"starts, epoch {self.epoch}")
        self.after(TICK_S, self._tick)
        if self.expects_local:
            self.handle(LocalWorkerExpected(until=self.host.clock() + LOCAL_S))

    def load(self, *, names: int) -> None:
        """The plane, from the store."""
        self.plane = Plane(epoch=self.epoch, now=self.host.clock(), snapshot=self.store.load(), settings=self.settings)
        self.plane.names = names
        self.truth.rebuilt(self.plane, self.store)

    def crash(self, *, silent: bool = False) -> None:
        """Die now. `silent`: the workers are not told."""
        if not self.up:
            return
        self.sim.log("cp", "crashes")
        self.up = False
        self.end_life()
        self.streams.close()
        self.outbox.clear()
        for socket in self._sockets:
            socket.dropped = True
            socket.end.dark = socket.end.dark or silent
            self.network.close(socket.end)

    def end(self) -> None:
        """Say to the local workers that it is about to end."""
        if self.up and not self.host.asleep:
            self.ended = True
            self.handle(ShutdownWanted(reason="nobody needs it"))

    def bytes_missing(self) -> None:
        """A worker skips bytes: never, since frames keep their order, unless it is careless."""
        if not self.careless_workers:
            raise Violation("bytes are missing, though no frame is")

    def _tick(self) -> None:
        self.after(TICK_S, self._tick)
        self.handle(Tick(attended=self.attended()))

    # ---------------------------------------------------------------- events in

    def handle(self, event: Event) -> None:
        """Let the plane handle an event; carry out what follows in its turn."""
        if self.failing or not self.up:
            return
        self.sim.events += 1
        effects = self.plane.handle(event, self.host.clock())
        anew_at = max(self.started_at, self.host.rested_at)
        self.truth.check_decisions(self.plane, event, effects, self.host.clock(), anew_at=anew_at)
        ops = encoded(effects.rows.values())
        views: list[tuple[str, JobView]] = []
        if effects.jobs:
            names = {worker.id: worker.name for worker in self.plane.workers.values()}
            views = [(key, stored_view(job, names, index)) for job in effects.jobs.values() for key, index in keys(job)]
        unit = Unit(effects, bool(ops), views, maps_of(self.plane, effects))
        if not ops and not self.outbox:
            self._release(unit)
            return
        self.outbox.append(unit)
        if ops:
            self._committing += 1
            self._waiting.append(ops)
            if not self._committer_busy:
                self._committer_busy = True
                self.after(0.0, self._take_transaction)

    def request(self, make: Callable[[int], Event], reply: Callable[[Any], None]) -> None:
        """An event that is answered."""
        if self.failing:
            reply(_full("the control plane is recovering from a failed write"))
            return
        self._request_n += 1
        self._requests[self._request_n] = reply
        self.handle(make(self._request_n))

    def connect(self, socket: ServerSocket) -> int:
        """A number for a new worker's connection."""
        self._conns += 1
        self.links[self._conns] = socket
        return self._conns

    def accept(self, end: End) -> None:
        """A worker opened a socket."""
        self._sockets = [socket for socket in self._sockets if socket.end.open]
        self._sockets.append(ServerSocket(self, end))

    def disconnect(self, conn: int) -> None:
        """A worker's connection is closed."""
        if self.links.pop(conn, None) is not None:
            self.handle(WorkerGone(conn=conn))

    def output(self, conn: int, message: Output) -> int | None:
        """Bytes of a stream."""
        if self.failing or not self.plane.accepts_output(conn, message.attempt):
            return None
        return self.streams.append(message.attempt, message.offset, message.data)

    # ---------------------------------------------------------------- as clients' requests need it

    def stored_by_key(self, owner: str, key: str) -> Job | None:
        """A job of the past that this key made."""
        return None if (owner, key) in self.plane.keys else self.store.job_by_key(owner, key)

    def ends_of(self, jobs: Iterable[str]) -> dict[str, State]:
        """How those of these jobs ended that do not live any more."""
        wanted = [name for name in jobs if self.plane.state_of(name) is None]
        return {name: state for name, state in self.store.states(wanted).items() if state is not None}

    def history_view(self, job: Job) -> JobView:
        """A job as the store has it."""
        live = self.plane.jobs.get(job.id)
        names = {worker.id: worker.name for worker in self.plane.workers.values()}
        return job_view(self.plane, live) if live else stored_view(job, names)

    # ---------------------------------------------------------------- the committer

    def _take_transaction(self) -> None:
        units, self._waiting = self._waiting, []
        self.after(self.commit_s * self.sim.random.random(), self._commit, units)

    def _commit(self, units: list[list[Op]]) -> None:
        if not self._committer_failed:
            fails = self.failing_commits and self.sim.random.random() < self.failing_commits
            try:
                self.store.commit([*units, BROKEN] if fails else units)
            except StoreError as error:
                self.sim.log("cp", f"a commit of {len(units)} units fails:", error)
                self._committer_failed = True
                if not fails:
                    raise
        self.after(self.commit_s * self.sim.random.random(), self._committed, len(units), self._committer_failed)

    def _committed(self, count: int, failed: bool) -> None:
        self._committer_busy = bool(self._waiting)
        if self._waiting:
            self.after(0.0, self._take_transaction)
        self._committing -= count
        if failed:
            self._fail()
            return
        while self.outbox and (count > 0 or not self.outbox[0].commits):
            unit = self.outbox.popleft()
            count -= unit.commits
            self._release(unit)

    def _fail(self) -> None:
        if not self.failing:
            self.failing = True
            while self.outbox:
                for request, _ in self.outbox.popleft().effects.replies:
                    self._requests.pop(request)(_full("a commit failed"))
            for socket in list(self.links.values()):
                socket.drop("the control plane is recovering from a failed write")
        if self._committing == 0:
            local_expected_until = self.plane.local_expected_until
            self.load(names=self.plane.names)
            self.plane.local_expected_until = local_expected_until  # no row holds it
            self._committer_failed = False
            self.failing = False

    # ---------------------------------------------------------------- effects out

    def _release(self, unit: Unit) -> None:
        effects = unit.effects
        crash_at = -1
        chance = self.crashing_releases * (10.0 if effects.marks else 1.0)
        if unit.commits and chance and self.sim.random.random() < chance:
            crash_at = self.sim.random.randrange(3)
        for step, carry_out in enumerate((self._mark, self._send, self._answer)):
            if step == crash_at:
                self.crash()
                return
            carry_out(unit)
            if not self.up:
                return
        for conn, reason in effects.closes:
            if reason == "bytes are missing":
                self.bytes_missing()
            socket = self.links.get(conn)
            if socket is not None:
                socket.drop(reason)

    def _mark(self, unit: Unit) -> None:
        for attempt, why in unit.effects.marks:
            self.streams.truncate_with_mark(attempt, why)

    def _send(self, unit: Unit) -> None:
        batches: dict[int, list[ServerMessage]] = {}
        for conn, message in unit.effects.sends:
            batches.setdefault(conn, []).append(with_arguments(self.store, message))
        for conn, messages in batches.items():
            socket = self.links.get(conn)
            if socket is not None:
                socket.send(messages)

    def _answer(self, unit: Unit) -> None:
        for request, answer in unit.effects.replies:
            if isinstance(answer, JobView) and self.store.job(answer.id) is None:
                raise Violation(f"{answer.id} is answered, and not in the store")
            self._requests.pop(request)(answer)
        tell_maps(self.truth.calls, unit.effects, unit.maps)
        for key, view in unit.views:
            self.truth.told(key, view)
        if not self.outbox:
            self.truth.compare_with_store(unit.views, self.store)


def _full(detail: str) -> Problem:
    return Problem(status=507, code="store_failed", title="the control plane could not write", detail=detail)

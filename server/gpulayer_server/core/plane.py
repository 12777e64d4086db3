"""The plane: `handle(event, now) -> effects`. Deterministic: no clock, no randomness, no I/O of its own.

The state lives in `Plane`; what the events do to it stands in `jobs`, `fleet`, `attempts`, `sessions` and `placing`.
Names of attempts carry the epoch, so that a fence is never used twice, not even after lost commits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable

from gpulayer.protocol.types import Requirements, State
from gpulayer_server.core import attempts, ending, fleet, gangs, jobs, placing, reserving, sessions, waiting
from gpulayer_server.core.calls import attending, dispatch, opening, restoring, yielding
from gpulayer_server.core.calls import leases as runners
from gpulayer_server.core.calls import results as call_results
from gpulayer_server.core.calls.pool import Calls, LiveMap
from gpulayer_server.core.condition import Seen
from gpulayer_server.core.events import (
    ArgsCame,
    CallsEndWanted,
    CancelWanted,
    Effects,
    Event,
    LimitsSet,
    LocalWorkerExpected,
    MapCancelWanted,
    MapOpened,
    ReleaseWanted,
    ShutdownWanted,
    Submitted,
    SubmittedBatch,
    Tick,
    WorkerConnected,
    WorkerGone,
    WorkerSaid,
)
from gpulayer_server.core.reserving import Reservation
from gpulayer_server.core.state import (
    Attempt,
    Claim,
    Job,
    JobKey,
    Limits,
    Session,
    SessionKey,
    Settings,
    Snapshot,
    Task,
    Worker,
)
from gpulayer_server.scheduling.fair import Usage
from gpulayer_server.scheduling.queue import Queue
from gpulayer_server.scheduling.room import Room
from gpulayer_server.scheduling.wants import Line, demand_of, owner_of, varied


class Plane:
    """Owns every piece of live state of the control plane; only `handle` changes it."""

    def __init__(self, *, epoch: int, now: float, snapshot: Snapshot | None = None, settings: Settings | None = None):
        self.epoch = epoch
        self.settings = settings or Settings()
        self.jobs: dict[str, Job] = {}
        self.tasks: dict[str, Task] = {}
        self.attempts: dict[str, Attempt] = {}  # live ones, and those whose processes may be there
        self.sessions: dict[str, Session] = {}
        self.session_of: dict[SessionKey, Session] = {}
        self.ended_sessions: dict[SessionKey, str] = {}  # why the last one of that name ended, until one is used again
        self.workers: dict[str, Worker] = {}
        self.by_conn: dict[int, Worker] = {}
        self.keys: dict[JobKey, str] = {}
        self.done: dict[str, tuple[int, Job]] = {}  # jobs that are over, until the store surely answers for them
        self.awaited: dict[str, list[str]] = {}  # by job: those that are to run once it has succeeded
        self.named: dict[str, int] = {}  # jobs that live ones are to run after, and by how many
        self.ended = 0  # jobs that ended and are kept
        self.look_for_room = False  # something may be placed that was not before
        self.queue_grew = False  # somebody came who waits
        self.queue: Queue[Line] = Queue(owner_of, demand_of, varied)
        self.lines: dict[Hashable, Line] = {}  # classes of the queue, by what they are for
        self.room: Room[Worker] = Room()
        self.usage = Usage()
        self.limits: dict[str, Limits] = {}  # by owner
        self.limited: dict[str, dict[Line, None]] = {}  # by owner: lines that wait until less of his runs
        self.reservations: dict[str, Reservation] = {}  # by task
        self.measured: dict[str, Seen] = {}  # by worker: what samples showed, until the next tick
        self.calls = Calls()
        self.maps: dict[str, LiveMap] = self.calls.maps  # of calls, those that live
        self.last_job_n = 0
        self.names = 0  # attempts and sessions named in this epoch
        self.started_at = now
        self.now = now  # of the last event
        self.last_tick = now
        self.ticks = 0
        self.local_expected_until = 0.0
        self._fleet_changed = False  # what could be placed somewhere may be placed nowhere now
        self._over: list[Job] = []  # of this event: nothing is left of them
        self.unheard: deque[tuple[str, str]] = deque()  # jobs that wait, each for one that ended, or is not there
        self._marks: list[tuple[str, str]] = []  # to be made with the next event's effects
        self._restore(snapshot or Snapshot(), now)

    def handle(self, event: Event, now: float) -> Effects:
        """Apply one event at `now` (seconds; Unix time on a clock that never goes back) and say what follows."""
        out = Effects(marks=self._marks)
        self._marks = []
        self.now = now
        fleet.notice_gap(self, now, out)
        self._apply(event, now, out)
        while self.unheard:  # each may add others: a chain of jobs can be long
            name, of = self.unheard.popleft()
            job = self.jobs.get(name)
            if job is not None and of in job.waits_for:
                ending.heard(self, job, of, self.state_of(of), now, out)
        tick = isinstance(event, Tick)
        if tick:
            waiting.forget_lines(self)
            reserving.look(self, now)
            runners.tick(self, out)
        self._settle(now, out, later=isinstance(event, SubmittedBatch) and event.more)
        if self.queue and (self._fleet_changed or tick):
            placing.reject_impossible(self, now, out)
            self.look_for_room = True  # for who stood behind one that was rejected
            self._settle(now, out)
        if self.queue and (self.queue_grew or tick):
            yielding.look(self, now, out, tick=tick)
        self._fleet_changed = self.queue_grew = False
        opening.answer(self, out)
        out.jobs = {job: self.jobs[job] for job in sorted(out.changed)}
        self._forget_done()
        return out

    def _settle(self, now: float, out: Effects, *, later: bool = False) -> None:
        """Give calls out, and place what waits; `later`: more of it is to come. Each may make way for the other."""
        calls = self.calls
        call_results.try_again(self, now)
        while True:
            while calls.touched:
                pool, _ = calls.touched.popitem()
                dispatch.give_out(pool, now, out)
                runners.adjust(self, pool, now, out)
            if not self.look_for_room or later:
                return
            self.look_for_room = False
            self.place_waiting(now, out)

    def _apply(self, event: Event, now: float, out: Effects) -> None:
        match event:
            case WorkerSaid():
                attempts.said(self, event, now, out)
            case MapOpened() | ArgsCame() | MapCancelWanted() | CallsEndWanted():
                self._calls_wanted(event, now, out)
            case Submitted() | SubmittedBatch() | CancelWanted() | ReleaseWanted():
                self._asked(event, now, out)
            case Tick():
                fleet.tick(self, now, out)
                attending.look(self, event.attended, now, out)
            case WorkerConnected():
                fleet.connected(self, event, now, out)
            case WorkerGone():
                fleet.gone(self, event.conn, now, out)
            case LocalWorkerExpected():
                self.local_expected_until = event.until
            case ShutdownWanted():
                fleet.shutdown_local(self, event.reason, out)
            case LimitsSet():
                waiting.set_limits(self, event.limits)

    def _asked(
        self, event: Submitted | SubmittedBatch | CancelWanted | ReleaseWanted, now: float, out: Effects
    ) -> None:
        match event:
            case Submitted():
                jobs.submit(self, event, now, out)
            case SubmittedBatch():
                jobs.submit_batch(self, event, now, out)
            case CancelWanted():
                jobs.cancel(self, event, now, out)
            case ReleaseWanted():
                sessions.release(self, event, out)

    def _calls_wanted(
        self, event: MapOpened | ArgsCame | MapCancelWanted | CallsEndWanted, now: float, out: Effects
    ) -> None:
        match event:
            case MapOpened():
                opening.open_map(self, event, now, out)
            case ArgsCame():
                opening.args_came(self, event, now, out)
            case MapCancelWanted():
                opening.cancel_map(self, event, now, out)
            case CallsEndWanted():
                opening.end_calls(self, event, now, out)

    def new_name(self, prefix: str) -> str:
        """A name that no other epoch gives."""
        self.names += 1
        return f"{prefix}-{self.epoch}-{self.names}"

    def add(self, job: Job) -> None:
        """A job that lives, with all of its tasks."""
        job.count()
        self.jobs[job.id] = job
        for name in job.spec.after:
            self.named[name] = self.named.get(name, 0) + 1
        for task in job.tasks:
            if not task.done:
                self.tasks[task.id] = task

    def enqueue(self, task: Task) -> None:
        """Let a queued task wait for a place."""
        waiting.enqueue(self, task)

    def able(self, requirements: Requirements) -> list[Worker]:
        """The workers that are there and could take a job, however busy they are."""
        return list(self.room.able(self.room.wants(requirements)))

    def fleet_is_another(self, worker: Worker) -> None:
        """A worker came or went, or has another name or other devices."""
        self.room.came(worker)
        for session in self.sessions.values():
            if session.worker == worker.id:
                waiting.session_free(self, session)
        self._fleet_changed = self.look_for_room = True

    def worker_changed(self, worker: Worker) -> None:
        """More of a worker may be free than what was given back there: it says so, or what was measured says it."""
        self.room.touched(worker)
        self.look_for_room = True

    def job_of(self, key: JobKey) -> Job | None:
        """The job that an idempotency key made, unless it was over long ago: then the store has it."""
        name = self.keys.get(key)
        return None if name is None else self.jobs[name] if name in self.jobs else self.done[name][1]

    def state_of(self, name: str) -> State | None:
        """The state of a job as a whole, unless it was over long ago: then the store has it."""
        job = self.jobs.get(name)
        if job is None and name in self.done:
            job = self.done[name][1]
        return None if job is None else job.whole

    def forget_keys(self) -> None:
        """Leave the jobs that are over to the store: by now their rows are committed."""
        old: list[Job] = []
        for tick, job in self.done.values():
            if self.ticks - tick < self.settings.keep_keys_ticks:
                break
            old.append(job)
        for job in old:  # afterwards: to look for a dict's first item anew steps over all that were taken before it
            del self.done[job.id], self.keys[(job.owner, job.key)]

    def done_with(self, task: Task) -> None:
        """A task is over, and no process of it is left."""
        del self.tasks[task.id]
        job = self.jobs[task.job]
        job.undone -= 1
        if job.undone == 0:
            self._over.append(job)

    def _forget_done(self) -> None:
        """Drop jobs that this event completed from memory: history is the store's."""
        for job in self._over:
            del self.jobs[job.id]
            for name in job.spec.after:
                self.named[name] -= 1
                if not self.named[name]:
                    del self.named[name]
            self.done[job.id] = (self.ticks, job)
        self._over.clear()

    def accepts_output(self, conn: int, attempt_id: str) -> bool:
        """Whether the stream of an attempt may grow by what this connection sends."""
        attempt = self.attempts.get(attempt_id)
        worker = self.by_conn.get(conn)
        return attempt is not None and worker is not None and attempt.worker == worker.id and not attempt.over

    def idle(self) -> bool:
        """Whether nothing lives here but runners without a call, which end with it: no job, no session."""
        if self.sessions or self.maps:
            return False
        live = [job for job in self.jobs.values() if job.pool is None or not job.pool.leases]
        return not live and all(name in self.calls.leases for name in self.attempts)

    def _restore(self, snapshot: Snapshot, now: float) -> None:
        """Take the store's rows. Every worker is out of touch until it says hello; every lease starts anew."""
        self.last_job_n = snapshot.last_job_n
        self.ended = snapshot.ended
        self.ended_sessions = snapshot.ended_sessions
        # The process before this one may have died between the commit and the mark.
        self._marks = [(attempt, "it was lost") for attempt in snapshot.lost]
        for worker in snapshot.workers:
            worker.gone_since = now
            self.workers[worker.id] = worker
            self.room.came(worker)
        for session in snapshot.sessions:
            self.sessions[session.id] = session
            self.session_of[session.key] = session
            session.running = None
            session.idle_since = now
            self._hold(session.worker, session.id, session.claim())
        jobs_there = {job.id: job for job in snapshot.jobs}
        for attempt in snapshot.attempts:
            self.attempts[attempt.id] = attempt
            if attempt.holds_slot:
                # Of a job that ended while processes of an attempt are left, the store gives the job all the same.
                self._hold(attempt.worker, attempt.id, attempt.claim(jobs_there.get(attempt.task.rpartition("/")[0])))
            session = self.sessions.get(attempt.session) if attempt.session else None
            if session is not None and attempt.in_session:
                session.running, session.idle_since = attempt.id, None
        self._restore_jobs(snapshot)

    def _restore_jobs(self, snapshot: Snapshot) -> None:
        for job in snapshot.jobs:
            if all(task.done for task in job.tasks):
                continue  # only an earlier attempt's processes are there yet: it is history, as it was before
            self.add(job)
            self.keys[(job.owner, job.key)] = job.id
        restoring.restore(self, snapshot)
        ended = dict.fromkeys(snapshot.succeeded, State.SUCCEEDED)
        for job in self.jobs.values():
            in_vain = ending.wait_for(self, job, ended) if job.spec.after else []
            self.unheard += [(job.id, name) for name in in_vain]
            for task in job.tasks:
                if task.state is State.QUEUED and not job.waits_for and not gangs.being_taken_back(job):
                    self.enqueue(task)

    def _hold(self, worker_id: str, holder: str, claim: Claim) -> None:
        worker = self.workers.get(worker_id)
        if worker is not None:
            waiting.take(self, worker, holder, claim)

    def place_waiting(self, now: float, out: Effects) -> None:
        """Place what can be placed; reject what no worker could take."""
        placing.place_waiting(self, now, out)

"""The plane: `handle(event, now) -> effects`. Deterministic: no clock, no randomness, no I/O of its own.

The state lives in `Plane`; what the events do to it stands in `jobs`, `fleet`, `attempts`, `sessions` and `placing`.
Names of attempts carry the epoch, so that a fence is never used twice, not even after lost commits.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpulayer.protocol.types import State
from gpulayer_server.core import attempts, fleet, jobs, placing, sessions
from gpulayer_server.core.events import (
    CancelWanted,
    Effects,
    Event,
    LocalWorkerExpected,
    ReleaseWanted,
    ShutdownWanted,
    Submitted,
    Tick,
    WorkerConnected,
    WorkerGone,
    WorkerSaid,
)
from gpulayer_server.core.state import Attempt, Job, JobKey, Session, SessionKey, Settings, Snapshot, Task, Worker
from gpulayer_server.scheduling.queue import Queue


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
        self.done: dict[JobKey, tuple[int, Job]] = {}  # jobs that are over, until the store surely answers for them
        self.queue = Queue()
        self.last_job_n = 0
        self.names = 0  # attempts and sessions named in this epoch
        self.started_at = now
        self.last_tick = now
        self.ticks = 0
        self.local_expected_until = 0.0
        self._marks: list[tuple[str, str]] = []  # to be made with the next event's effects
        self._restore(snapshot or Snapshot(), now)

    def handle(self, event: Event, now: float) -> Effects:
        """Apply one event at `now` (seconds; Unix time on a clock that never goes back) and say what follows."""
        out = Effects(marks=self._marks)
        self._marks = []
        fleet.notice_gap(self, now, out)
        match event:
            case WorkerSaid():
                attempts.said(self, event, now, out)
            case Submitted():
                jobs.submit(self, event, now, out)
            case Tick():
                fleet.tick(self, now, out)
            case WorkerConnected():
                fleet.connected(self, event, now, out)
            case WorkerGone():
                fleet.gone(self, event.conn, now, out)
            case CancelWanted():
                jobs.cancel(self, event, now, out)
            case ReleaseWanted():
                sessions.release(self, event, out)
            case LocalWorkerExpected():
                self.local_expected_until = event.until
            case ShutdownWanted():
                fleet.shutdown_local(self, event.reason, out)
        out.jobs = {job: self.jobs[job] for job in sorted(out.changed)}
        self._forget_done(out)
        return out

    def new_name(self, prefix: str) -> str:
        """A name that no other epoch gives."""
        self.names += 1
        return f"{prefix}-{self.epoch}-{self.names}"

    def queue_key(self, task: Task) -> tuple[object, ...]:
        """The class in which a task waits: equal requirements, or the same session."""
        job = self.jobs[task.job]
        if job.session_key is not None:
            return ("session", *job.session_key)
        return ("fresh", job.spec.requirements)

    def enqueue(self, task: Task) -> None:
        """Let a queued task wait for a place."""
        self.queue.add(self.queue_key(task), task.id, self.jobs[task.job].n)

    def job_of(self, key: JobKey) -> Job | None:
        """The job that an idempotency key made, unless it was over long ago: then the store has it."""
        name = self.keys.get(key)
        return None if name is None else self.jobs[name] if name in self.jobs else self.done[key][1]

    def forget_keys(self) -> None:
        """Leave the keys of jobs that are over to the store: by now their rows are committed."""
        while self.done:
            key, (tick, _) = next(iter(self.done.items()))
            if self.ticks - tick < self.settings.keep_keys_ticks:
                return
            del self.done[key], self.keys[key]

    def _forget_done(self, out: Effects) -> None:
        """Drop jobs that this event completed from memory: history is the store's."""
        touched: set[str] = set()
        for row in out.rows.values():
            if isinstance(row, Task):
                touched.add(row.job)
            elif isinstance(row, Attempt) and row.task in self.tasks:
                touched.add(self.tasks[row.task].job)
        for job in [self.jobs[name] for name in touched if name in self.jobs]:
            if all(task.done for task in job.tasks):
                for task in job.tasks:
                    del self.tasks[task.id]
                del self.jobs[job.id]
                self.done[(job.owner, job.key)] = (self.ticks, job)

    def accepts_output(self, conn: int, attempt_id: str) -> bool:
        """Whether the stream of an attempt may grow by what this connection sends."""
        attempt = self.attempts.get(attempt_id)
        worker = self.by_conn.get(conn)
        return attempt is not None and worker is not None and attempt.worker == worker.id and not attempt.over

    def idle(self) -> bool:
        """Whether nothing lives here: no job, no session that is not released."""
        return not self.jobs and not self.attempts and not self.sessions

    def _restore(self, snapshot: Snapshot, now: float) -> None:
        """Take the store's rows. Every worker is out of touch until it says hello; every lease starts anew."""
        self.last_job_n = snapshot.last_job_n
        self.ended_sessions = snapshot.ended_sessions
        # The process before this one may have died between the commit and the mark.
        self._marks = [(attempt, "it was lost") for attempt in snapshot.lost]
        for worker in snapshot.workers:
            worker.gone_since = now
            self.workers[worker.id] = worker
        for session in snapshot.sessions:
            self.sessions[session.id] = session
            self.session_of[session.key] = session
            session.running = None
            session.idle_since = now
            self._hold(session.worker, session.id, session)
        for attempt in snapshot.attempts:
            self.attempts[attempt.id] = attempt
            if attempt.holds_slot:
                self._hold(attempt.worker, attempt.id, attempt)
            session = self.sessions.get(attempt.session) if attempt.session else None
            if session is not None and attempt.in_session:
                session.running, session.idle_since = attempt.id, None
        self._restore_jobs(snapshot.jobs)

    def _restore_jobs(self, restored: Iterable[Job]) -> None:
        for job in restored:
            if all(task.done for task in job.tasks):
                continue  # only an earlier attempt's processes are there yet: it is history, as it was before
            self.jobs[job.id] = job
            self.keys[(job.owner, job.key)] = job.id
            for task in job.tasks:
                self.tasks[task.id] = task
                if task.state is State.QUEUED:
                    self.enqueue(task)

    def _hold(self, worker_id: str, holder: str, what: Attempt | Session) -> None:
        worker = self.workers.get(worker_id)
        if worker is not None:
            worker.holders[holder] = what.devices

    def place_all(self, now: float, out: Effects) -> None:
        """Place what can be placed; reject what no worker could take."""
        for key in self.queue.classes():
            placing.place_class(self, key, now, out)

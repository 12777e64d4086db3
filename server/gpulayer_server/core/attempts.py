"""What workers say of their attempts, and what follows for tasks, slots and devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpulayer.protocol.calls import CallsDone, CallsReturned
from gpulayer.protocol.messages import (
    Ahead,
    Finished,
    Forget,
    Heartbeat,
    HeartbeatAck,
    NotStarted,
    Progress,
    Recorded,
    Released,
    SessionEnded,
    Started,
    WorkerMessage,
)
from gpulayer.protocol.types import Outcome, State
from gpulayer_server.core import condition, gangs, sessions, waiting
from gpulayer_server.core.calls import leases, results
from gpulayer_server.core.ending import end_task
from gpulayer_server.core.events import Effects, WorkerSaid
from gpulayer_server.core.state import Attempt, Task, Worker

if TYPE_CHECKING:
    from gpulayer_server.core.plane import Plane


def said(plane: Plane, event: WorkerSaid, now: float, out: Effects) -> None:
    """A worker's frame. Words about an attempt that is over, or another worker's, change nothing."""
    worker = plane.by_conn.get(event.conn)
    if worker is None:
        return  # its connection was replaced or closed; its next hello tells everything
    worker.last_seen_at = now
    for message in event.messages:
        if isinstance(message, Finished):
            if not _finished(plane, worker, event, message, now, out):
                return  # its connection is about to be closed
        elif isinstance(message, CallsDone):
            results.done(plane, worker, _current(plane, worker, message.attempt), message, now, out)
        elif isinstance(message, CallsReturned):
            results.returned(plane, _current(plane, worker, message.attempt), message, now, out)
        else:
            _heard(plane, worker, message, now, out)


def _heard(plane: Plane, worker: Worker, message: WorkerMessage, now: float, out: Effects) -> None:
    match message:
        case Started(attempt=name):
            attempt = _current(plane, worker, name)
            if attempt is not None:
                started(plane, attempt, now, out)
        case Released(attempt=name):
            release(plane, worker, name, now, out)
            out.send(worker.conn, Forget(attempt=name))
        case Heartbeat():
            _beat(plane, worker, message, out)
            out.send(worker.conn, HeartbeatAck())
        case NotStarted(attempt=name, reason=reason):
            _not_started(plane, worker, name, reason, now, out)
        case SessionEnded(session=name, reason=reason):
            sessions.ended(plane, worker, name, reason, out)
        case Ahead(count=count):
            worker.ahead = max(0, count)
            plane.worker_changed(worker)
        case Progress(attempt=name, text=text):
            _progress(plane, _current(plane, worker, name), text, out)
        case _:
            condition.heard(plane, worker, message, now, out)  # Hello and Output come in by doors of their own


def _beat(plane: Plane, worker: Worker, message: Heartbeat, out: Effects) -> None:
    """It is there; what stands against it, and whether it takes work, may be another now."""
    if worker.notes == message.notes and worker.full == message.full:
        return
    worker.notes, worker.full = message.notes, message.full
    out.fleet_changed = True
    plane.worker_changed(worker)


def _current(plane: Plane, worker: Worker, name: str) -> Attempt | None:
    """The attempt, if this worker has it and it is not over."""
    attempt = plane.attempts.get(name)
    if attempt is None or attempt.over or attempt.worker != worker.id:
        return None
    return attempt


def _progress(plane: Plane, attempt: Attempt | None, text: str, out: Effects) -> None:
    if attempt is not None:
        attempt.progress = text
        out.changed.add(plane.tasks[attempt.task].job)


def started(plane: Plane, attempt: Attempt, began_at: float, out: Effects) -> None:
    """The attempt's program runs. It may be known to, or run for its worker only since it was out of touch."""
    task = plane.tasks[attempt.task]
    if task.state is State.RUNNING and attempt.started_at is not None:
        return
    if task.state is not State.RUNNING:
        task.move(State.RUNNING)
    if attempt.started_at is None:
        attempt.started_at = began_at
    attempt.progress = ""
    leases.started(plane, attempt, plane.now)
    session = plane.sessions.get(attempt.session) if attempt.session else None
    if session is not None and not session.used:
        session.used = True
        plane.ended_sessions.pop(session.key, None)
        out.put(session)
    out.put(task, attempt)
    out.changed.add(task.job)


def _finished(plane: Plane, worker: Worker, event: WorkerSaid, message: Finished, now: float, out: Effects) -> bool:
    """An end, perhaps with the release; False when bytes of its stream are missing."""
    attempt = _current(plane, worker, message.attempt)
    if attempt is not None:
        if event.acked.get(attempt.id, 0) < message.end_offset:
            # Bytes were lost on the way. A new connection begins with how far they came: from there they come again.
            out.closes.append((event.conn, "bytes are missing"))
            return False
        _end(plane, attempt, message, now, out)
    if message.released:
        release(plane, worker, message.attempt, now, out)
        out.send(event.conn, Forget(attempt=message.attempt))
    else:
        out.send(event.conn, Recorded(attempt=message.attempt))
    return True


def _end(plane: Plane, attempt: Attempt, message: Finished, now: float, out: Effects) -> None:
    task, outcome = plane.tasks[attempt.task], message.outcome
    if gangs.never_began(plane.jobs[task.job], task, outcome, began=message.began):
        close_attempt(plane, attempt, message.end_offset, "taken back: not all of its job could begin", now, out)
        gangs.given_back(plane, task, "taken back", now, out)
        return
    unsaid = attempt.started_at is None and (message.began or outcome.state is State.SUCCEEDED)
    if unsaid or task.state is State.UNREACHABLE:
        started(plane, attempt, max(attempt.assigned_at, now - (outcome.wall_s or 0.0)), out)
    close_attempt(plane, attempt, message.end_offset, "", now, out)
    end_task(plane, task, outcome.state, outcome, now, out)


def _not_started(plane: Plane, worker: Worker, name: str, reason: str, now: float, out: Effects) -> None:
    attempt = _current(plane, worker, name)
    if attempt is not None:
        requeue_unstarted(plane, plane.tasks[attempt.task], reason, now, out)
    out.send(worker.conn, Forget(attempt=name))


def requeue_unstarted(plane: Plane, task: Task, reason: str, now: float, out: Effects) -> None:
    """Its worker says that an attempt never started: the task waits again, or ends if its end was wanted.

    It counts as running, too, since its worker came back with it.
    """
    attempt = task.attempt
    if attempt is None:
        raise RuntimeError(f"task {task.id} has no attempt to give back")
    close_attempt(plane, attempt, 0, f"given back: {reason}", now, out)
    drop_attempt(plane, attempt, now, out)
    if task.state is State.RUNNING and not task.cancel_wanted:
        task.move(State.UNREACHABLE)
    if task.state is State.UNREACHABLE:
        task.move(State.LOST)
    if task.cancel_wanted and task.state is not State.LOST:
        end_task(plane, task, State.CANCELLED, Outcome(state=State.CANCELLED), now, out)
    elif task.cancel_wanted:
        problem = "cancelled while its machine was out of reach; it had not started"
        end_task(plane, task, State.FAILED, Outcome(state=State.FAILED, problem=problem), now, out)
    elif plane.jobs[task.job].spec.gang:
        gangs.given_back(plane, task, reason, now, out)
    else:
        task.move(State.QUEUED)
        out.put(task)
        out.changed.add(task.job)
        plane.enqueue(task)


def lose(plane: Plane, task: Task, problem: str, now: float, out: Effects, *, retry: bool = True) -> None:
    """An attempt is given up: its stream ends with a mark, its results are refused from now on.

    Its slot and devices stay taken until its worker says that its processes are gone.
    """
    attempt = task.attempt
    if attempt is None:
        raise RuntimeError(f"task {task.id} has no attempt to lose")
    if task.state is not State.UNREACHABLE:
        task.move(State.UNREACHABLE)
    task.move(State.LOST)
    close_attempt(plane, attempt, None, problem, now, out)
    out.marks.append((attempt.id, problem))
    task.lost += 1
    spec = plane.jobs[task.job].spec
    if retry and not task.cancel_wanted and task.lost <= spec.retries:
        task.move(State.QUEUED)
        out.put(task)
        out.changed.add(task.job)
        plane.enqueue(task)
    else:
        end_task(plane, task, State.FAILED, Outcome(state=State.FAILED, problem=problem), now, out)


def close_attempt(
    plane: Plane, attempt: Attempt, end_offset: int | None, problem: str, now: float, out: Effects
) -> None:
    """Nothing that is said of this attempt counts any more; its session is free, unless processes are left of it."""
    attempt.over = True
    attempt.ended_at = now
    attempt.end_offset = end_offset
    attempt.problem = problem
    attempt.progress = ""
    out.put(attempt)
    leases.closed(plane, attempt, lost=end_offset is None, now=now, out=out)
    _leave_session(plane, attempt, now)


def _leave_session(plane: Plane, attempt: Attempt, now: float) -> None:
    session = plane.sessions.get(attempt.session) if attempt.session else None
    if session is not None and session.running == attempt.id and not attempt.in_session:
        session.running, session.idle_since = None, now
        waiting.session_free(plane, session)


def release(plane: Plane, worker: Worker, name: str, now: float, out: Effects) -> None:
    """No process of an attempt is left: its slot and devices are free.

    One whose end was never told was ended by its worker with its lease: its results are given up.
    """
    attempt = plane.attempts.get(name)
    if attempt is None or attempt.worker != worker.id:
        return
    if not attempt.over:
        problem = f"{worker.name} ended it: for too long it had no word from the control plane"
        lose(plane, plane.tasks[attempt.task], problem, now, out)
    drop_attempt(plane, attempt, now, out)


def drop_attempt(plane: Plane, attempt: Attempt, now: float, out: Effects) -> None:
    """Free what an attempt held."""
    attempt.released = True
    _leave_session(plane, attempt, now)
    out.put(attempt)
    out.fleet_changed = True
    plane.attempts.pop(attempt.id, None)
    plane.look_for_room = True
    worker = plane.workers.get(attempt.worker)
    if worker is not None:
        waiting.free(plane, worker, attempt.id)
    task = plane.tasks.get(attempt.task)
    if task is not None and task.attempt is attempt and task.done:
        plane.done_with(task)

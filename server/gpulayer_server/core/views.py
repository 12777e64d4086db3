"""What clients see of the plane. Nothing here changes it."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

from gpulayer.protocol.types import AttemptView, Holder, JobView, SessionView, State, TaskView, WorkerView
from gpulayer_server.core.explaining import Why, nearest_of
from gpulayer_server.core.state import Attempt, Claim, Job, Session, Task, Worker

if TYPE_CHECKING:
    from gpulayer_server.core.plane import Plane


def job_view(plane: Plane, job: Job, index: int | None = None) -> JobView:
    """A live job, as its record has it; with `index`, as one task of it is."""
    return stored_view(job, names_of_workers(plane), index)


def waiting_view(plane: Plane, job: Job, now: float, index: int | None = None, why: Why | None = None) -> JobView:
    """A live job; one that waits tells why, worker by worker, and how many stand before it. `why`: that of now."""
    view = job_view(plane, job, index)
    if view.state is not State.QUEUED:
        return view
    task = (job.task(index) if index is not None else None) or job.shown
    reasons, nearest = (why or Why(plane, now)).waits(task)
    return replace(view, reasons=reasons, nearest=nearest, ahead=plane.queue.ahead_of(task.id))


def names_of_workers(plane: Plane) -> dict[str, str]:
    """Names by id."""
    return {worker.id: worker.name for worker in plane.workers.values()}


def stored_view(job: Job, worker_names: dict[str, str], index: int | None = None) -> JobView:
    """A job from its record alone, live or not; with `index`, state and all that is a task's are that task's."""
    task = job.task(index) if index is not None and job.many else None
    if task is not None:
        return summary(job, task, task.state, {}, worker_names)
    tally = (job.tally or Counter(t.state for t in job.tasks)) if job.many else {}
    return summary(job, job.shown, job.whole, tally, worker_names)


def summary(job: Job, task: Task, state: State, tally: Mapping[State, int], worker_names: dict[str, str]) -> JobView:
    """A job of which one task is shown. `tally`: how many tasks of it are in each state, {} where it has one."""
    attempt, spec = task.attempt, job.spec
    return JobView(
        id=job.id,
        state=state,
        kind="calls" if spec.calls is not None else "cell" if spec.command is None else "command",
        calls=job.pool.count() if job.pool is not None else None,
        command="" if spec.command is None else shlex.join(spec.command.argv),
        labels=spec.labels,
        priority=spec.priority,
        after=spec.after,
        tasks={each.value: count for each, count in sorted(tally.items()) if count} if tally else {},
        name=spec.name,
        cancelling=task.cancel_wanted and not task.terminal,
        owner=job.owner,
        session=spec.session,
        requirements=spec.requirements,
        notebook=spec.notebook,
        cell_id=spec.cell_id,
        attempt=attempt.id if attempt else None,
        attempts=task.attempts,
        worker=worker_names.get(attempt.worker, attempt.worker) if attempt else None,
        devices=attempt.devices if attempt else (),
        reasons=task.reasons,
        nearest=nearest_of(spec.requirements, task.reasons) if task.reasons else "",
        progress=attempt.progress if attempt else "",
        notes=task.notes,
        submitted_at=job.submitted_at,
        started_at=attempt.started_at if attempt else None,
        ended_at=task.ended_at,
        outcome=task.outcome,
        end_offset=attempt.end_offset if attempt and attempt.over else None,
    )


def task_view(task: Task, worker_names: dict[str, str]) -> TaskView:
    """A task from its record, with its current or last attempt."""
    attempt = task.attempt
    return TaskView(
        index=task.index,
        state=task.state,
        cancelling=task.cancel_wanted and not task.terminal,
        attempt=attempt.id if attempt else None,
        attempts=task.attempts,
        worker=worker_names.get(attempt.worker, attempt.worker) if attempt else None,
        devices=attempt.devices if attempt else (),
        started_at=attempt.started_at if attempt else None,
        ended_at=task.ended_at,
        outcome=task.outcome,
        end_offset=attempt.end_offset if attempt and attempt.over else None,
    )


def attempt_view(attempt: Attempt, task: Task, worker_names: dict[str, str]) -> AttemptView:
    """A try of a task. Its outcome is the task's, if it is the one that the task ended with."""
    last = task.attempt is not None and task.attempt.id == attempt.id
    ended_it = last and attempt.over and attempt.end_offset is not None and not attempt.problem
    return AttemptView(
        id=attempt.id,
        index=task.index,
        number=attempt.number,
        worker=worker_names.get(attempt.worker, attempt.worker),
        devices=attempt.devices,
        assigned_at=attempt.assigned_at,
        started_at=attempt.started_at,
        ended_at=attempt.ended_at,
        over=attempt.over,
        outcome=task.outcome if ended_it else None,
        problem=attempt.problem,
        end_offset=attempt.end_offset,
    )


def worker_view(plane: Plane, worker: Worker, *, sampled: bool = True) -> WorkerView:
    """A worker: what of it is free, who holds the rest and, where wanted, how it fares."""
    return WorkerView(
        id=worker.id,
        name=worker.name,
        connected=worker.conn is not None,
        slots=worker.slots,
        slots_free=worker.slots_free,
        inventory=worker.inventory,
        devices_free=tuple(device.uuid for device in worker.devices_free),
        sessions=sum(1 for holder in worker.claims if holder in plane.sessions),
        local=worker.local,
        last_seen_at=worker.last_seen_at,
        notes=worker.notes,
        full=worker.full,
        sample=worker.sample if sampled else None,
        sampled_at=worker.sampled_at if sampled else None,
        ram_declared_bytes=worker.ram_declared_bytes,
        cpu_declared=worker.cpu_declared,
        holders=tuple([_holder(plane, name, claim) for name, claim in worker.claims.items()]),
    )


def _holder(plane: Plane, name: str, claim: Claim) -> Holder:
    """Who holds something; of a session also the job that runs in it."""
    job = claim.job
    session = plane.sessions.get(name)
    running = plane.attempts.get(session.running or "") if session is not None else None
    if running is not None:
        job = running.task.rpartition("/")[0]
    return Holder(
        job=job,
        session=claim.session,
        owner=claim.owner,
        name=claim.name,
        devices=tuple([device.uuid for device in claim.devices]),
        vram_bytes=claim.vram_share_bytes,
        since=claim.since,
    )


def session_view(plane: Plane, session: Session) -> SessionView:
    """A session and the job in it."""
    worker = plane.workers[session.worker]
    running = plane.attempts.get(session.running) if session.running else None
    task = plane.tasks.get(running.task) if running else None
    return SessionView(
        id=session.id,
        name=session.name,
        worker=worker.name,
        connected=worker.conn is not None,
        devices=session.devices,
        running=task.job if task else None,
        opened_at=session.opened_at,
        idle_since=session.idle_since,
        idle_timeout_s=session.idle_timeout_s,
    )

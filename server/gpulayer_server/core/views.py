"""What clients see of the plane. Nothing here changes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from gpulayer.protocol.types import JobView, SessionView, State, WorkerView
from gpulayer_server.core.explaining import why_waiting
from gpulayer_server.core.state import Job, Session, Worker

if TYPE_CHECKING:
    from gpulayer_server.core.plane import Plane


def job_view(plane: Plane, job: Job) -> JobView:
    """A live job, as its record has it."""
    return stored_view(job, names_of_workers(plane))


def waiting_view(plane: Plane, job: Job, now: float) -> JobView:
    """A live job; one that waits tells why, worker by worker, and how many stand before it."""
    view = job_view(plane, job)
    task = job.tasks[0]
    if task.state is not State.QUEUED:
        return view
    return replace(view, reasons=why_waiting(plane, task, now), ahead=plane.queue.ahead_of(task.id))


def names_of_workers(plane: Plane) -> dict[str, str]:
    """Names by id."""
    return {worker.id: worker.name for worker in plane.workers.values()}


def stored_view(job: Job, worker_names: dict[str, str]) -> JobView:
    """A job from its record alone, live or not."""
    task = job.tasks[0]
    attempt = task.attempt
    return JobView(
        id=job.id,
        state=task.state,
        name=job.spec.name,
        cancelling=task.cancel_wanted and not task.terminal,
        owner=job.owner,
        session=job.spec.session,
        requirements=job.spec.requirements,
        notebook=job.spec.notebook,
        cell_id=job.spec.cell_id,
        attempt=attempt.id if attempt else None,
        attempts=task.attempts,
        worker=worker_names.get(attempt.worker, attempt.worker) if attempt else None,
        devices=attempt.devices if attempt else (),
        reasons=task.reasons,
        progress=attempt.progress if attempt else "",
        notes=task.notes,
        submitted_at=job.submitted_at,
        started_at=attempt.started_at if attempt else None,
        ended_at=task.ended_at,
        outcome=task.outcome,
        end_offset=attempt.end_offset if attempt and attempt.over else None,
    )


def worker_view(worker: Worker) -> WorkerView:
    """A worker and what of it is free."""
    return WorkerView(
        id=worker.id,
        name=worker.name,
        connected=worker.conn is not None,
        slots=worker.slots,
        slots_free=worker.slots_free,
        inventory=worker.inventory,
        devices_free=tuple(device.uuid for device in worker.free_devices()),
        sessions=sum(1 for holder in worker.holders if holder.startswith("s-")),
        local=worker.local,
        last_seen_at=worker.last_seen_at,
        notes=worker.notes,
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

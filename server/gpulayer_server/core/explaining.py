"""Who could take a task, and why one waits: computed when read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpulayer.protocol.types import Reason
from gpulayer_server.core.state import Task, Worker
from gpulayer_server.scheduling.match import Candidate, explain

if TYPE_CHECKING:
    from gpulayer_server.core.plane import Plane


def candidate(worker: Worker) -> Candidate:
    """A worker as the matcher sees it."""
    return Candidate(
        id=worker.id,
        name=worker.name,
        inventory=worker.inventory,
        slots=worker.slots,
        slots_free=worker.slots_free,
        devices_free=tuple(worker.free_devices()),
        reachable=worker.conn is not None,
    )


def known(plane: Plane, now: float) -> list[Candidate]:
    """The workers that could take work: connected, or gone for less than `lost_after_s`."""
    lost_after_s = plane.settings.lost_after_s
    return [
        candidate(worker)
        for worker in plane.workers.values()
        if worker.gone_since is None or now - worker.gone_since < lost_after_s
    ]


def why_waiting(plane: Plane, task: Task, now: float) -> tuple[Reason, ...]:
    """Why a queued task is not placed, worker by worker."""
    job = plane.jobs[task.job]
    session = plane.session_of.get(job.session_key) if job.session_key else None
    if session is None:
        return explain(job.spec.requirements, known(plane, now))
    worker = plane.workers[session.worker]
    if worker.conn is None:
        text = f"session {session.name!r} lives on {worker.name}, which is out of reach"
    elif session.closing:
        text = f"session {session.name!r} is ending on {worker.name}"
    else:
        running = plane.attempts.get(session.running or "")
        by = plane.tasks[running.task].job if running is not None and running.task in plane.tasks else "another cell"
        text = f"session {session.name!r} on {worker.name} is running {by}"
    return (Reason(worker=worker.name, code="session_busy", text=text, temporary=True),)

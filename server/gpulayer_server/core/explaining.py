"""Who could take a task, and why one waits: computed when read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpulayer.protocol.types import Reason
from gpulayer_server.core.state import Task, Worker
from gpulayer_server.scheduling.match import explain

if TYPE_CHECKING:
    from gpulayer_server.core.plane import Plane


def known(plane: Plane, now: float) -> list[Worker]:
    """The workers that could take work: connected, or gone for less than `lost_after_s`."""
    lost_after_s = plane.settings.lost_after_s
    return [
        worker
        for worker in plane.workers.values()
        if worker.gone_since is None or now - worker.gone_since < lost_after_s
    ]


def why_waiting(plane: Plane, task: Task, now: float) -> tuple[Reason, ...]:
    """Why a queued task is not placed, worker by worker."""
    job = plane.jobs[task.job]
    if job.waits_for:
        return tuple(
            Reason(worker="", code="after", text=f"waits until job {name} has succeeded", temporary=True)
            for name in job.spec.after
            if name in job.waits_for
        )
    session = plane.session_of.get(job.session_key) if job.session_key else None
    if session is None:
        there = known(plane, now)
        if not there and now < plane.local_expected_until:
            text = "a worker is being started on this machine"
            return (Reason(worker="", code="starting", text=text, temporary=True),)
        return explain(job.spec.requirements, there)
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

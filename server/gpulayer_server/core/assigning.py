"""A task that was placed: its attempt, its devices, and the session that it opens or goes into."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpulayer.protocol.messages import Assign
from gpulayer.protocol.types import Device, Reason, State
from gpulayer_server.core import waiting
from gpulayer_server.core.calls import leases
from gpulayer_server.core.ending import reject
from gpulayer_server.core.events import Effects
from gpulayer_server.core.state import Attempt, Job, Session, Task, Worker
from gpulayer_server.scheduling.match import unmet
from gpulayer_server.scheduling.room import Pick

if TYPE_CHECKING:
    from gpulayer_server.core.plane import Plane

NOBODY = "no eligible worker"  # the error of what was rejected


def assign(
    plane: Plane,
    job: Job,
    task: Task,
    worker: Worker,
    devices: tuple[Device, ...],
    session: Session | None,
    now: float,
    out: Effects,
    nodes: tuple[str, ...] = (),
) -> None:
    """Make the attempt of a task on the worker that was picked, and tell that worker."""
    plane.queue.remove(task.id)
    task.move(State.ASSIGNED)
    task.attempts += 1
    attempt = Attempt(
        id=plane.new_name(job.id),
        task=task.id,
        n=job.n,
        index=task.index,
        number=task.attempts,
        worker=worker.id,
        session=session.id if session else None,
        devices=devices,
        assigned_at=now,
    )
    task.attempt = attempt
    plane.attempts[attempt.id] = attempt
    if session is None:
        waiting.take(plane, worker, attempt.id, attempt.claim(job))
    else:
        session.running, session.idle_since = attempt.id, None
        ended = None if session.used else plane.ended_sessions.get(session.key)
        if ended is not None:
            task.notes = (f"session {session.name!r} had ended ({ended}): its state is fresh",)
    if job.pool is not None:
        leases.assigned(plane, job.pool, task, attempt, worker)
    out.put(task, attempt)
    out.changed.add(job.id)
    message = Assign(
        attempt=attempt.id,
        job=job.id,
        index=task.index,
        in_array=bool(job.spec.array),
        spec=job.travelling(),
        devices=devices,
        session=attempt.session,
        leased=job.spec.leased,
        nodes=nodes,
    )
    out.send(worker.conn, message)


# ---------------------------------------------------------------- sessions


def into_session(plane: Plane, job: Job, task: Task, session: Session, now: float, out: Effects) -> bool:
    """Place a cell into its session, which its first cell opened."""
    worker = plane.workers[session.worker]
    unfit = session_mismatch(job, session, worker)
    if unfit is not None:
        reject(plane, task, (unfit,), NOBODY, now, out)
        return True
    if session.closing or session.running is not None or worker.conn is None:
        return False
    assign(plane, job, task, worker, session.devices, session, now, out)
    return True


def session_mismatch(job: Job, session: Session, worker: Worker) -> Reason | None:
    """A session keeps the place that its first cell chose; a cell that asks for another is rejected."""
    wanted = job.spec.requirements
    reasons = unmet(wanted, worker)
    held = sum(1 for device in session.devices if device.kind == wanted.device_kind)
    if not reasons and held >= wanted.device_count:
        return None
    why = reasons[0].text if reasons else f"it holds {held} {wanted.device_kind} device(s)"
    text = f"session {session.name!r} lives on {worker.name}: {why}; release it first, or leave the option out"
    return Reason(worker=worker.name, code="session", text=text)


def open_session(plane: Plane, job: Job, pick: Pick[Worker], now: float, out: Effects) -> Session:
    """The session whose first cell this is, on the worker that was picked."""
    owner, name = job.session_key or ("", "")
    session = Session(
        id=plane.new_name("s"),
        name=name,
        owner=owner,
        worker=pick.worker.id,
        devices=pick.devices,
        opened_at=now,
        requirements=job.spec.requirements,
        idle_timeout_s=job.spec.cell.idle_timeout_s if job.spec.cell is not None else 0.0,
    )
    plane.sessions[session.id] = session
    plane.session_of[session.key] = session
    waiting.take(plane, pick.worker, session.id, session.claim())
    out.put(session)
    return session

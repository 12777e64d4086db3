"""Placement in three answers: placed, waiting, rejected at once."""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from typing import TYPE_CHECKING

from gpulayer.protocol.messages import Assign
from gpulayer.protocol.types import Device, Reason, Requirements, State
from gpulayer_server.core.ending import reject
from gpulayer_server.core.events import Effects
from gpulayer_server.core.explaining import known
from gpulayer_server.core.state import Attempt, Job, Session, Task, Worker
from gpulayer_server.scheduling.match import choose_devices, explain, roomiest, slotless, soonest, unmet
from gpulayer_server.scheduling.queue import Order

_NOBODY = "no eligible worker"

if TYPE_CHECKING:
    from gpulayer_server.core.plane import Plane


def place_waiting(plane: Plane, now: float, out: Effects) -> None:
    """Place what can be placed, the first in the queue first; reject what no worker could take.

    A class whose first task has to wait is out of this: what stands behind it has to wait, too.
    """
    queue = plane.queue
    if not queue:
        return
    heads = queue.heads()
    kept: set[str] = set()
    while heads:
        _, key = heapq.heappop(heads)
        order = _place_class(plane, key, heads[0][0] if heads else None, kept, now, out)
        if order is not None:
            heapq.heappush(heads, (order, key))


def _place_class(
    plane: Plane, key: Hashable, bound: Order | None, kept: set[str], now: float, out: Effects
) -> Order | None:
    """Place the tasks of one class that stand before `bound`; where the next one stands, None where it has to wait.

    `kept`: workers whose next slot is for one that stands before all these; where it has to wait, its own are added.
    """
    queue = plane.queue
    while (task_id := queue.head(key)) is not None:
        order = queue.order(key)
        if bound is not None and order is not None and order > bound:
            return order
        task = plane.tasks[task_id]
        job = plane.jobs[task.job]
        if job.session_key is not None:
            placed = _into_session(plane, job, task, now, out)
        else:
            placed = _fresh(plane, job, task, kept, now, out)
        if not placed:
            if job.session_key not in plane.session_of:
                kept.update(slotless(job.spec.requirements, plane.able(job.spec.requirements)))
            return None
    return None


def _fresh(plane: Plane, job: Job, task: Task, kept: set[str], now: float, out: Effects) -> bool:
    """Place or reject a task without a session; False: it waits."""
    requirements = job.spec.requirements
    able = plane.able(requirements)
    chosen = roomiest(requirements, able)
    if chosen is None and job.spec.command is not None and requirements.device_kind is None:
        chosen = soonest([worker for worker in able if worker.id not in kept] if kept else able)
    if chosen is None:
        return _reject_if_impossible(plane, job, task, now, out)
    _assign(plane, job, task, chosen, _devices(requirements, chosen), None, now, out)
    return True


def _devices(requirements: Requirements, worker: Worker) -> tuple[Device, ...]:
    return choose_devices(requirements, worker.devices_free) if requirements.device_kind else ()


def _into_session(plane: Plane, job: Job, task: Task, now: float, out: Effects) -> bool:
    """Place a cell into its session, which its first cell opens."""
    if job.session_key is None:
        raise RuntimeError(f"job {job.id} asks for no session")
    session = plane.session_of.get(job.session_key)
    if session is None:
        return _open_session(plane, job, task, now, out)
    worker = plane.workers[session.worker]
    unfit = session_mismatch(job, session, worker)
    if unfit is not None:
        reject(plane, task, (unfit,), _NOBODY, now, out)
        return True
    if session.closing or session.running is not None or worker.conn is None:
        return False
    _assign(plane, job, task, worker, session.devices, session, now, out)
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


def _open_session(plane: Plane, job: Job, task: Task, now: float, out: Effects) -> bool:
    requirements = job.spec.requirements
    chosen = roomiest(requirements, plane.able(requirements))
    if chosen is None:
        return _reject_if_impossible(plane, job, task, now, out)
    owner, name = job.session_key or ("", "")
    session = Session(
        id=plane.new_name("s"),
        name=name,
        owner=owner,
        worker=chosen.id,
        devices=_devices(requirements, chosen),
        opened_at=now,
        requirements=requirements,
        idle_timeout_s=job.spec.cell.idle_timeout_s if job.spec.cell is not None else 0.0,
    )
    plane.sessions[session.id] = session
    plane.session_of[session.key] = session
    chosen.take(session.id, session.claim())
    out.put(session)
    _assign(plane, job, task, chosen, session.devices, session, now, out)
    return True


def _assign(
    plane: Plane,
    job: Job,
    task: Task,
    worker: Worker,
    devices: tuple[Device, ...],
    session: Session | None,
    now: float,
    out: Effects,
) -> None:
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
        worker.take(attempt.id, attempt.claim(job))
    else:
        session.running, session.idle_since = attempt.id, None
        ended = None if session.used else plane.ended_sessions.get(session.key)
        if ended is not None:
            task.notes = (f"session {session.name!r} had ended ({ended}): its state is fresh",)
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
        leased=job.spec.retries > 0,
    )
    out.send(worker.conn, message)


def _reject_if_impossible(plane: Plane, job: Job, task: Task, now: float, out: Effects) -> bool:
    """Reject a task that no worker could take; False: it waits."""
    requirements = job.spec.requirements
    if plane.able(requirements) or now < plane.local_expected_until:
        return False
    candidates = known(plane, now)
    if any(not unmet(requirements, each) for each in candidates):
        return False
    reject(plane, task, explain(requirements, candidates), _NOBODY, now, out)
    return True

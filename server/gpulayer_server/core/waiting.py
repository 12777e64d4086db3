"""Who waits in which line, who holds what, and what the limits of owners say to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpulayer.protocol.types import Requirements
from gpulayer_server.core.calls import leases
from gpulayer_server.core.state import Claim, Job, Limits, Session, Task, Worker
from gpulayer_server.scheduling.fair import Use
from gpulayer_server.scheduling.wants import Line, Wants

if TYPE_CHECKING:
    from gpulayer_server.core.plane import Plane

_SPARE_LINES = 1024  # lines in which nobody waits, and that are kept all the same
_NOTHING = Use()


def enqueue(plane: Plane, task: Task) -> None:
    """Let a queued task wait for a place: among its owner's that ask for the same, or that are for the same session."""
    job = plane.jobs[task.job]
    if job.pool is not None and not leases.waits(plane, job.pool, task):
        return
    line = job.waits_in
    if line is None or line.gone:
        line = job.waits_in = _line(plane, job)
    plane.queue.add(line, task.id, (-job.spec.priority, job.n, task.index))
    plane.look_for_room = plane.queue_grew = True


def _line(plane: Plane, job: Job) -> Line:
    spec, session = job.spec, job.session_key
    wants = plane.room.wants(spec.requirements) if session is None else None
    key = (job.owner, wants if session is None else session[1], spec.wait_for_worker)
    line = plane.lines.get(key)
    if line is None:
        line = plane.lines[key] = Line(job.owner, wants=wants, session=session, patient=spec.wait_for_worker)
    return line


def forget_lines(plane: Plane) -> None:
    """Where too many are kept, drop those in which nobody waits."""
    queue = plane.queue
    if len(plane.lines) <= 2 * queue.classes() + _SPARE_LINES:
        return
    for line in plane.lines.values():
        line.gone = not queue.waits(line)
    plane.lines = {key: line for key, line in plane.lines.items() if not line.gone}
    plane.room.forget([line.wants for line in plane.lines.values() if line.wants is not None])


def wants_of(plane: Plane, line: Line) -> Wants[Worker] | None:
    """What the first task of a line asks for; None where it waits for a session that is there, or nobody waits."""
    if line.session is None:
        return line.wants
    task = plane.tasks.get(plane.queue.head(line) or "")
    if task is None or line.session in plane.session_of:
        return None
    return plane.room.wants(plane.jobs[task.job].spec.requirements)


def session_free(plane: Plane, session: Session) -> None:
    """A cell may run in a session now, or open it anew: look at those that wait for that."""
    for patient in (False, True):
        line = plane.lines.get((session.owner, session.name, patient))
        if line is not None and plane.queue.waits(line):
            plane.queue.fresh[line] = None
    plane.look_for_room = True


# ---------------------------------------------------------------- who holds what


def take(plane: Plane, worker: Worker, holder: str, claim: Claim) -> None:
    """Let an attempt or a session hold something of a worker."""
    worker.take(holder, claim)
    plane.usage.add(claim)
    plane.room.took(worker)


def free(plane: Plane, worker: Worker, holder: str) -> None:
    """What it held is free."""
    claim = worker.free(holder)
    if claim is None:
        return
    plane.usage.remove(claim)
    plane.room.touched(worker)
    plane.look_for_room = True
    if plane.limited:
        _look_again(plane, claim.owner)


def _look_again(plane: Plane, owner: str) -> None:
    """An owner may have more now: look at those of his lines that waited for that."""
    for line in plane.limited.pop(owner, ()):
        if plane.queue.waits(line):
            plane.queue.fresh[line] = None


def set_limits(plane: Plane, limits: dict[str, Limits]) -> None:
    """How much owners may hold from now on; who holds more keeps it."""
    plane.limits = limits
    for owner in list(plane.limited):
        _look_again(plane, owner)
    plane.look_for_room = True


def over_limit(plane: Plane, owner: str, wants: Wants[Any]) -> bool:
    """Whether an owner may not hold that much more."""
    limits = plane.limits.get(owner)
    if limits is None:
        return False
    use = plane.usage.of.get(owner, _NOTHING)
    running, devices = limits.max_running, limits.max_devices
    if running is not None and use.running + wants.nodes > running:
        return True
    return devices is not None and wants.count > 0 and use.devices + wants.nodes * wants.count > devices


def limited(plane: Plane, owner: str, requirements: Requirements) -> bool:
    """Whether an owner's job that asks for this has to wait until less of his runs."""
    return over_limit(plane, owner, plane.room.wants(requirements))

"""Submitting and cancelling."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpulayer.protocol.messages import CancelAttempt
from gpulayer.protocol.types import Outcome, Problem, State
from gpulayer_server.core import attempts, placing
from gpulayer_server.core.events import CancelWanted, Effects, Submitted
from gpulayer_server.core.state import Job, Task
from gpulayer_server.core.views import job_view

if TYPE_CHECKING:
    from gpulayer_server.core.plane import Plane

_ALPHABET = "abcdefghjkmnpqrstuvwxyz23456789"  # no letter that reads like a digit
_SPREAD = 514_229  # coprime to any power of 31, so that neighbours look unlike each other and none repeats


def job_name(n: int) -> str:
    """A short name for the `n`-th job, such as 'k3f9': one to one, four letters up to 923,521 jobs."""
    length = 4
    while n >= 31**length:
        length += 1
    value = n * _SPREAD % 31**length
    letters = ""
    for _ in range(length):
        value, digit = divmod(value, 31)
        letters += _ALPHABET[digit]
    return letters


def submit(plane: Plane, event: Submitted, now: float, out: Effects) -> None:
    """Take a new job, or find the one that this key made."""
    job = plane.job_of((event.owner, event.key))
    if job is not None:
        if job.payload_hash == event.payload_hash:
            out.replies.append((event.request, job_view(plane, job)))
        else:
            out.replies.append((event.request, key_conflict(event.key, job.id)))
        return
    plane.last_job_n += 1
    name = job_name(plane.last_job_n)
    job = Job(
        id=name,
        n=plane.last_job_n,
        owner=event.owner,
        key=event.key,
        payload_hash=event.payload_hash,
        spec=event.spec,
        submitted_at=now,
    )
    task = Task(id=f"{name}/0", job=name, index=0)
    job.tasks.append(task)
    plane.jobs[name] = job
    plane.tasks[task.id] = task
    plane.keys[(event.owner, event.key)] = name
    out.put(job, task)
    plane.enqueue(task)
    placing.place_class(plane, plane.queue_key(task), now, out)
    out.replies.append((event.request, job_view(plane, job)))
    out.changed.add(name)


def key_conflict(key: str, job: str) -> Problem:
    """The same idempotency key with another payload."""
    return Problem(
        status=409,
        code="key_conflict",
        title="this idempotency key was used for another job",
        detail=f"key {key!r} made job {job}; use a new key for a new job",
    )


def cancel(plane: Plane, event: CancelWanted, now: float, out: Effects) -> None:
    """Store the wish; end at once what waits, tell the worker of what runs."""
    job = plane.jobs.get(event.job)
    if job is None:
        problem = Problem(status=404, code="no_such_job", title=f"no live job {event.job}")
        out.replies.append((event.request, problem))
        return
    for task in job.tasks:
        _cancel_task(plane, task, event.give_up, now, out)
    out.changed.add(job.id)
    out.replies.append((event.request, job_view(plane, job)))
    plane.place_all(now, out)


def _cancel_task(plane: Plane, task: Task, give_up: bool, now: float, out: Effects) -> None:
    if task.terminal:
        return
    if not task.cancel_wanted:
        task.cancel_wanted = True
        out.put(task)
    if task.state is State.QUEUED:
        plane.queue.remove(task.id)
        attempts.end_task(task, State.CANCELLED, Outcome(state=State.CANCELLED), now, out)
    elif give_up and task.state is State.UNREACHABLE:
        attempts.lose(plane, task, "given up while its machine was out of reach", now, out, retry=False)
    elif task.attempt is not None:
        worker = plane.workers[task.attempt.worker]
        out.send(worker.conn, CancelAttempt(attempt=task.attempt.id, grace_s=plane.settings.cancel_grace_s))

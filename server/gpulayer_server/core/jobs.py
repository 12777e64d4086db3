"""Submitting and cancelling."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpulayer.protocol.types import Outcome, Problem, State
from gpulayer_server.core import attempts
from gpulayer_server.core.calls.ending import cancel_all
from gpulayer_server.core.ending import cancel_attempt, end_task, heard, wait_for
from gpulayer_server.core.events import CancelWanted, Effects, Submission, Submitted, SubmittedBatch
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
    """Take a new job, or find the one that its key made."""
    found = _found_or_problem(plane, event.owner, event.submission, event.ended)
    if isinstance(found, Problem):
        out.replies.append((event.request, found))
        return
    job = found or _take(plane, event.owner, event.submission, event.ended, now, out)
    plane.place_waiting(now, out)
    out.replies.append((event.request, job_view(plane, job)))


def submit_batch(plane: Plane, event: SubmittedBatch, now: float, out: Effects) -> None:
    """Take many new jobs, or none of them; the answer is their names, in order."""
    made: dict[str, str] = {}
    for submission in event.submissions:
        found = _found_or_problem(plane, event.owner, submission, event.ended)
        if found is None and made.setdefault(submission.key, submission.payload_hash) != submission.payload_hash:
            found = key_conflict(submission.key, "earlier in this batch")
        if isinstance(found, Problem):
            out.replies.append((event.request, found))
            return
    names: list[str] = []
    for submission in event.submissions:
        job = plane.job_of((event.owner, submission.key))
        names.append((job or _take(plane, event.owner, submission, event.ended, now, out)).id)
    out.replies.append((event.request, tuple(names)))


def _found_or_problem(
    plane: Plane, owner: str, submission: Submission, ended: dict[str, State]
) -> Job | Problem | None:
    """The job that this key made already, or why there can be none; None where a new one is to be made."""
    job = plane.job_of((owner, submission.key))
    if job is not None:
        return job if job.payload_hash == submission.payload_hash else key_conflict(submission.key, job.id)
    for name in submission.spec.after:
        if name not in ended and plane.state_of(name) is None:
            title = f"no job {name}, after which it is to run"
            return Problem(status=404, code="no_such_job", title=title)
    return None


def _take(plane: Plane, owner: str, submission: Submission, ended: dict[str, State], now: float, out: Effects) -> Job:
    plane.last_job_n += 1
    spec = submission.spec
    job = Job(
        id=job_name(plane.last_job_n),
        n=plane.last_job_n,
        owner=owner,
        key=submission.key,
        payload_hash=submission.payload_hash,
        spec=spec,
        submitted_at=now,
    )
    name, n = job.id, job.n
    job.tasks = [Task(id=f"{name}/{index}", job=name, n=n, index=index) for index in spec.indices]
    plane.keys[(owner, submission.key)] = job.id
    plane.add(job)
    out.put(job, *job.tasks)
    out.changed.add(job.id)
    in_vain = wait_for(plane, job, ended) if spec.after else []
    if in_vain:
        heard(plane, job, in_vain[0], ended.get(in_vain[0]) or plane.state_of(in_vain[0]), now, out)
    elif not job.waits_for:
        for task in job.tasks:
            plane.enqueue(task)
    return job


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
    if job.pool is not None:
        cancel_all(plane, job.pool, now, out)
    plane.queue.remove_all([task.id for task in job.tasks])
    for task in job.tasks:
        if not task.terminal and not task.cancel_wanted:
            task.cancel_wanted = True
            out.put(task)
    for task in job.tasks:
        _cancel_task(plane, job, task, event.give_up, now, out)
    out.changed.add(job.id)
    out.replies.append((event.request, job_view(plane, job)))
    plane.place_waiting(now, out)


def _cancel_task(plane: Plane, job: Job, task: Task, give_up: bool, now: float, out: Effects) -> None:
    if task.terminal:
        return
    if task.state is State.QUEUED:
        end_task(plane, task, State.CANCELLED, Outcome(state=State.CANCELLED), now, out)
    elif give_up and task.state is State.UNREACHABLE:
        attempts.lose(plane, task, "given up while its machine was out of reach", now, out, retry=False)
    elif task.attempt is not None:
        cancel_attempt(plane, job, task, out)

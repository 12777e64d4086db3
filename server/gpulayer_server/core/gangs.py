"""Jobs that take many machines at once: all of their tasks run, or none does.

How one that ends takes the others with it stands in `ending`. Here: one that could not begin. As long as none of the
others has begun, all of them are taken back, and wait for a place together; what a worker has counts as taken back
when the worker says that it never began. All that is needed for that is in the tasks' rows: a gang of which some wait
while others are with workers is one that is being taken back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpulayer.protocol.types import Outcome, State
from gpulayer_server.core.ending import cancel_attempt, end_task
from gpulayer_server.core.events import Effects
from gpulayer_server.core.state import Job, Task

if TYPE_CHECKING:
    from gpulayer_server.core.plane import Plane


def being_taken_back(job: Job) -> bool:
    """Whether some of a gang wait, and the others are to join them."""
    if not job.spec.gang or job.waits_for:
        return False
    waiting = sum(task.state is State.QUEUED for task in job.tasks)
    return 0 < waiting < len(job.tasks)


def given_back(plane: Plane, task: Task, reason: str, now: float, out: Effects) -> None:
    """A task of a gang never began, and waits again: with all the others, or it fails where one has begun."""
    job = plane.jobs[task.job]
    if task.state is State.RUNNING:  # its worker came back with it
        task.move(State.UNREACHABLE)
    if task.state is State.UNREACHABLE:
        task.move(State.LOST)
    begun = next((other for other in job.tasks if other is not task and _has_begun(other)), None)
    if begun is not None:
        text = f"it could not begin ({reason}), and node {begun.index} had begun already"
        end_task(plane, task, State.FAILED, Outcome(state=State.FAILED, problem=text), now, out)
        return
    task.move(State.QUEUED)
    out.put(task)
    out.changed.add(job.id)
    if _together(job):
        for each in job.tasks:
            plane.enqueue(each)
    else:
        take_back(plane, job, out)


def take_back(plane: Plane, job: Job, out: Effects) -> None:
    """Ask the workers for what they have of a gang; said again it changes nothing."""
    for task in job.tasks:
        if task.live and not task.cancel_wanted:
            cancel_attempt(plane, job, task, out)


def never_began(job: Job, task: Task, outcome: Outcome, *, began: bool) -> bool:
    """Whether an end only says that a task that is being taken back never began."""
    if not job.spec.gang or began or outcome.state is not State.CANCELLED or task.cancel_wanted:
        return False
    attempt = task.attempt
    return attempt is not None and attempt.started_at is None and being_taken_back(job)


def _together(job: Job) -> bool:
    return all(task.state is State.QUEUED for task in job.tasks)


def _has_begun(task: Task) -> bool:
    return task.terminal or (task.live and task.attempt is not None and task.attempt.started_at is not None)

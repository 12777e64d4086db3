"""How tasks and jobs end, and what becomes of the jobs that were to run after them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from gpulayer.protocol.types import TERMINAL, Outcome, Reason, State
from gpulayer_server.core.events import Effects
from gpulayer_server.core.state import Job, JobEnd, Task

if TYPE_CHECKING:
    from gpulayer_server.core.plane import Plane


def end_task(plane: Plane, task: Task, state: State, outcome: Outcome, now: float, out: Effects) -> None:
    """Move a task to a terminal state; with the last one of its tasks the job has ended."""
    task.move(state)
    task.outcome = outcome
    task.ended_at = now
    out.put(task)
    out.changed.add(task.job)
    if task.done:
        plane.done_with(task)
    job = plane.jobs[task.job]
    if job.over:
        _job_over(plane, job, now, out)


def reject(plane: Plane, task: Task, reasons: tuple[Reason, ...], problem: str, now: float, out: Effects) -> None:
    """End a task that waits and will never run."""
    plane.queue.remove(task.id)
    task.reasons = reasons
    end_task(plane, task, State.REJECTED, Outcome(state=State.REJECTED, problem=problem), now, out)


def _job_over(plane: Plane, job: Job, now: float, out: Effects) -> None:
    """All of its tasks have ended: those that wait for it run, or never will."""
    job.state, job.ended_at = job.whole, now
    plane.ended += 1
    out.put(JobEnd(id=job.id, n=job.n, state=job.state, ended_at=now))
    plane.unheard += [(name, job.id) for name in plane.awaited.pop(job.id, ())]


def wait_for(plane: Plane, job: Job, ended: Mapping[str, State]) -> list[str]:
    """Let a job wait for those that it is to run after; those of them that will not succeed any more.

    `ended`: how those ended that do not live here.
    """
    in_vain: list[str] = []
    for name in dict.fromkeys(job.spec.after):
        state = plane.state_of(name) or ended.get(name)
        if state is State.SUCCEEDED:
            continue
        job.waits_for.add(name)
        if state is None or state in TERMINAL:
            in_vain.append(name)
        else:
            plane.awaited.setdefault(name, []).append(job.id)
    return in_vain


def heard(plane: Plane, job: Job, of: str, state: State | None, now: float, out: Effects) -> None:
    """A job that another one waits for has ended; `state` None: it is not there any more."""
    if state is State.SUCCEEDED:
        job.waits_for.discard(of)
        if not job.waits_for:
            for task in job.tasks:
                if task.state is State.QUEUED:
                    plane.enqueue(task)
            out.changed.add(job.id)
        return
    how = "is not there any more" if state is None else f"ended as {state.value}"
    reason = Reason(worker="", code="after", text=f"it was to run after {of} had succeeded, which {how}")
    for task in job.tasks:
        if task.state is State.QUEUED:
            reject(plane, task, (reason,), f"job {of}, which had to succeed first, {how}", now, out)

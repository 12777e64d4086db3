"""How tasks and jobs end, and what becomes of those that depend on it: of the others of a gang, of jobs after it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

from gpulayer.protocol.messages import CancelAttempt
from gpulayer.protocol.types import TERMINAL, Outcome, Reason, State
from gpulayer_server.core.calls import ending as calls_ending
from gpulayer_server.core.calls import leases
from gpulayer_server.core.events import Effects
from gpulayer_server.core.state import Job, JobEnd, Task

if TYPE_CHECKING:
    from gpulayer_server.core.plane import Plane


def end_task(plane: Plane, task: Task, state: State, outcome: Outcome, now: float, out: Effects) -> None:
    """Move a task to a terminal state; with the last one of its tasks the job has ended.

    One of a gang that does not succeed ends the others.
    """
    job = plane.jobs[task.job]
    if job.pool is not None:
        leases.ends(plane, job.pool, task, state, outcome, now, out)
    task.move(state)
    task.outcome = _with_cause(task, outcome) if job.spec.gang else outcome
    task.ended_at = now
    out.put(task)
    out.changed.add(task.job)
    if task.done:
        plane.done_with(task)
    if job.over:
        _job_over(plane, job, now, out)
    elif job.spec.gang and (state is not State.SUCCEEDED or _some_wait(job)):
        _end_others(plane, job, task, now, out)


def _with_cause(task: Task, outcome: Outcome) -> Outcome:
    """One that was cancelled because of another says so."""
    if outcome.state is not State.CANCELLED or outcome.problem or not task.notes:
        return outcome
    return replace(outcome, problem=task.notes[-1])


def reject(plane: Plane, task: Task, reasons: tuple[Reason, ...], problem: str, now: float, out: Effects) -> None:
    """End a task that waits and will never run; one of a gang takes the others with it."""
    plane.queue.remove(task.id)
    task.reasons = reasons
    end_task(plane, task, State.REJECTED, Outcome(state=State.REJECTED, problem=problem), now, out)


def _job_over(plane: Plane, job: Job, now: float, out: Effects) -> None:
    """All of its tasks have ended: those that wait for it run, or never will."""
    job.state, job.ended_at = job.whole, now
    plane.ended += 1
    out.put(JobEnd(id=job.id, n=job.n, state=job.state, ended_at=now))
    plane.unheard += [(name, job.id) for name in plane.awaited.pop(job.id, ())]
    if job.pool is not None:
        calls_ending.pool_over(plane, job.pool, now, out)


# ---------------------------------------------------------------- gangs


def _end_others(plane: Plane, job: Job, ended: Task, now: float, out: Effects) -> None:
    """What waits ends as the one that ended did; what a worker has is cancelled, and that it is, and why, is stored."""
    others = [task for task in job.tasks if not task.terminal and not task.cancel_wanted]
    cause = _cause(plane, ended)
    for task in [other for other in others if other.live]:
        task.cancel_wanted = True
        task.notes = (*task.notes, cause)
        out.put(task)
        cancel_attempt(plane, job, task, out)
    for task in others:
        if task.state is State.QUEUED:  # looked at late: each that ends here ends the others, too
            _end_waiting(plane, task, ended, cause, now, out)


def _some_wait(job: Job) -> bool:
    """Whether some of a gang wait while another has ended: those were being taken back, since one could not begin."""
    return any(task.state is State.QUEUED for task in job.tasks)


def _end_waiting(plane: Plane, task: Task, ended: Task, cause: str, now: float, out: Effects) -> None:
    plane.queue.remove(task.id)
    if ended.state is State.REJECTED:
        problem = ended.outcome.problem if ended.outcome is not None else ""
        reject(plane, task, ended.reasons, problem, now, out)
    else:
        state = State.CANCELLED if ended.state is State.CANCELLED and ended.cancel_wanted else State.FAILED
        end_task(plane, task, state, Outcome(state=state, problem=cause), now, out)


def _cause(plane: Plane, ended: Task) -> str:
    """Why the others of a gang end, such as 'node 1 (gpu-box-2) failed: exit code 3'."""
    worker = plane.workers.get(ended.attempt.worker) if ended.attempt is not None else None
    where = f" ({worker.name})" if worker is not None else ""
    unwanted = ended.state in (State.SUCCEEDED, State.CANCELLED) and not ended.cancel_wanted
    if unwanted and _some_wait(plane.jobs[ended.job]):
        return f"node {ended.index}{where} had run before all the others could begin"
    why = _why(ended.outcome) if ended.outcome is not None else ""
    return f"node {ended.index}{where} {_HOW.get(ended.state, ended.state.value)}{why and ': '}{why}"


_HOW = {State.FAILED: "failed", State.CANCELLED: "was cancelled", State.REJECTED: "was rejected"}


def _why(outcome: Outcome) -> str:
    if outcome.problem or outcome.error:
        return outcome.problem or outcome.error
    if outcome.signal is not None:
        return f"signal {outcome.signal}"
    return f"exit code {outcome.exit_code}" if outcome.exit_code else ""


def cancel_attempt(plane: Plane, job: Job, task: Task, out: Effects) -> None:
    """Tell the worker of a task that its attempt is to end; one that is out of reach hears of it when it is back."""
    if task.attempt is not None:
        worker = plane.workers[task.attempt.worker]
        out.send(worker.conn, CancelAttempt(attempt=task.attempt.id, grace_s=job.spec.grace_s))


# ---------------------------------------------------------------- jobs after others


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

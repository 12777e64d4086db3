"""Whether a plane is sound in itself, and whether two planes know the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from gpulayer.protocol.types import State
from gpulayer_server.core.plane import Plane
from gpulayer_server.core.state import Attempt, Job, Session, Task, Worker
from tests.simulation.comparingcalls import known_of_calls, unfounded_calls

_AHEAD = 64  # at most so many may wait on a worker


def unfounded(plane: Plane) -> str:
    """The first thing in a plane that has no ground; '' when it is sound."""
    for problem in (
        *_queue(plane),
        *_jobs(plane),
        *_tasks(plane),
        *_workers(plane),
        *_sessions(plane),
        *_attempts(plane),
        *unfounded_calls(plane),
    ):
        return problem
    return ""


def _jobs(plane: Plane) -> Iterator[str]:
    for job in plane.jobs.values():
        if all(task.done for task in job.tasks):
            yield f"the plane remembers job {job.id}, which is done"
        if job.undone != sum(not task.done for task in job.tasks):
            yield f"job {job.id} counts {job.undone} tasks that are not done: {job.tasks}"
        if job.many and {state: n for state, n in job.tally.items() if n} != Counter(t.state for t in job.tasks):
            yield f"job {job.id} counts {job.tally}: {job.tasks}"
        if any((task.id in plane.tasks) == task.done for task in job.tasks):
            yield f"job {job.id}: the plane remembers other tasks than those that are not done"
        if job.over != (job.state is not None):
            yield f"job {job.id} has ended as {job.state}: {job.tasks}"
        if job.waits_for and any(task.state is not State.QUEUED and not task.terminal for task in job.tasks):
            yield f"job {job.id} waits for {job.waits_for}, and runs"
        if job.spec.gang:
            yield from _gang(plane, job)


def _gang(plane: Plane, job: Job) -> Iterator[str]:
    """All of it goes on, or all of it ends."""
    ended = [task for task in job.tasks if task.terminal and task.state is not State.SUCCEEDED]
    live = [task for task in job.tasks if not task.terminal]
    if ended and any(task.state is State.QUEUED or not task.cancel_wanted for task in live):
        yield f"job {job.id}: {ended[0].id} ended as {ended[0].state.value}, others go on: {live}"
    waiting = [task for task in job.tasks if task.state is State.QUEUED]
    if waiting and any(task.terminal for task in job.tasks):
        yield f"job {job.id} waits in part, though some of it has ended: {job.tasks}"
    queued = [task for task in waiting if task.id in plane.queue]
    if queued and len(queued) < len(job.tasks):
        yield f"job {job.id} stands in the queue with {len(queued)} of {len(job.tasks)} tasks"
    workers = [task.attempt.worker for task in job.tasks if task.live and task.attempt is not None]
    if len(set(workers)) < len(workers):
        yield f"job {job.id} has two tasks on one machine: {workers}"


def _tasks(plane: Plane) -> Iterator[str]:
    for task in plane.tasks.values():
        waits = plane.jobs[task.job].waits_for
        held_back = waits or _taken_back(plane.jobs[task.job]) or _not_yet(plane.jobs[task.job], task)
        if (task.state is State.QUEUED and not held_back) != (task.id in plane.queue):
            yield f"task {task.id} is {task.state.value}, in the queue: {task.id in plane.queue}"
        attempt = task.attempt
        if task.live and (attempt is None or attempt.over or plane.attempts.get(attempt.id) is not attempt):
            yield f"task {task.id} is {task.state.value} with {attempt}"
        if task.state is State.QUEUED and attempt is not None and not attempt.over:
            yield f"task {task.id} is queued with {attempt}"
        if (task.state is State.SUCCEEDED) and (attempt is None or attempt.end_offset is None):
            yield f"task {task.id} succeeded without an end of its stream"


def _taken_back(job: Job) -> bool:
    """Whether a gang waits for those of its tasks that workers have: one of it could not begin."""
    return job.spec.gang and any(task.state is not State.QUEUED for task in job.tasks)


def _not_yet(job: Job, task: Task) -> bool:
    """Whether a runner is to be had a while after another one could not be."""
    return job.pool is not None and task.id in job.pool.later


def _queue(plane: Plane) -> Iterator[str]:
    for name in plane.queue:
        if name not in plane.tasks:
            yield f"{name} waits, and is no task"
            return
    for key in plane.queue.each():
        order = [_order(plane, task) for task in plane.queue.members(key)]
        if order != sorted(order):
            yield f"class {key} waits in the order {order}"


def _order(plane: Plane, name: str) -> tuple[int, int, int]:
    task = plane.tasks[name]
    job = plane.jobs[task.job]
    return (-job.spec.priority, job.n, task.index)


def _workers(plane: Plane) -> Iterator[str]:
    for conn, worker in plane.by_conn.items():
        if worker.conn != conn:
            yield f"connection {conn} counts as that of {worker.name}, whose is {worker.conn}"
    for worker in plane.workers.values():
        firm = [name for name in worker.claims if not _may_wait(plane, name)]
        if len(firm) > worker.slots or len(worker.claims) > worker.slots + _AHEAD:
            yield f"worker {worker.name} has {worker.slots} slots and is held by {worker.claims}"
        if _overfull(worker):
            yield f"worker {worker.name} has not what is held of it: {worker.inventory}, {worker.claims}"
        expected = {a.id for a in plane.attempts.values() if a.worker == worker.id and a.holds_slot}
        expected |= {s.id for s in plane.sessions.values() if s.worker == worker.id}
        if expected != set(worker.claims):
            yield f"worker {worker.name} is held by {set(worker.claims)}, should be by {expected}"
        if (worker.conn is None) != (worker.gone_since is not None):
            yield f"worker {worker.name}: connection {worker.conn}, gone since {worker.gone_since}"
        if worker.conn is not None and plane.by_conn.get(worker.conn) is not worker:
            yield f"worker {worker.name}: connection {worker.conn} is another's"


def _overfull(worker: Worker) -> bool:
    """Whether more is held of devices, memory or cores than there is."""
    whole: list[str] = []
    shares: Counter[str] = Counter()
    for claim in worker.claims.values():
        for device in claim.devices:
            if claim.vram_share_bytes is None:
                whole.append(device.uuid)
            else:
                shares[device.uuid] += claim.vram_share_bytes
    memory = {device.uuid: device.vram_bytes or 0 for device in worker.inventory.devices}
    claims = worker.claims.values()
    return (
        len({*whole, *shares}) < len(whole) + len(shares)
        or any(size > memory.get(uuid, size) for uuid, size in shares.items())
        or sum(claim.ram_bytes for claim in claims) > worker.inventory.ram_bytes
        or sum(claim.cpu_cores for claim in claims) > worker.inventory.cpu_cores + 1e-6
    )


def _may_wait(plane: Plane, holder: str) -> bool:
    """Whether it may be assigned before there is a slot for it: a command without devices."""
    attempt = plane.attempts.get(holder)
    task = plane.tasks.get(attempt.task) if attempt is not None else None
    if attempt is None or task is None:
        return attempt is not None and not attempt.devices  # its job is history: only its end is waited for
    return plane.jobs[task.job].spec.command is not None and not attempt.devices


def _sessions(plane: Plane) -> Iterator[str]:
    for session in plane.sessions.values():
        if plane.session_of.get(session.key) is not session:
            yield f"session {session.id} is not the one that its name finds"
        if (session.running is None) == (session.idle_since is None):
            yield f"session {session.id} runs {session.running} and is idle since {session.idle_since}"
        idle_s = plane.last_tick - (session.idle_since or plane.last_tick)
        if idle_s > session.idle_timeout_s + 1.0 and not session.closing:
            yield f"session {session.id} is idle for {idle_s} s, and stays"
        if session.running is not None and session.running not in plane.attempts:
            yield f"session {session.id} runs {session.running}, which is not there"


def _attempts(plane: Plane) -> Iterator[str]:
    for attempt in plane.attempts.values():
        if attempt.released or (not attempt.over and attempt.task not in plane.tasks):
            yield f"the plane remembers {attempt}"
        if not attempt.over and plane.tasks[attempt.task].attempt is not attempt:
            yield f"{attempt} is not its task's"


def differences(one: Plane, other: Plane) -> str:
    """The first thing that two planes know differently; '' where they agree."""
    first, second = _known(one), _known(other)
    for name in sorted(first.keys() | second.keys()):
        if first.get(name) != second.get(name):
            return f"{name}: {first.get(name)} != {second.get(name)}"
    return ""


def _known(plane: Plane) -> dict[str, Any]:
    """What a plane knows, without what ends with its process."""
    later = [name for pool in plane.calls.by_job.values() for name in pool.later]  # that is not stored
    queue = sorted([*plane.queue, *later], key=lambda name: _order(plane, name))
    known: dict[str, Any] = {"last job": plane.last_job_n, "queue": queue, **known_of_calls(plane)}
    known["ended"], known["named"] = plane.ended, plane.named
    known["keys"] = {key: name for key, name in plane.keys.items() if name not in plane.done}
    known["ended sessions"] = dict(plane.ended_sessions)
    for job in plane.jobs.values():
        known[f"job {job.id}"] = _job(job)
    for attempt in plane.attempts.values():
        known[f"attempt {attempt.id}"] = _attempt(attempt)
    for session in plane.sessions.values():
        known[f"session {session.id}"] = _session(session)
    for worker in plane.workers.values():
        known[f"worker {worker.id}"] = _worker(worker)
    return known


def _job(job: Job) -> tuple[Any, ...]:
    tasks = [
        (
            *(task.id, task.state, task.cancel_wanted, task.attempt.id if task.attempt else None, task.attempts),
            *(task.lost, task.reasons, task.outcome, task.ended_at, task.notes),
        )
        for task in job.tasks
    ]
    return (job.n, job.owner, job.key, job.payload_hash, job.spec, job.submitted_at, job.state, job.waits_for, tasks)


def _attempt(attempt: Attempt) -> tuple[Any, ...]:
    head = (
        attempt.task,
        attempt.n,
        attempt.index,
        attempt.problem,
        attempt.number,
        attempt.worker,
        attempt.session,
        attempt.devices,
    )
    times = (attempt.assigned_at, attempt.started_at, attempt.ended_at)
    return (*head, *times, attempt.end_offset, attempt.over, attempt.released)


def _session(session: Session) -> tuple[Any, ...]:
    head = (session.name, session.owner, session.worker, session.devices, session.opened_at, session.idle_timeout_s)
    return (*head, session.requirements, session.running, session.used, session.closing, session.closed, session.reason)


def _worker(worker: Worker) -> tuple[Any, ...]:
    return (worker.name, worker.slots, worker.local, worker.inventory, worker.claims)

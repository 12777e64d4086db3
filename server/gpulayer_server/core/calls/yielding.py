"""Runners make room: those that have nothing to do for anybody who waits, those that are busy for who goes before."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from gpulayer_server.core import waiting
from gpulayer_server.core.calls import leases
from gpulayer_server.core.calls.pool import Lease, Pool
from gpulayer_server.core.events import Effects
from gpulayer_server.core.state import Job, Worker
from gpulayer_server.scheduling import match
from gpulayer_server.scheduling.fair import DEVICE_WEIGHT
from gpulayer_server.scheduling.wants import Line, Wants

if TYPE_CHECKING:
    from gpulayer_server.core.plane import Plane

_AFTER_S = 2.0  # who waits for less makes no busy runner end, and none gives up two in that time


def look(plane: Plane, now: float, out: Effects, *, tick: bool) -> None:
    """Somebody waits, perhaps for what runners hold."""
    calls = plane.calls
    for task in [task for task in calls.asked if task not in plane.queue]:
        del calls.asked[task]
    idle = [lease for pool in calls.by_job.values() for lease in pool.idle]
    if idle:
        _idle_ones(plane, sorted(idle, key=_idle_longest), now, out)
    if tick:
        _busy_ones(plane, now, out)


def _idle_longest(lease: Lease) -> tuple[float, str]:
    return (lease.idle_since or 0.0, lease.attempt.id)


def _asked(plane: Plane, task: str) -> bool:
    """Whether runners are ending for this one still."""
    ending = [name for name in plane.calls.asked.get(task, ()) if name in plane.attempts]
    return bool(ending)


# ---------------------------------------------------------------- idle


def _idle_ones(plane: Plane, idle: list[Lease], now: float, out: Effects) -> None:
    for line in list(plane.queue.each()):
        wants = waiting.wants_of(plane, line)
        if wants is None:
            continue
        for task in plane.queue.first_few(line, len(idle) + len(plane.calls.asked)):
            if _asked(plane, task):
                continue
            pool = plane.jobs[plane.tasks[task].job].pool
            chosen = _which(plane, line, wants, [lease for lease in idle if lease.pool is not pool])
            if not chosen:
                break
            plane.calls.asked[task] = [lease.attempt.id for lease in chosen]
            for lease in chosen:
                leases.end_runner(lease, now, out)
                idle.remove(lease)
            if not idle:
                return


def _which(plane: Plane, line: Line, wants: Wants[Worker], idle: list[Lease]) -> list[Lease]:
    """Idle runners without which there is room; none where that would not make any."""
    if waiting.over_limit(plane, line.owner, wants):
        return [lease for lease in idle if lease.pool.job.owner == line.owner][: wants.nodes]
    found: list[Lease] = []
    by_worker: dict[str, list[Lease]] = {}
    for lease in idle:
        by_worker.setdefault(lease.worker.id, []).append(lease)
    nodes = 0
    for on_one in by_worker.values():
        chosen = _on(plane, wants, on_one[0].worker, on_one)
        found += chosen
        nodes += bool(chosen)
        if nodes == wants.nodes:
            break
    return found


def _on(plane: Plane, wants: Wants[Worker], worker: Worker, some: Iterable[Lease]) -> list[Lease]:
    """Of some runners of a worker the first ones, as many as make room there."""
    if worker.conn is None or worker.full or not plane.room.fits(wants, worker):
        return []
    chosen: list[Lease] = []
    for lease in some:
        chosen.append(lease)
        if match.has_room(wants.requirements, worker.without([each.attempt.id for each in chosen])):
            return chosen
    return []


# ---------------------------------------------------------------- busy


def _busy_ones(plane: Plane, now: float, out: Effects) -> None:
    calls = plane.calls
    pools = [pool for pool in calls.by_job.values() if len(pool.usable) > 1]
    if not pools:
        calls.waits.clear()
        return
    heads = {task: line for line in plane.queue.each() if (task := plane.queue.head(line)) is not None}
    calls.waits = {task: calls.waits.get(task, now) for task in heads}
    for task, line in heads.items():
        wants = waiting.wants_of(plane, line)
        if wants is None or now - calls.waits[task] < _AFTER_S or _asked(plane, task):
            continue
        if waiting.over_limit(plane, line.owner, wants):
            continue
        job = plane.jobs[plane.tasks[task].job]
        for pool in pools:
            if _make_room(plane, pool, job, task, wants, now, out):
                break


def _make_room(plane: Plane, pool: Pool, job: Job, task: str, wants: Wants[Worker], now: float, out: Effects) -> bool:
    """End a busy runner of a pool for a task that goes before it; False where none would make room for it."""
    if len(pool.usable) < 2 or now - pool.yielded_at < _AFTER_S or not _goes_before(plane, job, pool):
        return False
    for lease in reversed(list(pool.usable)):
        if lease.ready and _on(plane, wants, lease.worker, [lease]):
            pool.yielded_at = now
            plane.calls.asked[task] = [lease.attempt.id]
            leases.end_runner(lease, now, out)
            plane.calls.touch(pool)
            return True
    return False


def _goes_before(plane: Plane, job: Job, pool: Pool) -> bool:
    """Whether a job is placed before the runners of a pool, and still would be with one of them less."""
    mine, theirs = pool.job, job
    if theirs.spec.priority != mine.spec.priority:
        return theirs.spec.priority > mine.spec.priority
    if theirs.owner == mine.owner:
        return theirs.n < mine.n
    each = 1 + DEVICE_WEIGHT * mine.spec.requirements.device_count
    weight = plane.usage.weight
    return weight(mine.owner) - each >= weight(theirs.owner) + each

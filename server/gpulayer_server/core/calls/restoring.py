"""Pools and maps from the store's rows. What runners have is known once their workers say it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpulayer.protocol.types import State
from gpulayer_server.core.calls import leases
from gpulayer_server.core.calls.pool import LET_GO, LiveMap, Pool
from gpulayer_server.core.state import Job, Snapshot

if TYPE_CHECKING:
    from gpulayer_server.core.plane import Plane


def restore(plane: Plane, snapshot: Snapshot) -> None:
    """The pools of the jobs that live, with their maps."""
    calls = plane.calls
    maps: dict[int, list[LiveMap]] = {}
    for job in plane.jobs.values():
        if job.spec.calls is not None and not job.over:
            _pool(plane, job, snapshot.last_map_k.get(job.n, 0))
    for row in snapshot.maps:
        pool = calls.by_job.get(row.job)
        if pool is None:
            continue
        of = LiveMap(row=row, pool=pool)
        maps.setdefault(row.n, []).append(of)
        for first, count in row.ranges:
            of.done.add(first, first + count)
        row.done = of.done.count
        row.ranges = []
        for first, end in of.done.missing(0, row.taken):
            of.wait(first, end)
        pool.maps[row.k] = calls.maps[row.id] = of
        if row.total is None or row.taken < row.total:
            calls.incomplete[row.id] = of
        calls.keys[(row.owner, row.key)] = row.id
        pool.last_k = max(pool.last_k, row.k)
        pool.calls += row.taken
        pool.done += row.done
        pool.failed += row.failed
        pool.opened = pool.last_k


def _pool(plane: Plane, job: Job, last_k: int) -> None:
    key = (job.owner, job.payload_hash)
    pool = job.pool = Pool(job=job, key=key, last_k=last_k, opened=last_k)
    plane.calls.by_job[job.id] = pool
    live = [task for task in job.tasks if not task.terminal]
    ends = any(task.cancel_wanted or LET_GO in task.notes for task in live)
    pool.closing = ends or not live
    if not pool.closing and (not pool.stateful or len(job.tasks) == len(live)):
        plane.calls.pools[key] = pool
    for task in live:
        attempt = task.attempt
        if attempt is None or attempt.over:
            continue
        lease = leases.take_up(plane, pool, task, attempt, plane.workers[attempt.worker])
        if attempt.started_at is not None:
            pool.unheard.add(attempt.id)
        if task.state is State.UNREACHABLE:
            leases.out_of_reach(plane, attempt)
        lease.heard_at = plane.started_at
    plane.calls.touch(pool)

"""Whether what a plane knows of calls is sound in itself, and what another plane must know as well."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from gpulayer_server.core.calls.pool import LiveMap, Pool
from gpulayer_server.core.plane import Plane
from gpulayer_worker.linkcore import Link
from tests.simulation.simulator import Violation


def unfounded_calls(plane: Plane) -> Iterator[str]:
    """What has no ground."""
    calls = plane.calls
    for name, job in plane.jobs.items():
        if job.state is None and (job.spec.calls is not None) != (job.pool is not None):
            yield f"job {name} has pool {job.pool}"
    for name, pool in calls.by_job.items():
        if plane.jobs.get(name) is not pool.job:
            yield f"there is a pool of job {name}, which is not there"
        yield from _pool(plane, pool)
    for name, of in calls.maps.items():
        if of.pool.maps.get(of.row.k) is not of or name != of.row.id:
            yield f"map {name} is not its pool's"
    if set(calls.incomplete) != {name for name, of in calls.maps.items() if of.row.taken != of.row.total}:
        yield f"others than these are taken to be incomplete: {list(calls.incomplete)}"
    for name, lease in calls.leases.items():
        if plane.attempts.get(name) is not lease.attempt or lease.attempt.over:
            yield f"{name} has a lease, and is over"


def _pool(plane: Plane, pool: Pool) -> Iterator[str]:
    name, maps, leases = pool.job.id, pool.maps.values(), pool.leases.values()
    there = {a.id for a in plane.attempts.values() if not a.over and a.task.rpartition("/")[0] == name}
    if there != set(pool.leases):
        yield f"pool {name} has leases {set(pool.leases)}, there are {there}"
    waiting = sum(of.waiting.count for of in maps)
    held = sum(lease.count for lease in leases)
    if (pool.waiting, pool.held) != (waiting, held):
        yield f"pool {name} counts {pool.waiting} calls that wait, {pool.held} that are held: {waiting}, {held}"
    if set(pool.turns) != {of for of in maps if of.waiting.count}:
        yield f"pool {name} gives turns to others than to those that wait"
    if pool.ready != sum(lease.ready for lease in leases):
        yield f"pool {name} counts {pool.ready} ready runners"
    if set(pool.idle) != {lease for lease in leases if lease.ready and not lease.count}:
        yield f"pool {name} takes others for idle than those that are"
    if pool.idle and pool.waiting and not pool.unheard:
        yield f"pool {name}: {len(pool.idle)} runners have nothing, and {pool.waiting} calls wait"
    yield from _leases(plane, pool)
    for of in maps:
        yield from _map(of)


def _leases(plane: Plane, pool: Pool) -> Iterator[str]:
    name = pool.job.id
    if pool.maps and not (pool.leases or pool.queued or pool.later):
        yield f"pool {name}: nobody will ever run its calls"
    queued = {task.id for task in pool.job.tasks if task.id in plane.queue}
    if queued != set(pool.queued):
        yield f"pool {name} knows {set(pool.queued)} in the queue, {queued} are"
    if pool.stateful and len(pool.leases) + len(pool.queued) > 1:
        yield f"pool {name} keeps an object, and has {list(pool.leases)} {list(pool.queued)}"


def _map(of: LiveMap) -> Iterator[str]:
    places = Counter[int]()
    done: set[int] = set()
    for first, end in of.waiting:
        places.update(range(first, end))
    for first, end in of.done:
        done |= set(range(first, end))
    for lease in of.pool.leases.values():
        for first, end in lease.flight.get(of, ()):
            places.update(range(first, end))
    if of.row.done != len(done):
        yield f"map {of.row.id} counts {of.row.done} results, and has {len(done)}"
    yield from _ends(of)
    for index in range(of.row.taken):
        count = places[index] + (index in done) + (index in of.put_off)
        if count > 1 and not of.pool.doubled:
            yield f"call {index} of {of.row.id} is in {count} places"
        if not count:
            yield f"call {index} of {of.row.id} is nowhere"


def _ends(of: LiveMap) -> Iterator[str]:
    if of.row.ended_at is not None:
        yield f"map {of.row.id} has ended, and lives"
    if of.row.total is not None and of.row.done == of.row.total:
        yield f"map {of.row.id} is done, and lives"


def known_of_calls(plane: Plane) -> dict[str, Any]:
    """What is stored of calls."""
    known: dict[str, Any] = {}
    for name, of in plane.maps.items():
        row = of.row
        times = (row.opened_at, row.started_at, row.left_at)
        head = (row.n, row.k, row.owner, row.key, row.spec, row.total, row.taken, row.done, row.failed, row.state)
        known[f"map {name}"] = (*head, *times, row.cancel_wanted, list(of.done))
    for name, pool in plane.calls.by_job.items():
        known[f"pool {name}"] = (pool.key, pool.last_k, pool.closing and bool(pool.maps))
    return known


def check_results(link: Link) -> None:
    """What a worker keeps of results is what it has to tell: of each call one, until it is accepted. Raises."""
    for name, held in link.held.items():
        if held.calls is not None:
            kept = sum(len(run.codes) for run, _ in held.calls._results)
            waited = sum(each.count for each in held.calls._ended)
            if kept != waited:
                raise Violation(f"{name} keeps {kept} results, and {waited} are to be told")

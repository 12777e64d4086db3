"""Leases: how runners come, how many are wanted, and what becomes of their calls when they end."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from gpulayer.protocol.calls import CallRange, DropCalls, EndRunner
from gpulayer.protocol.types import Outcome, State
from gpulayer_server.core import ending as core_ending
from gpulayer_server.core.calls import dispatch, ending, results
from gpulayer_server.core.calls.pool import LET_GO, Lease, LiveMap, Pool
from gpulayer_server.core.calls.ranges import Ranges
from gpulayer_server.core.events import Effects
from gpulayer_server.core.state import Attempt, Task, Worker

if TYPE_CHECKING:
    from gpulayer_server.core.plane import Plane

_WORTH_S = 0.2  # another runner is begun for what would take longer than this with those that are there
_PROBE_S = 0.1  # of calls of which nothing is known: after so long they are known to be no short ones
_MOST_FAILURES = 3  # runners that could not be had, one after the other: then nobody goes on to try
_AGAIN_S = 1.0  # before the second is tried; twice as much before each further one


# ---------------------------------------------------------------- their lives


def assigned(plane: Plane, pool: Pool, task: Task, attempt: Attempt, worker: Worker) -> None:
    """A lease task got a place: a runner is being started there."""
    pool.queued.pop(task.id, None)
    take_up(plane, pool, task, attempt, worker)


def take_up(plane: Plane, pool: Pool, task: Task, attempt: Attempt, worker: Worker) -> Lease:
    """A lease, of an attempt that is not over."""
    lease = Lease(pool=pool, attempt=attempt, task=task, worker=worker)
    pool.leases[attempt.id] = plane.calls.leases[attempt.id] = lease
    pool.usable[lease] = None
    plane.calls.touch(pool)
    return lease


def waits(plane: Plane, pool: Pool, task: Task) -> bool:
    """A lease task is to wait for a place; False: not yet."""
    if task.id in pool.later:
        return False
    pool.queued[task.id] = task
    plane.calls.touch(pool)
    return True


def started(plane: Plane, attempt: Attempt, now: float) -> None:
    """A runner is there, or its worker is back with it."""
    lease = plane.calls.leases.get(attempt.id)
    if lease is not None:
        lease.heard_at = now
        _there(plane, lease, now)


def _there(plane: Plane, lease: Lease, now: float) -> None:
    lease.away = False
    if not lease.ending:
        lease.pool.usable[lease] = None
    dispatch.file(lease, now)
    plane.calls.touch(lease.pool)


def worker_gone(plane: Plane, worker: Worker, now: float) -> None:
    """A worker's connection is closed: its runners get nothing."""
    for lease in leases_on(plane, worker):
        dispatch.file(lease, now)
        plane.calls.touch(lease.pool)


def leases_on(plane: Plane, worker: Worker) -> list[Lease]:
    """The leases of a worker."""
    leases = plane.calls.leases
    return [leases[name] for name in worker.claims if name in leases] if leases else []


def out_of_reach(plane: Plane, attempt: Attempt | None) -> None:
    """A worker is known to be out of reach: who waits for its word waits no longer."""
    lease = plane.calls.leases.get(attempt.id) if attempt is not None else None
    if lease is not None:
        lease.away = True
        lease.pool.usable.pop(lease, None)
        lease.pool.unheard.discard(lease.attempt.id)
        plane.calls.touch(lease.pool)


def back(plane: Plane, attempt: Attempt, has: tuple[CallRange, ...], now: float, out: Effects) -> None:
    """A worker is back with a runner that has these calls, with results that were not accepted or without."""
    lease = plane.calls.leases.get(attempt.id)
    if lease is None:
        return
    pool = lease.pool
    pool.unheard.discard(attempt.id)
    lease.recalled_at = None
    there = _declared(plane, lease, has, out)
    for of, ranges in list(lease.flight.items()):
        kept = there.get(of)
        for first, end in ranges:
            for low, high in kept.missing(first, end) if kept is not None else [(first, end)]:
                lease.let_go(of, low, high)
                results.wait_again(pool, of, low, high)
    for of, ranges in there.items():
        for first, end in ranges:
            _take_over(lease, of, first, end)
    if lease.ending:
        out.send(lease.worker.conn, EndRunner(attempt=attempt.id))
    _there(plane, lease, now)


def _declared(plane: Plane, lease: Lease, has: tuple[CallRange, ...], out: Effects) -> dict[LiveMap, Ranges]:
    """What it has, by map; what it has of maps that are no more, it is to drop."""
    there: dict[LiveMap, Ranges] = {}
    dropped: dict[str, None] = {}
    for each in has:
        of = plane.calls.maps.get(each.map)
        if of is None or of.pool is not lease.pool:
            dropped[each.map] = None
            continue
        ranges = there.setdefault(of, Ranges())
        for first, end in of.done.missing(max(each.first, 0), min(each.first + each.count, of.row.taken)):
            ranges.add(first, end)
        for index in of.put_off:  # it failed there, which is known
            ranges.remove(index, index + 1)
    for name in dropped:
        out.send(lease.worker.conn, DropCalls(attempt=lease.attempt.id, map=name))
    return there


def _take_over(lease: Lease, of: LiveMap, first: int, end: int) -> None:
    """A lease turns out to have these: they do not wait. What another one has as well, both have."""
    pool = lease.pool
    of.wait_no_more(first, end)
    mine = lease.flight.get(of)
    for low, high in mine.missing(first, end) if mine is not None else [(first, end)]:
        others = any(other is not lease and _has(other, of, low, high) for other in pool.leases.values())
        pool.doubled = pool.doubled or others
        lease.hold(of, low, high)


def _has(lease: Lease, of: LiveMap, first: int, end: int) -> bool:
    ranges = lease.flight.get(of)
    return ranges is not None and bool(ranges.within(first, end))


def closed(plane: Plane, attempt: Attempt, *, lost: bool, now: float, out: Effects) -> None:
    """An attempt is over: what its runner had is to run elsewhere. `lost`: it may have died of what it did."""
    lease = plane.calls.leases.pop(attempt.id, None)
    if lease is None:
        return
    pool = lease.pool
    del pool.leases[attempt.id]
    pool.usable.pop(lease, None)
    pool.unheard.discard(attempt.id)
    lease.ending = True
    first = next(iter(lease.flight.items()), None)
    flight = list(lease.flight.items())
    for of, ranges in flight:
        lease.let_go_of(of)
        for low, high in ranges:
            results.wait_again(pool, of, low, high)
    dispatch.file(lease, now)
    plane.calls.touch(pool)
    if lost and first is not None and first[1].count and not pool.stateful:
        of, index = first[0], first[1].first
        results.died(plane, of, [(index, index + 1)], attempt.problem, lease.worker.name, now, out)


def end_runner(lease: Lease, now: float, out: Effects) -> None:
    """Tell a runner to end, once the call that it runs is done; who is out of reach hears of it when he is back."""
    if not lease.ending:
        lease.ending = True
        lease.pool.usable.pop(lease, None)
        dispatch.file(lease, now)
    out.send(lease.worker.conn, EndRunner(attempt=lease.attempt.id))


# ---------------------------------------------------------------- one ends


def ends(plane: Plane, pool: Pool, task: Task, state: State, outcome: Outcome, now: float, out: Effects) -> None:
    """A lease task is about to end as `state`: what becomes of the calls. The job goes on as long as there are any."""
    pool.queued.pop(task.id, None)
    pool.later.pop(task.id, None)
    others = bool(pool.leases or pool.queued or pool.later)
    problem = outcome.problem or outcome.error
    if state is State.REJECTED:
        pool.rejected = plane.room.changes
        if not others:
            ending.end_all(plane, pool, State.REJECTED, problem, now, out, reasons=task.reasons)
    elif pool.stateful:
        _object_gone(plane, pool, state, problem, now, out)
    elif state is State.FAILED and task.attempt is not None and task.attempt.end_offset is not None:
        pool.failures += 1
        if pool.failures >= _MOST_FAILURES:
            why = f"{pool.failures} runners could not be had, one after the other; the last: {problem or 'it failed'}"
            ending.end_all(plane, pool, State.FAILED, why, now, out)
    if pool.maps and not others:
        add(plane, pool, now, out, asleep=not pool.waiting)
    plane.calls.touch(pool)


def _object_gone(plane: Plane, pool: Pool, state: State, problem: str, now: float, out: Effects) -> None:
    """The object lived in that one runner."""
    if state is State.SUCCEEDED:
        why = "it was let go of" if pool.closing else "its runner had ended: for too long nobody called it"
    else:
        why = problem or f"its runner {'was cancelled' if state is State.CANCELLED else 'failed'}"
    plane.calls.gone_because(pool.key, why)
    plane.calls.pools.pop(pool.key, None)
    ending.fail_all(plane, pool, f"the object is gone: {why}", now, out)


# ---------------------------------------------------------------- how many are wanted


def adjust(plane: Plane, pool: Pool, now: float, out: Effects) -> None:
    """Begin one more runner, or let go of those that wait for a place in vain; end those of a pool that ends."""
    if pool.closing and not pool.maps:
        for lease in pool.leases.values():
            if not (lease.ending or lease.task.cancel_wanted):
                end_runner(lease, now, out)
    if pool.waiting:
        _wake(plane, pool)
    if pool.queued or pool.later:
        if not _wanted(pool, now):
            for task in [*pool.queued.values(), *[task for _, task in pool.later.values()]]:
                _let_go(plane, task, now, out)
    elif _wants_another(plane, pool, now):
        add(plane, pool, now, out)


def _let_go(plane: Plane, task: Task, now: float, out: Effects) -> None:
    """A lease that waits for a place is not wanted any more: it ends, and nobody is told."""
    plane.queue.remove(task.id)
    core_ending.end_task(plane, task, State.CANCELLED, Outcome(state=State.CANCELLED), now, out)


def _wanted(pool: Pool, now: float) -> bool:
    """Whether those that wait for a place are wanted still: what is left goes up and down, so they are for as long as
    anything waits.
    """
    if not pool.maps:
        return False
    if not pool.ready:
        return not pool.usable or pool.waiting > 0 or bool(pool.unheard)
    return pool.waiting > 0


def _wants_another(plane: Plane, pool: Pool, now: float) -> bool:
    if not pool.maps or pool.unheard or (pool.stateful and pool.job.tasks):
        return False
    usable = len(pool.usable)
    if not usable:
        return not (pool.leases and not pool.waiting) and pool.rejected != plane.room.changes
    if not pool.waiting or usable >= min(pool.waiting + pool.held, pool.most) or pool.rejected == plane.room.changes:
        return False
    longer = _takes(pool, usable * _WORTH_S)
    return not pool.ready or _tried_long(pool, now) if longer is None else longer


def _takes(pool: Pool, seconds: float) -> bool | None:
    """Whether what waits takes so long or longer; None where that is not known."""
    us, bound_us = 0.0, seconds * 1e6
    if pool.waiting_singles:
        if pool.single_us is None:
            return None
        us = pool.waiting_singles * pool.single_us
    if len(pool.turns) > pool.waiting_singles:
        for of in pool.turns:
            if not of.single:
                if of.mean_us is None:
                    return None
                us += of.waiting.count * of.mean_us
            if us >= bound_us:
                break
    return us >= bound_us


def _tried_long(pool: Pool, now: float) -> bool:
    """Whether one of those of which nothing is known has run for a while."""
    return any(now - lease.heard_at >= _PROBE_S for lease in pool.leases.values() if lease.ready and lease.count)


def add(plane: Plane, pool: Pool, now: float, out: Effects, *, asleep: bool = False) -> None:
    """One more lease, that waits for a place, after failures only from a later moment on. `asleep`: once a call waits.

    The job of a map of which more arguments are to come lives by such a one: its runners ended by their idle timeout.
    """
    job = pool.job
    task = job.add_task()
    task.notes = (LET_GO,) if pool.closing else ()
    plane.tasks[task.id] = task
    out.put(task)
    out.changed.add(job.id)
    if pool.failures:
        pool.later[task.id] = (now + _AGAIN_S * 2.0 ** (pool.failures - 1), task)
    elif asleep:
        pool.later[task.id] = (math.inf, task)
    else:
        plane.enqueue(task)


def _wake(plane: Plane, pool: Pool) -> None:
    """Calls wait: so does the lease that was left for them."""
    _enqueue(plane, pool, [name for name, (due, _) in pool.later.items() if due == math.inf])


def look_at_later(plane: Plane, now: float) -> None:
    """Time passed: let those wait for a place that were not to yet."""
    for pool in plane.calls.by_job.values():
        _enqueue(plane, pool, [name for name, (due, _) in pool.later.items() if due <= now])


def _enqueue(plane: Plane, pool: Pool, names: list[str]) -> None:
    for name in names:
        plane.enqueue(pool.later.pop(name)[1])


def tick(plane: Plane, out: Effects) -> None:
    """Time passed: calls may be seen to be long; tell how many are done."""
    for pool in plane.calls.by_job.values():
        if pool.waiting or pool.held:
            plane.calls.touch(pool)
        if pool.changed:
            pool.changed = False
            out.changed.add(pool.job.id)

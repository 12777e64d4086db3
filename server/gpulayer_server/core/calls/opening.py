"""What clients want of calls: new maps, more calls of one, an end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpulayer.protocol.types import Problem, State
from gpulayer_server.core import checking
from gpulayer_server.core.calls import attending, ending, leases
from gpulayer_server.core.calls.pool import LET_GO, LiveMap, Pool, PoolKey
from gpulayer_server.core.calls.state import MapState
from gpulayer_server.core.calls.views import map_view, view_of
from gpulayer_server.core.events import ArgsCame, ArgsRow, CallsEndWanted, Effects, MapCancelWanted, MapOpened
from gpulayer_server.core.jobs import job_name
from gpulayer_server.core.state import Job
from gpulayer_server.core.views import job_view

if TYPE_CHECKING:
    from gpulayer_server.core.plane import Plane


def open_map(plane: Plane, event: MapOpened, now: float, out: Effects) -> None:
    """Take a new map into the pool of its function, or find the one that its key made."""
    found = _found_or_problem(plane, event)
    if isinstance(found, Problem):
        out.replies.append((event.request, found))
        return
    of = found
    if of is None:
        key = (event.owner, event.payload_hash)
        pool = plane.calls.pools.get(key) or _new_pool(plane, event, key, now, out)
        of = _new_map(plane, pool, event, now, out)
        _take_args(plane, of, 0, event.args, event.blobs, last=event.last, now=now, out=out)
    plane.calls.replies.append((event.request, of))


def _found_or_problem(plane: Plane, event: MapOpened) -> LiveMap | Problem | None:
    """The map that this key made already, or why there can be none; None where a new one is to be made."""
    calls = plane.calls
    name = calls.keys.get((event.owner, event.key))
    if name is not None:
        of = calls.maps.get(name) or calls.ended[name][1]
        return of if of.pool.job.payload_hash == event.payload_hash else _key_conflict(event.key, name)
    key = (event.owner, event.payload_hash)
    if key not in calls.pools:
        why = calls.gone.get(key) or (event.gone if event.spec.calls is not None and event.spec.calls.stateful else "")
        if why:
            return Problem(status=409, code="object_gone", title=f"the object is gone: {why}", detail=_MAKE_ANEW)
        problem = checking.problem_of_calls(event.spec)
        if problem is not None:
            return problem
    return checking.problem_of_map(event.map, len(event.args))


_MAKE_ANEW = "what it held went with its process; make a new one"


def _key_conflict(key: str, name: str) -> Problem:
    return Problem(
        status=409,
        code="key_conflict",
        title="this idempotency key was used for a map of another function",
        detail=f"key {key!r} made map {name}; use a new key for a new map",
    )


def _new_pool(plane: Plane, event: MapOpened, key: PoolKey, now: float, out: Effects) -> Pool:
    plane.last_job_n += 1
    name = job_name(plane.last_job_n)
    job = Job(
        id=name,
        n=plane.last_job_n,
        owner=event.owner,
        key=f"calls {name}",  # no client's: a map's key is its own
        payload_hash=event.payload_hash,
        spec=event.spec,
        submitted_at=now,
    )
    pool = job.pool = Pool(job=job, key=key)
    plane.calls.pools[key] = plane.calls.by_job[job.id] = pool
    plane.keys[(job.owner, job.key)] = job.id
    plane.add(job)
    out.put(job)
    leases.add(plane, pool, now, out)
    return pool


def _new_map(plane: Plane, pool: Pool, event: MapOpened, now: float, out: Effects) -> LiveMap:
    job = pool.job
    pool.last_k += 1
    pool.opened += 1
    row = MapState(
        n=job.n,
        k=pool.last_k,
        id=f"{job.id}.{pool.last_k}",
        job=job.id,
        owner=event.owner,
        key=event.key,
        spec=event.map,
        opened_at=now,
        total=event.map.total,
    )
    of = LiveMap(row=row, pool=pool)
    pool.maps[row.k] = plane.calls.maps[row.id] = plane.calls.incomplete[row.id] = of
    plane.calls.keys[(row.owner, row.key)] = row.id
    out.put(row)
    out.maps.add(row.id)
    return of


def args_came(plane: Plane, event: ArgsCame, now: float, out: Effects) -> None:
    """More calls of a map; those that are here are passed over."""
    of = plane.calls.maps.get(event.map)
    problem = _no_map(event.map) if of is None else _problem_of_args(of, event)
    if of is None:
        view = map_view(plane, event.map)
        out.replies.append((event.request, view or _no_map(event.map)))
        return
    if problem is not None:
        out.replies.append((event.request, problem))
        return
    _take_args(plane, of, event.first, event.args, event.blobs, last=event.last, now=now, out=out)
    plane.calls.replies.append((event.request, of))


def _problem_of_args(of: LiveMap, event: ArgsCame) -> Problem | None:
    row, end = of.row, event.first + len(event.args)
    if event.first < 0 or event.first > row.taken:
        title = f"the arguments of calls {row.taken:,} to {event.first - 1:,} of map {row.id} are missing"
        return Problem(status=409, code="args_missing", title=title)
    total = row.total if row.total is not None else max(end, row.taken) if event.last else None
    if total is not None and end > total:
        title = f"map {row.id} has {total:,} calls, there are arguments for {end:,}"
        return Problem(status=409, code="too_many_args", title=title)
    return None


def _take_args(
    plane: Plane,
    of: LiveMap,
    first: int,
    args: tuple[bytes, ...],
    blobs: tuple[str, ...],
    *,
    last: bool,
    now: float,
    out: Effects,
) -> None:
    row = of.row
    new = args[row.taken - first :] if first < row.taken else args
    if new:
        out.put(ArgsRow(n=row.n, k=row.k, first=row.taken, args=new, blobs=blobs))
        taken, row.taken = row.taken, row.taken + len(new)
        of.wait(taken, row.taken)
        of.pool.calls += len(new)
        of.pool.changed = True
    if last and row.total != row.taken:
        row.total = row.taken
    elif not new:
        ending.end_if_done(plane, of, now, out)
        return
    attending.heard(plane, of)
    out.put(row)
    out.maps.add(row.id)
    plane.calls.touch(of.pool)
    ending.end_if_done(plane, of, now, out)


def cancel_map(plane: Plane, event: MapCancelWanted, now: float, out: Effects) -> None:
    """End a map: what waits is dropped, what runs is interrupted, what comes of it is refused."""
    of = plane.calls.maps.get(event.map)
    if of is not None:
        of.row.cancel_wanted = True
        ending.end(plane, of, State.CANCELLED, now, out)
    view = map_view(plane, event.map)
    out.replies.append((event.request, view or _no_map(event.map)))


def end_calls(plane: Plane, event: CallsEndWanted, now: float, out: Effects) -> None:
    """A pool takes no more maps, and its runners end with its last one."""
    pool = plane.calls.by_job.get(event.job)
    if pool is None:
        problem = Problem(status=404, code="no_such_job", title=f"no live job of calls {event.job}")
        out.replies.append((event.request, problem))
        return
    if not pool.closing:
        pool.closing = True
        plane.calls.pools.pop(pool.key, None)
        if pool.stateful:
            plane.calls.gone_because(pool.key, "it was let go of")
        for task in pool.job.tasks:
            if not task.terminal and LET_GO not in task.notes:
                task.notes = (*task.notes, LET_GO)
                out.put(task)
    out.changed.add(event.job)
    plane.calls.touch(pool)
    out.replies.append((event.request, job_view(plane, pool.job)))


def _no_map(name: str) -> Problem:
    return Problem(status=404, code="no_such_map", title=f"no live map {name}")


def answer(plane: Plane, out: Effects) -> None:
    """Answer those who opened maps, or brought calls, by what became of it in this event."""
    calls = plane.calls
    for request, of in calls.replies:
        out.replies.append((request, view_of(plane, of)))
    calls.replies.clear()

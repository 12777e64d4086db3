"""How maps end, and with them pools."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpulayer.protocol.calls import RUNNER_DIED, DropCalls
from gpulayer.protocol.types import Reason, State
from gpulayer_server.core.calls import dispatch
from gpulayer_server.core.calls.failing import failure as failure_of
from gpulayer_server.core.calls.pool import LiveMap, Pool
from gpulayer_server.core.events import Effects

if TYPE_CHECKING:
    from gpulayer_server.core.plane import Plane


def end_if_done(plane: Plane, of: LiveMap, now: float, out: Effects) -> None:
    """A map of which every call has a result has succeeded."""
    row = of.row
    if row.ended_at is None and row.total is not None and row.done == row.total:
        end(plane, of, State.SUCCEEDED, now, out)


def failed(plane: Plane, of: LiveMap, index: int, code: int, failure: bytes, now: float, out: Effects) -> None:
    """A call failed, and its map with it."""
    row = of.row
    row.failed_index, row.failed_code, row.failure = index, code, failure
    end(plane, of, State.FAILED, now, out)


def end(plane: Plane, of: LiveMap, state: State, now: float, out: Effects) -> None:
    """A map is over: what runs of it is to be dropped, and nothing that is said of it counts any more."""
    row, pool, calls = of.row, of.pool, plane.calls
    row.state, row.ended_at = state, now
    out.put(row)
    out.maps.add(row.id)
    pool.dropped += row.taken - row.done
    pool.changed = True
    of.drop_waiting()
    if of.held:
        for lease in pool.leases.values():
            if lease.let_go_of(of) is not None:
                out.send(lease.worker.conn, DropCalls(attempt=lease.attempt.id, map=row.id))
                dispatch.file(lease, now)
    of.means.clear()
    del calls.maps[row.id], pool.maps[row.k]
    calls.incomplete.pop(row.id, None)
    calls.ended[row.id] = (plane.ticks, of)
    calls.touch(pool)


def end_all(
    plane: Plane,
    pool: Pool,
    state: State,
    problem: str,
    now: float,
    out: Effects,
    *,
    reasons: tuple[Reason, ...] = (),
) -> None:
    """All maps of a pool end, and why is theirs to tell."""
    for of in list(pool.maps.values()):
        of.row.problem, of.row.reasons = problem, reasons
        end(plane, of, state, now, out)


def fail_all(plane: Plane, pool: Pool, problem: str, now: float, out: Effects) -> None:
    """No call of a pool will run any more: of each map the first one that has no result says it."""
    for of in list(pool.maps.values()):
        index = next(iter(of.done.missing(0, of.row.taken + 1)))[0]
        of.row.problem = problem
        failed(plane, of, index, RUNNER_DIED, failure_of(problem), now, out)


def cancel_all(plane: Plane, pool: Pool, now: float, out: Effects) -> None:
    """Its job is cancelled: its maps are, and it takes no others."""
    pool.closing = True
    plane.calls.pools.pop(pool.key, None)
    if pool.stateful:
        plane.calls.gone_because(pool.key, "its job was cancelled")
    for of in list(pool.maps.values()):
        of.row.cancel_wanted = True
        end(plane, of, State.CANCELLED, now, out)


def pool_over(plane: Plane, pool: Pool, now: float, out: Effects) -> None:
    """The job has ended: none of its runners is left, and none will come."""
    end_all(plane, pool, State.FAILED, "its job ended", now, out)  # none is there, unless something was forgotten
    if plane.calls.pools.get(pool.key) is pool:
        del plane.calls.pools[pool.key]
    plane.calls.by_job.pop(pool.job.id, None)


def forget(plane: Plane) -> None:
    """Leave the maps that are over to the store: by now their rows are committed."""
    calls = plane.calls
    old: list[LiveMap] = []
    for tick, of in calls.ended.values():
        if plane.ticks - tick < plane.settings.keep_keys_ticks:
            break
        old.append(of)
    for of in old:
        del calls.ended[of.row.id]
        calls.keys.pop((of.row.owner, of.row.key), None)

"""What clients see of maps. Nothing here changes anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpulayer.protocol.calls import MapView
from gpulayer.protocol.types import State
from gpulayer_server.core.calls.pool import LiveMap
from gpulayer_server.core.calls.state import MapState
from gpulayer_server.core.explaining import Told, Why, nearest_of
from gpulayer_server.core.state import Task

if TYPE_CHECKING:
    from gpulayer_server.core.plane import Plane


def map_view(plane: Plane, name: str) -> MapView | None:
    """A map that lives, or ended a moment ago; older ones are in the store, see `stored_map`."""
    calls = plane.calls
    of = calls.maps.get(name)
    if of is None and name in calls.ended:
        of = calls.ended[name][1]
    return None if of is None else view_of(plane, of)


def view_of(plane: Plane, of: LiveMap) -> MapView:
    """A map as it is now."""
    row = of.row
    if row.ended_at is not None:
        return stored_map(row, nearest_of(of.pool.job.spec.requirements, row.reasons) if row.reasons else "")
    pool = of.pool
    reasons, nearest, progress = row.reasons, "", ""
    if not pool.ready:
        waiting = next(iter(pool.queued.values()), None)
        if not pool.leases and waiting is not None:
            reasons, nearest = _why(plane, waiting)
        progress = next((lease.attempt.progress for lease in pool.leases.values() if lease.attempt.progress), "")
    workers = {lease.worker.name: None for lease in pool.leases.values() if lease.ready}
    return MapView(
        id=row.id,
        job=row.job,
        state=row.state,
        total=row.total,
        taken=row.taken,
        done=row.done,
        failed=row.failed,
        running=of.held,
        runners=pool.ready,
        workers=tuple(workers),
        name=row.spec.name,
        single=row.spec.single,
        cancelling=row.cancel_wanted,
        reasons=reasons,
        nearest=nearest,
        progress=progress,
        opened_at=row.opened_at,
        started_at=row.started_at,
    )


def _why(plane: Plane, task: Task) -> Told:
    return Why(plane, plane.now).waits(task)


def stored_map(row: MapState, nearest: str = "") -> MapView:
    """A map by its row alone."""
    return MapView(
        id=row.id,
        job=row.job,
        state=row.state,
        total=row.total,
        taken=row.taken,
        done=row.done,
        failed=row.failed,
        name=row.spec.name,
        single=row.spec.single,
        cancelling=row.cancel_wanted and row.state is State.RUNNING,
        reasons=row.reasons,
        nearest=nearest,
        problem=row.problem,
        failed_index=row.failed_index,
        failed_code=row.failed_code,
        failure=row.failure,
        opened_at=row.opened_at,
        started_at=row.started_at,
        ended_at=row.ended_at,
    )

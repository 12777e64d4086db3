"""What clients see of maps. Nothing here changes anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from gpulayer.protocol.calls import MapView
from gpulayer.protocol.types import State
from gpulayer_server.core.calls.pool import LiveMap
from gpulayer_server.core.calls.state import MapState
from gpulayer_server.core.explaining import Why, nearest_of

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
    """A map as it is now. Why one waits is not looked at: views are made far more often than they are read."""
    row = of.row
    if row.ended_at is not None:
        return stored_map(row, nearest_of(of.pool.job.spec.requirements, row.reasons) if row.reasons else "")
    pool, progress = of.pool, ""
    if not pool.ready:
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
        streams=row.spec.stream,
        returns_exceptions=row.spec.return_exceptions,
        cancelling=row.cancel_wanted,
        progress=progress,
        left_at=row.left_at,
        opened_at=row.opened_at,
        started_at=row.started_at,
    )


def waiting_map_view(plane: Plane, view: MapView, why: Why | None = None) -> MapView:
    """A view for who reads it: of a map for which no runner has a place yet, with why that is so.

    `why`: of now, where many are looked at.
    """
    of = plane.calls.maps.get(view.id)
    task = None if of is None or of.pool.leases else next(iter(of.pool.queued.values()), None)
    if task is None:
        return view
    reasons, nearest = (why or Why(plane, plane.now)).waits(task)
    return replace(view, reasons=reasons, nearest=nearest)


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
        streams=row.spec.stream,
        returns_exceptions=row.spec.return_exceptions,
        cancelling=row.cancel_wanted and row.state is State.RUNNING,
        reasons=row.reasons,
        nearest=nearest,
        left_at=row.left_at if row.ended_at is None else None,
        problem=row.problem,
        failed_index=row.failed_index,
        failed_code=row.failed_code,
        failure=row.failure,
        opened_at=row.opened_at,
        started_at=row.started_at,
        ended_at=row.ended_at,
    )

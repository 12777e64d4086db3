"""Maps of which calls are yet to come, and the clients that would bring them: a map does not wait for ever for one that
went away. What came runs to its end, and its results stay.
"""

from __future__ import annotations

from collections.abc import Set
from typing import TYPE_CHECKING

from gpulayer.protocol.types import State
from gpulayer_server.core.calls import ending
from gpulayer_server.core.calls.pool import LiveMap
from gpulayer_server.core.events import Effects

if TYPE_CHECKING:
    from gpulayer_server.core.plane import Plane


def heard(plane: Plane, of: LiveMap) -> None:
    """Calls of a map came, perhaps the last ones."""
    row = of.row
    of.alone_since = row.left_at = None
    if row.taken == row.total:
        plane.calls.incomplete.pop(row.id, None)


def anew(plane: Plane, now: float) -> None:
    """The machine slept: for so long nobody could come back."""
    for of in plane.calls.incomplete.values():
        if of.alone_since is not None:
            of.alone_since = now


def look(plane: Plane, attended: Set[str], now: float, out: Effects) -> None:
    """Time passed: note whose client is away, and end the maps whose client was for too long.

    A client that comes back in time goes on. Since when it is away outlives a restart; after one it has a moment.
    """
    settings = plane.settings
    for of in list(plane.calls.incomplete.values()):
        row = of.row
        if row.id in attended:
            of.alone_since = None
            if row.left_at is not None:
                _note(of, None, out)
            continue
        if of.alone_since is None:
            of.alone_since = now
        alone_s = now - of.alone_since
        if row.left_at is None:
            if alone_s >= settings.unreachable_after_s:
                _note(of, of.alone_since, out)
        elif row.done == row.taken and alone_s >= min(settings.client_away_s, settings.lost_after_s):
            _end_if_late(plane, of, row.left_at + settings.client_away_s, now, out)


def _note(of: LiveMap, left_at: float | None, out: Effects) -> None:
    of.row.left_at = left_at
    out.put(of.row)
    out.maps.add(of.row.id)


def _end_if_late(plane: Plane, of: LiveMap, until: float, now: float, out: Effects) -> None:
    """All that came is done."""
    row = of.row
    if now >= until:
        row.problem = _went_away(row.taken, row.total)
        ending.end(plane, of, State.CANCELLED, now, out)


def _went_away(taken: int, total: int | None) -> str:
    """Why a map is over whose client brought so many of its calls."""
    if not taken:
        return "its client went away before it sent a call"
    of_all = f" of {total:,}" if total is not None else ""
    return f"its client went away after it sent {taken:,}{of_all} call{'' if (total or taken) == 1 else 's'}"

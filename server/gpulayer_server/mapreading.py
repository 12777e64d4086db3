"""What clients ask for of maps: from the plane where they live, else from the store. Nothing here changes anything."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from msgspec.structs import replace

from gpulayer.protocol.calls import MapView
from gpulayer.protocol.types import State
from gpulayer_server.core.calls.views import map_view, stored_map, view_of, waiting_map_view
from gpulayer_server.core.events import ArgsRow
from gpulayer_server.core.explaining import Why
from gpulayer_server.core.plane import Plane
from gpulayer_server.store.database import Store
from gpulayer_server.store.maps import MapKey, StoredRun, split_id


class MapReading:
    """Reads maps: a part of the half of the shell that changes nothing. One thread uses it: the loop's."""

    plane: Plane
    store: Store

    def map_view(self, name: str) -> MapView | None:
        """A map of any age; one of which nothing runs tells why. None: it is not there."""
        view = map_view(self.plane, name)
        return self.stored_map_view(name) if view is None else waiting_map_view(self.plane, view)

    def stored_map_view(self, name: str) -> MapView | None:
        """The same by what is committed alone, whatever the plane knows by now."""
        state = self.store.maps.map(name)
        if state is None:
            return None
        if state.ended_at is None:  # the row of one that goes on is not written with each result
            state.done = self.store.maps.done((state.n, state.k))
        return stored_map(state)

    def map_by_key(self, owner: str, key: str) -> MapView | None:
        """A map of the past that this key made; those that the plane knows are its to find."""
        if (owner, key) in self.plane.calls.keys:
            return None
        state = self.store.maps.by_key(owner, key)
        return stored_map(state) if state is not None else None

    def map_views(self, job: str, limit: int, before: int | None = None) -> list[MapView]:
        """The maps of a job, newest first; with `before` only those of lower numbers."""
        found = self.store.maps.of_job(job, limit, before)
        return [map_view(self.plane, state.id) or stored_map(state) for state in found]

    def owner_of_map(self, name: str) -> str | None:
        """Whose map it is. None: there is no such map."""
        live = self.plane.calls.maps.get(name)
        if live is not None:
            return live.row.owner
        state = self.store.maps.map(name)
        return state.owner if state is not None else None

    def map_key(self, name: str) -> MapKey | None:
        """How the store knows it."""
        live = self.plane.calls.maps.get(name)
        if live is not None:
            return live.row.n, live.row.k
        parts = split_id(name)
        n = self.store.n_of(parts[0]) if parts is not None else None
        return (n, parts[1]) if parts is not None and n is not None else None

    def waiting_map_views(self, names: Iterable[str]) -> list[MapView]:
        """Those of these maps that wait, with why: what is one job's is looked at once."""
        plane = self.plane
        why = Why(plane, plane.now)
        told: dict[str, MapView] = {}
        views: list[MapView] = []
        for name in names:
            of = plane.calls.maps.get(name)
            if of is None or of.row.state is not State.QUEUED or of.pool.ready:
                continue
            one = told.get(of.row.job)
            if one is None:
                one = told[of.row.job] = waiting_map_view(plane, view_of(plane, of), why)
            views.append(replace(stored_map(of.row, one.nearest), reasons=one.reasons, progress=one.progress))
        return views

    def args(self, name: str, first: int, count: int) -> list[ArgsRow]:
        """The arguments of calls of a map, as they are stored."""
        key = self.map_key(name)
        return self.store.maps.args(key, first, count) if key is not None else []

    def reader_of(self, name: str, *, ordered: bool) -> Callable[[int, int], list[StoredRun]]:
        """What reads a map's results: from where on, and how many bytes at most."""
        key = self.map_key(name) or (0, 0)
        maps = self.store.maps
        return partial(maps.results_by_index if ordered else maps.results_by_coming, key)

    def why_gone(self, owner: str, payload_hash: str) -> str:
        """Why an object is not there any more that a job with this spec once made; '' where there was none."""
        state = self.store.maps.end_of_calls(owner, payload_hash)
        return f"its job has {state.value}" if state is not None else ""

    def attempts_of_map(self, view: MapView) -> list[str]:
        """The attempts of its job that may have run calls of it."""
        end = view.ended_at if view.ended_at is not None else float("inf")
        found = self.store.attempts_of_job(view.job)
        return [
            attempt.id
            for attempt in found
            if attempt.assigned_at <= end and (attempt.ended_at is None or attempt.ended_at >= view.opened_at)
        ]

"""Maps that ended long ago, or that are too many, are dropped with their results: some at a time.

A job of calls may live for months, and each call makes a map: its old ones go while it lives, the others before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from gpulayer.protocol.types import JobView, Problem
from gpulayer_server.core.jobs import job_name
from gpulayer_server.core.plane import Plane
from gpulayer_server.core.state import Settings
from gpulayer_server.store.database import Store
from gpulayer_server.store.maps import MapKey, dropped
from gpulayer_server.store.rows import Op

_SLICE = 500  # maps that are dropped in one commit
_ROWS = 2_000  # and rows of results: some milliseconds
_EVERY_S = 60.0
_DAY_S = 86_400.0
_LEAST_S = 3_600.0  # so long a map is kept after its end, however many there are


class Writes(Protocol):
    """Where rows are dropped: the shell."""

    plane: Plane

    def write(self, ops: list[Op], reply: Callable[[JobView | Problem | None], None]) -> None: ...


class MapHistory:
    """Keeps the maps from growing without end. Used on the loop's thread."""

    def __init__(self, shell: Writes, store: Store, settings: Settings):
        self._shell = shell
        self._store = store
        self._settings = settings
        self._looked_at = float("-inf")
        self.busy = False  # rows are about to go

    def look(self, now: float) -> None:
        """Drop the next ones of live jobs, if there are any; a call does little."""
        if self.busy or now - self._looked_at < _EVERY_S:
            return
        old = self._old(now)
        if old:
            self._drop(old)
        else:
            self._looked_at = now

    def drop_of(self, jobs: Iterable[int]) -> bool:
        """Drop some maps of jobs that are about to be dropped, given by their numbers; whether there were any."""
        maps = self._store.maps.of_jobs(jobs, _SLICE)
        if maps:
            self._drop(maps)
        return bool(maps)

    def _old(self, now: float) -> list[MapKey]:
        settings, maps = self._settings, self._store.maps
        too_many = maps.ended_count() - settings.keep_jobs
        days = settings.keep_days if settings.keep_results_days is None else settings.keep_results_days
        before = now - days * _DAY_S
        found = maps.oldest_ended(_SLICE + len(self._shell.plane.calls.by_job))  # each of which keeps one
        return [
            (n, k)
            for at, (n, k, ended_at) in enumerate(found)
            if (ended_at < before or (at < too_many and ended_at < now - _LEAST_S)) and not self._stays(n, k)
        ]

    def _stays(self, n: int, k: int) -> bool:
        """Whether it is the last one of a job that lives: its number is not given again."""
        calls, job = self._shell.plane.calls, job_name(n)
        pool = calls.by_job.get(job)
        return (pool is not None and pool.last_k == k) or f"{job}.{k}" in calls.ended

    def _drop(self, keys: list[MapKey]) -> None:
        ops: list[Op] = []
        rows = 0
        for key in keys:
            count = self._store.maps.runs_of(key)
            if count > _ROWS and not ops:
                ops.append(("drop_some_results", (*key, _ROWS)))
                break
            rows += count
            if rows > _ROWS:
                break
            ops += dropped(key)
        self.busy = True
        self._shell.write(ops, self._dropped)

    def _dropped(self, _: JobView | Problem | None) -> None:
        self.busy = False  # where it could not be written, it is looked again

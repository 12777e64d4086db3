"""Jobs that ended long ago, or that are too many, are dropped: some at a time, while other things go on.

Their streams go once the rows are gone. What a live job is to run after stays, and whatever may still have processes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from gpulayer.protocol.types import JobView, Problem
from gpulayer_server.core.plane import Plane
from gpulayer_server.core.state import Settings
from gpulayer_server.maphistory import MapHistory
from gpulayer_server.store.database import Store
from gpulayer_server.store.rows import Op
from gpulayer_server.store.streams import Streams

log = logging.getLogger("gpulayer.server")

_SLICE = 200  # jobs that are dropped in one commit: some milliseconds
_AGE_EVERY_S = 60.0
_DAY_S = 86_400.0


class Writes(Protocol):
    """Where rows are dropped: the shell."""

    plane: Plane

    def write(self, ops: list[Op], reply: Callable[[JobView | Problem | None], None]) -> None: ...


@dataclass(frozen=True)
class _Old:
    n: int
    id: str


class History:
    """Keeps the store from growing without end. Used on the loop's thread."""

    def __init__(self, shell: Writes, store: Store, streams: Streams, settings: Settings):
        self._shell = shell
        self._store = store
        self._streams = streams
        self._settings = settings
        self._maps = MapHistory(shell, store, settings)
        self._looked_at = 0.0  # when jobs were last looked for that are too old
        self.going: set[str] = set()  # jobs of which the rows are about to go: nobody may count on them any more

    def look(self, now: float) -> None:
        """Drop the next ones, if there are any; a call does little."""
        if self.going or self._maps.busy:
            return
        old = self._old(now)
        if not old:
            self._maps.look(now)
            return
        if self._maps.drop_of(job.n for job in old):
            return  # the jobs go once their maps have
        self.going = {job.id for job in old}
        attempts = [name for job in old for name in self._store.attempt_names(job.n)]
        statements = ("drop_labels", "drop_attempts", "drop_tasks", "drop_end", "drop_job")
        ops: list[Op] = [(statement, (job.n,)) for job in old for statement in statements]
        self._shell.write(ops, lambda problem: self._dropped(len(old), attempts, problem))

    def _old(self, now: float) -> list[_Old]:
        plane, settings = self._shell.plane, self._settings
        too_many = plane.ended - settings.keep_jobs
        if too_many <= 0 and now - self._looked_at < _AGE_EVERY_S:
            return []
        held = {attempt.n for attempt in plane.attempts.values()}
        # As many more as may have to stay: whatever their number, some can be found that go.
        found = self._store.oldest_ended(_SLICE + len(plane.named) + len(held) + len(plane.done))
        before = now - settings.keep_days * _DAY_S
        old: list[_Old] = []
        for n, name, ended_at in found:
            if len(old) == _SLICE or not (ended_at < before or len(old) < too_many):
                break
            stays = n in held or name in plane.jobs or name in plane.done or name in plane.named
            if not stays and n != plane.last_job_n:  # the last one keeps its name from being given again
                old.append(_Old(n, name))
        if not old:
            self._looked_at = now
        return old

    def _dropped(self, count: int, attempts: list[str], problem: JobView | Problem | None) -> None:
        self.going = set()
        if isinstance(problem, Problem):
            return  # the plane is rebuilt: it is looked again
        self._shell.plane.ended -= count
        for attempt in attempts:
            try:
                self._streams.drop(attempt)
            except OSError as error:
                log.warning("the stream of %s, whose job is not kept any more, is still there: %s", attempt, error)

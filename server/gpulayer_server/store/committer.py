"""Group commit on a thread of its own: whatever waits is one transaction. A few small rows are written at once."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence

from gpulayer_server.store.database import Store, StoreError
from gpulayer_server.store.rows import Op

_AT_ONCE = frozenset({"put_map", "put_args", "put_results"})  # of calls: people wait for them
_AT_ONCE_ROWS = 8
_AT_ONCE_BYTES = 16 * 1024
_THEN_THREAD = 1000  # so many transactions later the thread has one: it alone moves the log into the database


def small(units: Sequence[Sequence[Op]]) -> bool:
    """Whether units are of calls and take less time to write than to hand to another thread."""
    rows = [op for unit in units for op in unit]
    if len(rows) > _AT_ONCE_ROWS or not all(name in _AT_ONCE for name, _ in rows):
        return False
    return sum([len(value) for _, values in rows for value in values if isinstance(value, bytes)]) <= _AT_ONCE_BYTES


class Committer:
    """Takes units from the loop's thread and commits them in order.

    `done(count, error)` is called on the committer's thread after each transaction: `count` units, oldest first, are
    on disk, or `error` says why none of them is. After an error everything that follows fails too, until `reset`:
    it was decided on top of what is lost.
    """

    def __init__(self, store: Store, done: Callable[[int, StoreError | None], None]):
        self._store = store
        self._done = done
        self._waiting: queue.SimpleQueue[Sequence[Sequence[Op]] | None] = queue.SimpleQueue()
        self._failed: StoreError | None = None
        self._at_once = 0  # transactions since the thread's last one
        self._thread = threading.Thread(target=self._run, name="gpulayer-store", daemon=True)
        self._thread.start()

    def put(self, units: Sequence[Sequence[Op]]) -> None:
        """Let units be committed, in one transaction, after those before them."""
        self._waiting.put(units)

    def at_once(self, units: Sequence[Sequence[Op]]) -> bool:
        """Commit small units on the calling thread; False: they are not, or it is the other one's turn.

        Only while nothing waits here. Raises `StoreError`, and then nothing of them is written.
        """
        if self._at_once >= _THEN_THREAD or not small(units):
            return False
        self._at_once += 1
        self._store.commit(units, checkpoint=False)
        return True

    def reset(self) -> None:
        """Take units again, after the plane was rebuilt from the store."""
        self._failed = None

    def close(self) -> None:
        """Commit what waits, then end the thread."""
        self._waiting.put(None)
        self._thread.join()

    def _run(self) -> None:
        ending = False
        while not ending:
            taken = [self._waiting.get()]
            while not self._waiting.empty():
                taken.append(self._waiting.get())
            ending = None in taken
            work = [unit for units in taken if units is not None for unit in units]
            if work:
                self._commit(work)

    def _commit(self, work: list[Sequence[Op]]) -> None:
        self._at_once = 0
        if self._failed is None:
            try:
                self._store.commit(work)
            except StoreError as error:
                self._failed = error
        self._done(len(work), self._failed)

"""Group commit on a thread of its own: whatever waits is one transaction."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence

from gpulayer_server.store.database import Store, StoreError
from gpulayer_server.store.rows import Op


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
        self._thread = threading.Thread(target=self._run, name="gpulayer-store", daemon=True)
        self._thread.start()

    def put(self, units: Sequence[Sequence[Op]]) -> None:
        """Let units be committed, in one transaction, after those before them."""
        self._waiting.put(units)

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
        if self._failed is None:
            try:
                self._store.commit(work)
            except StoreError as error:
                self._failed = error
        self._done(len(work), self._failed)

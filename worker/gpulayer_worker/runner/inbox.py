"""The calls that wait in a runner, and the one that runs. Used by its main and its control thread, under a lock."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

Range = tuple  # (map, first, count)


class Batch:
    """Calls of one map that came together; those from `at` up to `end` have not begun. Only the inbox changes it."""

    __slots__ = ("args", "at", "blobs", "end", "first", "map", "method", "stream")

    def __init__(self, calls: Any) -> None:
        """`calls` is the frame that brought them."""
        self.map: str = calls.map
        self.first: int = calls.first
        self.args: Sequence[bytes] = calls.args
        self.method: str = calls.method
        self.stream: bool = calls.stream
        self.blobs = {blob.digest: blob for blob in calls.blobs}
        self.at = 0
        self.end = len(calls.args)


class Inbox:
    """What came and has not run. `running` and `index` say which call does; `running` is None between calls."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.running: Batch | None = None
        self.index = 0  # of the call that runs
        self.began_ns = 0  # when, on the monotonic clock; 0: its arguments are being read
        self.ended = False  # nothing comes any more
        self._batches: deque[Batch] = deque()

    def put(self, calls: Any) -> None:
        """Takes a frame of calls."""
        with self.lock:
            self._batches.append(Batch(calls))

    def next(self) -> Batch | None:
        """The batch of the next call, which runs from now on; its place is `at - 1`. None: there is no other."""
        with self.lock:
            while self._batches:
                batch = self._batches[0]
                at = batch.at
                if at < batch.end:
                    batch.at = at + 1
                    self.index, self.began_ns = batch.first + at, 0
                    self.running = batch
                    return batch
                self._batches.popleft()
            self.running = None
            return None

    def rest(self) -> None:
        """From now on no call runs."""
        with self.lock:
            self.running = None

    def waiting(self) -> list[Range]:
        """What has not begun, in order."""
        with self.lock:
            return [
                (each.map, each.first + each.at, each.end - each.at) for each in self._batches if each.at < each.end
            ]

    def runs(self) -> tuple[str, int, int] | None:
        """Map and index of the call that runs, and when it began (ns, monotonic; 0 for not yet)."""
        with self.lock:
            return None if self.running is None else (self.running.map, self.index, self.began_ns)

    def drop(self, map_name: str) -> list[Range]:
        """Lets go of what has not begun of a map."""
        with self.lock:
            gone = [batch for batch in self._batches if batch.map == map_name and batch.at < batch.end]
            ranges = [(batch.map, batch.first + batch.at, batch.end - batch.at) for batch in gone]
            for batch in gone:
                batch.end = batch.at
            return ranges

    def recall(self, count: int) -> list[Range]:
        """Lets go of at most `count` calls that have not begun, the last ones first."""
        ranges: list[Range] = []
        with self.lock:
            for batch in reversed(self._batches):
                taken = min(count, batch.end - batch.at)
                if taken > 0:
                    batch.end -= taken
                    count -= taken
                    ranges.append((batch.map, batch.first + batch.end, taken))
        return ranges

"""The results of a map on their way to one client: those that come now, from memory, those before, from the store.

No I/O, but for what `read` does. However much comes while the client is slow, or while the next one in order is not
there yet, so many bytes are in memory at most: the rest is read when its turn comes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Protocol

from gpulayer.protocol.calls import CallRun, ResultRun
from gpulayer_server.store.maps import StoredRun, size_of

Read = Callable[[int, int], Sequence[StoredRun]]  # from where on, and about how many bytes at most

_AHEAD_BYTES = 4 * 1024 * 1024


class Results(Protocol):
    """Where a client's results come from. `cursor` is from where it goes on."""

    cursor: int

    @property
    def waiting(self) -> bool:
        """Whether `take` may give some."""
        ...

    def accepted(self, run: CallRun) -> None:
        """These were committed."""
        ...

    def take(self, limit_bytes: int) -> list[ResultRun]:
        """The next ones."""
        ...

    def look_again(self) -> None:
        """The map has ended: what the store has is all there is."""
        ...


class Ordered:
    """Results in the order of their calls; `cursor` is the index of the next one."""

    def __init__(self, read: Read, after: int = 0, done: int = 0, limit_bytes: int = _AHEAD_BYTES):
        """`after`: what the client has; `done`: how many there are, of which `accepted` will not tell."""
        self.cursor = after
        self._read = read
        self._limit_bytes = limit_bytes
        self._unsent = done - after  # results that are committed
        self._ahead: dict[int, CallRun] = {}  # by their first index
        self._ahead_bytes = 0
        self._behind = self._look = self._unsent != 0  # some of them are in the store only; and the next one may be

    @property
    def waiting(self) -> bool:
        """Whether `take` may give some."""
        return self._look if self._behind else self.cursor in self._ahead

    def accepted(self, run: CallRun) -> None:
        """These were committed."""
        count = len(run.codes)
        self._unsent += count
        if self._behind:
            self._look = self._look or run.first <= self.cursor < run.first + count
        elif run.first < self.cursor:
            self.look_again()  # the store had it before: it may have others that are not here
        else:
            self._ahead[run.first] = run
            self._ahead_bytes += size_of(run.data)
            if self._ahead_bytes > self._limit_bytes:
                self.look_again()

    def look_again(self) -> None:
        """Leave all of it to the store."""
        self._ahead.clear()
        self._ahead_bytes = 0
        self._behind = self._look = True

    def take(self, limit_bytes: int) -> list[ResultRun]:
        """The next ones without a gap, as one run; about so many bytes at most."""
        runs = self._from_store(limit_bytes) if self._behind else self._from_memory(limit_bytes)
        if not runs:
            return []
        first = self.cursor
        count = sum([len(run.codes) for run in runs])
        self.cursor += count
        self._unsent -= count
        if self._behind and self._unsent == 0:
            self._behind = self._look = False
        if len(runs) == 1:
            return [ResultRun(first=first, codes=runs[0].codes, data=runs[0].data)]
        codes = b"".join([run.codes for run in runs])
        return [ResultRun(first=first, codes=codes, data=tuple(chain.from_iterable([run.data for run in runs])))]

    def _from_memory(self, limit_bytes: int) -> list[CallRun]:
        runs: list[CallRun] = []
        at = self.cursor
        while limit_bytes > 0 and at in self._ahead:
            run = self._ahead.pop(at)
            runs.append(run)
            at += len(run.codes)
            size_bytes = size_of(run.data)
            self._ahead_bytes -= size_bytes
            limit_bytes -= size_bytes
        return runs

    def _from_store(self, limit_bytes: int) -> list[ResultRun]:
        runs = [stored.run for stored in self._read(self.cursor, limit_bytes)]
        self._look = bool(runs)
        return runs


class AsTheyCome:
    """Results in the order of their coming; `cursor` is the store's number of the last one."""

    def __init__(self, read: Read, after: int = 0, done: int = 0):
        """`done`: how many there are, of which `accepted` will not tell."""
        self.cursor = after
        self.waiting = done > 0
        self._read = read

    def accepted(self, run: CallRun) -> None:
        """These were committed."""
        self.waiting = True

    def look_again(self) -> None:
        """There may be more."""
        self.waiting = True

    def take(self, limit_bytes: int) -> list[ResultRun]:
        """The next ones, about so many bytes at most."""
        found = self._read(self.cursor, limit_bytes)
        self.waiting = bool(found)
        if found:
            self.cursor = found[-1].seq
        return [stored.run for stored in found]

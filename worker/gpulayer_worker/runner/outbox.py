"""Results on their way to the agent: gathered into frames, and kept until they are accepted."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from . import wire


class Kept:
    """A frame that was sent, and which of its results are still wanted."""

    __slots__ = ("end", "first", "frame", "map", "taken")

    def __init__(self, map_name: str, first: int, count: int, frame: bytes) -> None:
        self.map = map_name
        self.first = first
        self.end = first + count
        self.frame = frame
        self.taken: list[tuple[int, int]] = []  # accepted parts of it

    def accept(self, first: int, end: int) -> bool:
        """Notes that these are accepted; returns whether all of the frame's now are."""
        if first >= self.end or end <= self.first:
            return False
        if first <= self.first and end >= self.end:
            return True
        self.taken.append((max(first, self.first), min(end, self.end)))
        reached = self.first
        for start, stop in sorted(self.taken):
            if start <= reached:
                reached = max(reached, stop)
        return reached >= self.end


class Outbox:
    """Used by the main thread, which adds, and by helpers, which flush, accept and look; under a lock."""

    def __init__(self, send: Callable[[bytes], None], rss_bytes: Callable[[], int]) -> None:
        """`send` takes frames; it is called without the lock."""
        self._send = send
        self._rss_bytes = rss_bytes
        self._lock = threading.Lock()
        self._kept: list[Kept] = []
        self._map = ""
        self._first = 0
        self._codes = bytearray()
        self._data: list[bytes] = []
        self._blobs: list[Any] = []
        self._spent_ns = 0
        self._since_ns = 0

    def add(self, map_name: str, index: int, code: int, data: bytes, spent_ns: int, blobs: Any, now: int) -> bool:
        """Takes a result; `spent_ns` is how long the call ran, `blobs` the places of its large parts, or None.

        Returns whether it is time to flush.
        """
        if self._codes and (map_name != self._map or index != self._first + len(self._codes)):
            self.flush()
        with self._lock:
            if not self._codes:
                self._map, self._first, self._since_ns = map_name, index, now
            self._codes.append(code)
            self._data.append(data)
            self._spent_ns += spent_ns
            if blobs:
                self._blobs += blobs
            return len(self._codes) >= wire.FLUSH_RESULTS or now - self._since_ns >= _FLUSH_NS

    def flush_old(self) -> None:
        """Sends what has waited for 10 ms or more."""
        if self._codes and time.monotonic_ns() - self._since_ns >= _FLUSH_NS:
            self.flush()

    def flush(self) -> None:
        """Sends what is there."""
        if not self._codes:
            return
        rss_bytes = self._rss_bytes()
        with self._lock:
            count = len(self._codes)
            if not count:
                return
            done = wire.Done(
                self._map,
                self._first,
                bytes(self._codes),
                self._data,
                self._blobs,
                self._spent_ns // 1000,
                rss_bytes,
            )
            kept = Kept(self._map, self._first, count, wire.encode(done))
            self._kept.append(kept)  # before it leaves the gathered ones: rather twice than never
            self._codes, self._data, self._blobs, self._spent_ns = bytearray(), [], [], 0
        self._send(kept.frame)

    def accept(self, map_name: str, first: int, count: int) -> None:
        """Lets go of results that are needed no more."""
        end = first + count
        with self._lock:
            self._kept = [kept for kept in self._kept if kept.map != map_name or not kept.accept(first, end)]

    def frames(self) -> list[bytes]:
        """All that was sent and not accepted."""
        with self._lock:
            return [kept.frame for kept in self._kept]

    def unaccepted(self) -> list[tuple[str, int, int]]:
        """Ranges of the results that are here, those that touch as one."""
        with self._lock:
            ranges = [(kept.map, kept.first, kept.end) for kept in self._kept]
            if self._codes:
                ranges.append((self._map, self._first, self._first + len(self._codes)))
        merged: list[tuple[str, int, int]] = []
        for name, first, end in ranges:
            if merged and merged[-1][0] == name and merged[-1][1] + merged[-1][2] == first:
                merged[-1] = (name, merged[-1][1], end - merged[-1][1])
            else:
                merged.append((name, first, end - first))
        return merged


_FLUSH_NS = int(wire.FLUSH_S * 1e9)

"""A single-threaded loop: file descriptors, timers and one hook after each batch of events."""

from __future__ import annotations

import heapq
import selectors
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

READ = selectors.EVENT_READ
WRITE = selectors.EVENT_WRITE


class Timer:
    """A call that is due later. Only the loop runs it."""

    __slots__ = ("callback", "due", "order")

    def __init__(self, due: float, order: int, callback: Callable[[], None]) -> None:
        self.due = due
        self.order = order
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        """Forget the call; harmless when it has run already."""
        self.callback = None

    def __lt__(self, other: Timer) -> bool:
        return (self.due, self.order) < (other.due, other.order)


class Loop:
    """Runs callbacks for readable and writable descriptors and for timers, until `stop`."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers: list[Timer] = []
        self._order = 0
        self._code: int | None = None
        self.after_batch: Callable[[], None] | None = None

    def add(self, fd: int, events: int, callback: Callable[[], None]) -> None:
        """Call `callback` whenever `fd` is ready for one of `events`; a second call for the same fd replaces."""
        if fd in self._selector.get_map():
            self._selector.modify(fd, events, callback)
        else:
            self._selector.register(fd, events, callback)

    def remove(self, fd: int) -> None:
        """Stop watching `fd`; harmless when it is not watched. Call it before the descriptor is closed."""
        if fd in self._selector.get_map():
            self._selector.unregister(fd)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        """Call `callback` once, `delay_s` seconds from now."""
        self._order += 1
        timer = Timer(time.monotonic() + delay_s, self._order, callback)
        heapq.heappush(self._timers, timer)
        return timer

    def stop(self, code: int) -> None:
        """Let `run` return `code` after the current batch; the first call wins."""
        if self._code is None:
            self._code = code

    def run(self) -> int:
        """Run until `stop` and return its code."""
        while self._code is None:
            self.run_once()
        return self._code

    def close(self) -> None:
        """Give the selector's descriptor back."""
        self._selector.close()

    def run_once(self) -> None:
        """Wait for events or a due timer, and run what is ready."""
        for key, _ in self._selector.select(self._timeout_s()):
            # a callback earlier in this batch may have removed this one, or given its number to another
            current = self._selector.get_map().get(key.fd)
            if current is not None and current.data is key.data:
                key.data()
        now = time.monotonic()
        while self._timers and self._timers[0].due <= now:
            callback = heapq.heappop(self._timers).callback
            if callback is not None:
                callback()
        if self.after_batch is not None:
            self.after_batch()

    def _timeout_s(self) -> float | None:
        while self._timers and self._timers[0].callback is None:
            heapq.heappop(self._timers)
        if not self._timers:
            return None
        return max(0.0, self._timers[0].due - time.monotonic())

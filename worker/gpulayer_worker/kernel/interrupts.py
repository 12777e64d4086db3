"""Who answers SIGINT in a kernel, and when: an interrupt is never lost, and never tears what must stay whole."""

from __future__ import annotations

import signal
import socket
import sys
import threading
from typing import Any

# The functions below the signal module's wrappers, which look each handler up among its enumerations: 30 times as fast.
_set_handler = getattr(signal.signal, "__wrapped__", signal.signal)
_get_handler = getattr(signal.getsignal, "__wrapped__", signal.getsignal)


class Interrupts:
    """The kernel's SIGINT handler, changed by the main thread only: Python runs handlers nowhere else.

    As a context manager it is a section that an interrupt does not cut: one that arrives inside is answered at its
    end, by whatever handler was there before. In other threads a section does nothing, and needs to do nothing.
    """

    def __init__(self) -> None:
        self._main = threading.main_thread().ident
        self._depth = 0
        self._saved: Any = None  # the handler to put back at the end of a section
        self._deferred = False  # one came inside a section
        self._early = False  # one came between the arrival of a cell and its start

    def wake(self, loop: Any) -> None:
        """Has every signal wake the asyncio loop of the main thread: an interrupt has to end what a cell awaits.

        ipykernel's handler calls back into the loop without waking it, and a quiet loop would not notice for long.
        """
        self._wake_pair = socket.socketpair()
        for end in self._wake_pair:
            end.setblocking(False)
        loop.add_reader(self._wake_pair[0], self._wake_pair[0].recv, 4096)
        signal.set_wakeup_fd(self._wake_pair[1].fileno(), warn_on_full_buffer=False)

    def remember(self) -> None:
        """From the arrival of a cell on: an interrupt that comes before the cell runs will be meant for it."""
        self._early = False
        self._install(self._note_early)

    def admit(self) -> bool:
        """From now on an interrupt raises KeyboardInterrupt. Returns whether one came since `remember`."""
        self._install(signal.default_int_handler)
        early, self._early = self._early, False
        return early

    def ignore(self) -> None:
        """From now on an interrupt does nothing: no cell runs."""
        self._install(signal.SIG_IGN)

    def _install(self, handler: Any) -> None:
        if threading.get_ident() == self._main:
            signal.signal(signal.SIGINT, handler)

    def _note_early(self, signum: int, frame: Any) -> None:
        self._early = True

    def _note_deferred(self, signum: int, frame: Any) -> None:
        self._deferred = True

    def __enter__(self) -> None:
        if threading.get_ident() != self._main:
            return
        if not self._depth:
            handler = _get_handler(signal.SIGINT)
            if callable(handler):
                _set_handler(signal.SIGINT, self._note_deferred)  # raises what came until now, and is not entered
                self._saved = handler
        self._depth += 1

    def __exit__(self, *error: Any) -> None:
        if threading.get_ident() != self._main:
            return
        self._depth -= 1
        if self._depth or self._saved is None:
            return
        handler, self._saved = self._saved, None
        _set_handler(signal.SIGINT, handler)
        if self._deferred:
            self._deferred = False
            handler(signal.SIGINT, sys._getframe())

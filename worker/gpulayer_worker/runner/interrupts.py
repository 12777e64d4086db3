"""SIGINT in a runner: it interrupts the call that it is meant for, and nothing else."""

from __future__ import annotations

import _signal  # pyright: ignore[reportMissingImports] the C module has no stub
import signal
import threading
from typing import Any

from .inbox import Inbox

# The function below the signal module's wrapper, which looks each handler up among its enumerations.
_get_handler = _signal.getsignal


class Interrupts:
    """The process's SIGINT handler, which raises KeyboardInterrupt while `armed`, once. Made in the main thread."""

    def __init__(self, inbox: Inbox) -> None:
        self.armed = False  # a call of the user's is on the stack; only the main thread changes it
        self.wanted: tuple[str, int] | None = None  # the call that a signal of our own is for
        self._inbox = inbox
        self._main = threading.get_ident()
        signal.signal(signal.SIGINT, self._handle)
        self._mine = _get_handler(signal.SIGINT)

    def restore(self) -> None:
        """After a call: takes SIGINT back, and ends an alarm that the call has left behind."""
        if _get_handler(signal.SIGINT) is not self._mine:
            signal.signal(signal.SIGINT, self._handle)
            self._mine = _get_handler(signal.SIGINT)
        if _get_handler(signal.SIGALRM) is not signal.SIG_DFL and _get_handler(signal.SIGALRM):
            signal.setitimer(signal.ITIMER_REAL, 0)

    def arm(self) -> None:
        """The call begins. Raises KeyboardInterrupt when it is not wanted any more."""
        self.armed = True
        if self.wanted is not None:
            self._handle(signal.SIGINT, None)

    def send(self, map_name: str, index: int | None) -> int | None:
        """From the control thread: interrupts the call, or whichever of the map runs; its index, None for none."""
        with self._inbox.lock:
            running = self._inbox.running
            if running is None or running.map != map_name or index not in (None, self._inbox.index):
                return None
            self.wanted = (map_name, self._inbox.index)
            found = self._inbox.index
        signal.pthread_kill(self._main, signal.SIGINT)
        return found

    def _handle(self, signum: int, frame: Any) -> None:
        running = self._inbox.running
        wanted = self.wanted
        if wanted is not None and (running is None or wanted != (running.map, self._inbox.index)):
            self.wanted = None  # it was over before the signal came
            return
        if self.armed:
            self.armed, self.wanted = False, None
            raise KeyboardInterrupt

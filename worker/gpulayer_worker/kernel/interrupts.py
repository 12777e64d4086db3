"""Who answers SIGINT in a kernel, and when: an interrupt is never lost, and never tears what must stay whole."""

from __future__ import annotations

import _signal  # pyright: ignore[reportMissingImports] the C module has no stub
import os
import signal
import socket
import sys
import threading
from typing import Any

# The functions below the signal module's wrappers, which look each handler up among its enumerations: 30 times as fast.
_set_handler = _signal.signal
_get_handler = _signal.getsignal
_SIGNALS = range(1, 32)
_AGAIN_S = 0.01  # until an interrupt that Python dropped is sent again


class Interrupts:
    """The kernel's SIGINT handler, changed by the main thread only: Python runs handlers nowhere else.

    As a context manager it is a section that no signal handler cuts, a user's neither: what arrives inside is answered
    at its end, by whatever handler was there before. In other threads a section does nothing, and needs to do nothing.
    """

    def __init__(self) -> None:
        self._main = threading.main_thread().ident
        self._depth = 0
        self._saved: list[tuple[int, Any]] = []  # signals and the handlers to put back at the end of a section
        self._deferred: list[int] = []  # signals that came inside a section
        self._early = False  # an interrupt came between the arrival of a cell and its start
        self._cells = 0  # that came

    def wake(self, loop: Any) -> None:
        """Has every signal wake the asyncio loop of the main thread: an interrupt has to end what a cell awaits.

        ipykernel's handler calls back into the loop without waking it, and a quiet loop would not notice for long.
        """
        self._wake_pair = socket.socketpair()
        for end in self._wake_pair:
            end.setblocking(False)
        loop.add_reader(self._wake_pair[0], self._wake_pair[0].recv, 4096)
        signal.set_wakeup_fd(self._wake_pair[1].fileno(), warn_on_full_buffer=False)

    def keep(self) -> None:
        """Has an interrupt that Python would drop come again a moment later.

        It drops what is raised where nobody could catch it: in a `__del__`, or a callback of the garbage collector, of
        which ipykernel has one.
        """
        before = sys.unraisablehook

        def hook(unraisable: Any) -> None:
            try:
                if issubclass(unraisable.exc_type, KeyboardInterrupt):
                    self._come_again()
                else:
                    before(unraisable)
            except KeyboardInterrupt:  # the next one came just here, where it would be dropped, too
                self._come_again()

        sys.unraisablehook = hook

    def _come_again(self) -> None:
        again = threading.Timer(_AGAIN_S, self._again, (self._cells,))
        again.daemon = True
        again.start()

    def _again(self, cell: int) -> None:
        """Only the cell that it was meant for: no other one ends by it."""
        if cell == self._cells:
            os.kill(os.getpid(), signal.SIGINT)

    def remember(self) -> None:
        """From the arrival of a cell on: an interrupt that comes before the cell runs will be meant for it."""
        self._early = False
        self._cells += 1
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
        if signum not in self._deferred:
            self._deferred.append(signum)

    def __enter__(self) -> None:
        if threading.get_ident() != self._main:
            return
        if not self._depth:
            try:
                for signum in _SIGNALS:
                    handler = _get_handler(signum)
                    if callable(handler):
                        self._saved.append((signum, handler))
                        _set_handler(signum, self._note_deferred)  # raises what came until now
            except BaseException:
                self._restore()
                raise
        self._depth += 1

    def __exit__(self, *error: Any) -> None:
        if threading.get_ident() != self._main:
            return
        self._depth -= 1
        if self._depth or not self._saved:
            return
        raised = self._restore()
        while self._deferred:
            signum = self._deferred.pop(0)
            try:
                signal.raise_signal(signum)
            except BaseException as exception:  # noqa: BLE001 - raised below
                raised = exception
        if raised is not None:
            raise raised

    def _restore(self) -> BaseException | None:
        """Puts the handlers back, and returns what one of them raised meanwhile, if one did."""
        raised: BaseException | None = None
        while self._saved:
            try:
                while self._saved:
                    _set_handler(*self._saved[-1])
                    self._saved.pop()
            except BaseException as exception:  # noqa: BLE001 - raised by the caller
                raised = exception
        return raised

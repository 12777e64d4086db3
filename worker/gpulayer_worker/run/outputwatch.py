"""Telling what a command writes while it writes: the first of it at once, then every 20 ms, or 64 KiB."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path

from gpulayer_worker.run.commandspool import CommandSpool
from gpulayer_worker.watch import FolderWatch

log = logging.getLogger("gpulayer.worker")

_EVERY_S = 0.02
_AT_ONCE_BYTES = 64 * 1024
_POLL_S = 0.25  # where the machine has no more watches to give


class OutputWatch:
    """Looks at a command's files as they grow, from `start` to `stop`.

    Arguments:
        watch: tells when something in the folder changed.
        folder: the attempt's.
        spool: what the files are taken up in.
        grew: is called when there is more in it than before.
    """

    def __init__(self, watch: FolderWatch, folder: Path, spool: CommandSpool, grew: Callable[[], None]):
        self._watch = watch
        self._folder = folder
        self._spool = spool
        self._grew = grew
        self._on = False
        self._timer: asyncio.TimerHandle | None = None
        self._next_s = 0.0

    def start(self) -> None:
        """Watch from now on; what is there is told at once."""
        self._on = True
        try:
            self._watch.add(self._folder, self._changed)
        except OSError as error:
            log.warning("%s can't be watched, so it is looked at: %s", self._folder, error)
            self._poll()

    def stop(self) -> None:
        """Watch no more. Harmless when repeated."""
        if self._on:
            self._on = False
            self._watch.remove(self._folder)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _changed(self) -> None:
        if not self._on:
            return
        wait_s = self._next_s - time.monotonic()
        if wait_s <= 0 or self._spool.fresh_bytes() >= _AT_ONCE_BYTES:
            self._look()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._look)

    def _look(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._next_s = time.monotonic() + _EVERY_S
        try:
            more = self._spool.look()
        except OSError as error:  # a full disk: it is looked at again with the next change, and at the end
            log.warning("what was written in %s can't be taken up: %s", self._folder, error)
            return
        if more:
            self._grew()

    def _poll(self) -> None:
        if self._on:
            self._look()
            self._timer = asyncio.get_running_loop().call_later(_POLL_S, self._poll)

"""Finding a control plane of this machine as soon as it comes, or comes back."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from gpulayer_worker.watch import FolderWatch

log = logging.getLogger("gpulayer.worker")


class PlaneWatch:
    """Watches its data folder while nobody answers: its database, which is busy afterwards, lies there too."""

    def __init__(self, watch: FolderWatch, folder: Path | None, look: Callable[[], None]):
        """`folder` None: it is elsewhere. `look` is called when something changed there."""
        self._watch = watch
        self._folder = folder if watch.told else None  # else it is looked at now and then all the same
        self._look = look

    def away(self) -> None:
        """Nobody answers."""
        if self._folder is None:
            return
        try:
            self._watch.add(self._folder, self._look)
        except OSError as error:
            log.info("%s can't be watched, so that it is looked at now and then: %s", self._folder, error)

    def here(self) -> None:
        """Somebody does."""
        if self._folder is not None:
            self._watch.remove(self._folder)

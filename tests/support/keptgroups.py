"""A keeper's groups in this very process: children are reaped when the test says so."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpulayer_worker.keeper.containment import Containment
from gpulayer_worker.keeper.context import Context
from gpulayer_worker.keeper.eventloop import Loop
from gpulayer_worker.keeper.groups import Groups
from gpulayer_worker.keeper.records import Folder


class KeptGroups:
    """One keeper's groups, its loop, and what they tell."""

    def __init__(self, root: Path, containment: Containment) -> None:
        self.root = root
        self.loop = Loop()
        self.folder = Folder(str(root / "worker"))
        self.folder.prepare()
        self.events: list[dict[str, Any]] = []
        context = Context(loop=self.loop, folder=self.folder, portable=False)
        self.groups = Groups(context, containment, self.events.append)
        self.loop.after_batch = self.groups.settle

    def reap(self) -> None:
        """Wait for every main process to end, and tell the groups."""
        for pid in list(self.groups._by_pid):
            self.groups.reaped(*os.wait4(pid, 0))

    def run_until(self, done: Callable[[], bool]) -> None:
        """Let the loop run until something is so."""
        for _ in range(1000):
            if done():
                return
            self.loop.call_later(0.01, lambda: None)
            self.loop.run_once()
        raise AssertionError(f"it did not come about: {self.events}")

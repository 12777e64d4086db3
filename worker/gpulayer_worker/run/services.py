"""What a run needs of its agent, and how it ends early."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Protocol

from gpulayer.protocol.endpoint import Endpoint
from gpulayer.protocol.types import Device, Outcome
from gpulayer_worker import link
from gpulayer_worker.keeperlink import KeeperLink
from gpulayer_worker.kernels import Kernel, Kernels
from gpulayer_worker.layout import Layout
from gpulayer_worker.machine import Machine
from gpulayer_worker.rooms import Rooms
from gpulayer_worker.runners import Runners
from gpulayer_worker.watch import FolderWatch
from gpulayer_worker.workspace import Workspaces


class Services(Protocol):
    """The agent, as its runs see it."""

    layout: Layout
    kernels: Kernels
    workspaces: Workspaces
    watch: FolderWatch
    machine: Machine
    reserve_bytes: int

    keeper: KeeperLink
    runners: Runners
    rooms: Rooms
    portable: bool

    @property
    def devices(self) -> tuple[Device, ...]:
        """What the machine has."""
        ...

    @property
    def ram_bytes(self) -> int:
        """Of the machine, within its limits."""
        ...

    sessions: dict[str, Kernel]
    ended_sessions: dict[str, asyncio.Event]

    def emit(self, *events: link.Event) -> None: ...

    def report(self, event: link.Began | link.Ended | link.Gone) -> None:
        """As `emit`, together with what other attempts report in the same moment."""
        ...

    def go_on(self, attempt: str, work: Coroutine[Any, Any, object]) -> None:
        """Do something that takes its time. A fault in it ends the attempt, and says so."""
        ...

    def failed(self, attempt: str, error: Exception) -> None:
        """A fault of ours, or of the disk's, ends an attempt."""
        ...

    def endpoint(self) -> Endpoint: ...

    def blobs_beside(self) -> Path | None:
        """The control plane's own blobs, where its data folder lies on this machine."""
        ...

    def session_ready(self, session: str, kernel: Kernel) -> None: ...

    def leave_session(self, session: str, reason: str) -> None: ...


class Over(Exception):
    """The attempt ends here, before its cell ran."""

    def __init__(self, outcome: Outcome):
        super().__init__(outcome.problem)
        self.outcome = outcome


class GiveBack(Exception):
    """Nothing ran, and this worker can't run it: the control plane places it anew."""

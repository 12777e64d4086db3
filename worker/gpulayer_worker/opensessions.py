"""The sessions of an agent: from when a kernel is up to when nothing of it is left."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from gpulayer_worker import link
from gpulayer_worker.kernels import Kernel, Kernels
from gpulayer_worker.layout import Layout
from gpulayer_worker.workspace import Workspaces

_LEAVE_S = 2.0  # so long a kernel that ends by itself has for it


class _Run(Protocol):
    ended: asyncio.Event

    @property
    def kernel(self) -> Kernel | None: ...


class _Agent(Protocol):
    layout: Layout
    kernels: Kernels
    workspaces: Workspaces

    def emit(self, *events: link.Event) -> None: ...


class OpenSessions:
    """Owns `kernels`, by the sessions' ids, and `ended`.

    Arguments:
        agent: whose sessions they are.
        runs: the runs that there are now.
        spawn: starts a task of the agent's.
    """

    def __init__(
        self, agent: _Agent, runs: Callable[[], list[_Run]], spawn: Callable[[Coroutine[Any, Any, None]], None]
    ):
        self.kernels: dict[str, Kernel] = {}
        self.ended: dict[str, asyncio.Event] = {}  # set once the control plane was told, or will be by a hello
        self._agent = agent
        self._runs = runs
        self._spawn = spawn
        self._ending: set[str] = set()

    def ready(self, session: str, kernel: Kernel) -> None:
        """A session's kernel is up: when it dies, by itself or by us, the session is over."""
        self.kernels[session] = kernel
        kernel.exit.add_done_callback(lambda _: self._spawn(self._died(session, kernel)))

    async def _died(self, session: str, kernel: Kernel) -> None:
        if self.kernels.get(session) is kernel:
            await self.end(session, "its kernel died")

    def leave(self, session: str, reason: str) -> None:
        """Its own cell ended it: what is assigned to it from now on is given back."""
        self.ended.setdefault(session, asyncio.Event())
        self._spawn(self.end(session, reason, grace_s=_LEAVE_S))

    async def end(self, session: str, reason: str, *, grace_s: float = 0.0) -> None:
        """End a session with all of its processes, and say so; its kernel has `grace_s` to end by itself."""
        if session in self._ending:
            return  # whoever is at it tells, once nothing of it is left
        self._ending.add(session)
        told = self.ended.setdefault(session, asyncio.Event())
        kernel = self.kernels.pop(session, None)
        if kernel is not None:
            if grace_s:
                await asyncio.wait({kernel.exit}, timeout=grace_s)
            await self._agent.kernels.kill(kernel)
            for run in [run for run in self._runs() if run.kernel is kernel]:
                await run.ended.wait()  # its record of the end reads how the kernel died
            await self._agent.kernels.end(kernel.name)
        folder = self._agent.layout.session(session)
        self._agent.workspaces.forget(folder / "files.json")
        await asyncio.to_thread(shutil.rmtree, folder, True)
        self._agent.emit(link.SessionGone(session=session, reason=reason))
        told.set()

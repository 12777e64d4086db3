"""Holds the control plane of this user and machine, or stands by until its holder ends."""

from __future__ import annotations

import asyncio
import logging
import os
import stat
import subprocess
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpulayer.client.embedded import lives
from gpulayer.protocol.endpoint import Endpoint, read_endpoint
from gpulayer_jupyter.place import State, Status

if TYPE_CHECKING:
    from gpulayer_server.datafolder import DataFolder
    from gpulayer_server.service import Service

log = logging.getLogger("gpulayer.jupyter")

_FIRST_RETRY_S = 2.0
_LAST_RETRY_S = 60.0
_WORKER_RETRIES_S = (2.0, 4.0, 8.0, 16.0)  # a worker of before may be ending, and hold the folder until then
_WORKER_END_S = 5.0
_END_S = 15.0  # a control plane that does not end by then is left to the end of the process


class Host:
    """The control plane of a data folder, in this process as soon as no other holds it.

    `run` and `stop` belong to one loop, on which the control plane lives; `endpoint` and `status` to any thread.
    """

    def __init__(
        self, data: Path, *, local_worker: bool = True, worker_arguments: tuple[str, ...] = (), listen: str = ""
    ):
        """A control plane that is not held yet.

        Arguments:
            local_worker: start a worker on this machine, with these further arguments, once the folder is ours.
            listen: HOST:PORT for other machines; '': where they found it before, if they did.
        """
        self._data = data
        self._listen = listen
        self._local_worker = local_worker
        self._worker_arguments = worker_arguments
        self._state: State = "starting"
        self._failure = ""
        self._stopping = asyncio.Event()
        self._over = asyncio.Event()
        self._service: Service | None = None
        self._started: list[subprocess.Popen[bytes]] = []  # local workers, of which one at most holds its folder

    # ---------------------------------------------------------------- looking

    def endpoint(self) -> Endpoint | None:
        """What the data folder names, if its process lives."""
        try:
            found = read_endpoint(self._data)
        except OSError:
            return None
        return found if found is not None and lives(found.pid) else None

    def status(self) -> Status:
        """Who holds the control plane, or what is wrong."""
        return Status(state=self._state, text=self._text(), data=str(self._data))

    def _text(self) -> str:
        if self._state == "failed":
            return self._failure
        if self._state == "holds":
            return f"the control plane runs in this Jupyter server, its data in {self._data}"
        if self._state == "starting":
            return f"the control plane in {self._data} is starting"
        holder = self.endpoint()
        who = f"process {holder.pid}" if holder is not None else "another process, which has not said where it listens"
        return f"uses the control plane of {who}, its data in {self._data}; takes over when that ends"

    async def busy(self) -> bool:
        """Whether a job or a session lives in the control plane that this process holds."""
        return self._service is not None and not self._service.shell.plane.idle()

    # ---------------------------------------------------------------- its life

    async def run(self) -> None:
        """Hold the control plane until `stop`. What goes wrong is said in one line, and tried again."""
        retry_s = _FIRST_RETRY_S
        try:
            while not self._stopping.is_set():
                try:
                    if await self._hold():
                        retry_s = _FIRST_RETRY_S
                except Exception as error:  # noqa: BLE001 Jupyter's server goes on without a control plane
                    self._fail(error)
                    await self._pause(retry_s)
                    retry_s = min(_LAST_RETRY_S, retry_s * 2)
        finally:
            self._over.set()

    async def stop(self) -> None:
        """End: jobs go on, and the local worker with them; without any job or session it ends too."""
        self._stopping.set()
        await self._over.wait()

    async def _hold(self) -> bool:
        """Take the folder, wait for it where another holds it, and serve; whether it came so far."""
        from gpulayer_server.datafolder import read_listen
        from gpulayer_server.service import Service  # it takes its time, and there are systems that lack its needs

        listen = read_listen(self._listen) if self._listen else None
        folder = await self._take()
        if folder is None:
            return False
        service = Service(folder, listen=listen)
        await service.start()
        self._service, self._state, self._failure = service, "holds", ""
        try:
            if self._local_worker:
                await self._start_local_worker(service)
            await self._stopping.wait()
        finally:
            self._service = None
            await self._end(service)
        return True

    async def _take(self) -> DataFolder | None:
        from gpulayer_server.datafolder import DataFolder, FolderHeld, when_free

        try:
            folder = DataFolder(self._data)
        except FolderHeld as held:
            self._state, self._failure = "attached", ""
            log.info("standing by: %s", held)
            folder = await self._unless_stopped(when_free(self._data))
        if folder is not None:
            try:
                _make_private(self._data)
            except BaseException:
                folder.close()
                raise
        return folder

    async def _start_local_worker(self, service: Service) -> None:
        """Start it, and again where it does not come: the one of before may just have been ending."""
        for patience_s in _WORKER_RETRIES_S:
            self._started.append(service.start_local_worker(*self._worker_arguments))
            if await self._joined(service, patience_s):
                return
        log.warning("the local worker did not join yet; %s/logs/local-worker.log says more", self._data)

    async def _joined(self, service: Service, patience_s: float) -> bool:
        """Whether a local worker joins in that time; also true where nobody waits for it any more."""
        deadline = asyncio.get_running_loop().time() + patience_s
        while asyncio.get_running_loop().time() < deadline:
            if any(worker.local and worker.conn is not None for worker in service.shell.plane.workers.values()):
                return True
            await self._pause(0.25)  # the plane tells nobody here of its workers
            for process in self._started:
                process.poll()  # one that found the folder held has ended: it is not left as a zombie
            if self._stopping.is_set():
                return True
        return False

    async def _end(self, service: Service) -> None:
        idle = self._local_worker and service.shell.plane.idle()
        try:
            await asyncio.wait_for(service.stop(with_local_worker=idle), _END_S)
            if idle:
                await asyncio.to_thread(_end_all, self._started)
        except (asyncio.TimeoutError, subprocess.TimeoutExpired):
            log.error("the control plane in %s, or its local worker, did not end in time", self._data)

    def _fail(self, error: Exception) -> None:
        text = f"the control plane can't run: {error}"
        if self._state != "failed" or self._failure != text:
            known = isinstance(error, (RuntimeError, OSError, ImportError, ValueError))
            log.error("%s", text, exc_info=None if known else error)
        self._state, self._failure = "failed", text

    async def _pause(self, seconds: float) -> None:
        """Wait for so long, or until told to end."""
        try:
            await asyncio.wait_for(self._stopping.wait(), seconds)
        except asyncio.TimeoutError:
            return

    async def _unless_stopped(self, wanted: Coroutine[Any, Any, DataFolder]) -> DataFolder | None:
        told = asyncio.ensure_future(self._stopping.wait())
        waiting = asyncio.ensure_future(wanted)
        try:
            await asyncio.wait({told, waiting}, return_when=asyncio.FIRST_COMPLETED)
            return waiting.result() if waiting.done() else None
        finally:
            told.cancel()
            waiting.cancel()


def _make_private(folder: Path) -> None:
    """Let nobody else in: what is written there gets the permissions that Jupyter's files get. Raises OSError."""
    mode = stat.S_IMODE(folder.stat().st_mode)
    if os.name == "posix" and mode & 0o077:
        folder.chmod(mode & ~0o077)
        log.info("%s is now open to its owner only", folder)


def _end_all(workers: list[subprocess.Popen[bytes]]) -> None:
    """End local workers that were told to, or had not joined yet. Raises `TimeoutExpired`."""
    for worker in workers:
        worker.terminate()  # of one that has ended nothing is there to be told
    for worker in workers:
        worker.wait(_WORKER_END_S)

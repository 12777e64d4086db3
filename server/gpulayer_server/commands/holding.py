"""Who holds the control plane that `gpulayer up` shows: this process, or another one, until that ends."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import httpx
import msgspec

from gpulayer.protocol.endpoint import Endpoint, read_endpoint
from gpulayer.protocol.problems import problem_in
from gpulayer_server.datafolder import DataFolder, FolderHeld, Listen, when_free
from gpulayer_server.http.listen import ListenBody, Listening
from gpulayer_server.listening import default_address, reachable
from gpulayer_server.service import Service

log = logging.getLogger("gpulayer.server")

_PATIENCE_S = 20.0  # whoever has just taken the folder says by then where it listens
_LOOK_S = 0.1
_END_S = 15.0


class UpError(RuntimeError):
    """It can't begin, or go on: one line that says why and what to do."""


@dataclass(frozen=True, kw_only=True)
class Where:
    """What other machines need to know."""

    url: str
    fingerprint: str


class Holding:
    """The control plane of a data folder: ours, or another process's until that ends. On one loop."""

    def __init__(
        self, data: Path, host: str | None, port: int | None, default_port: int, worker_arguments: list[str] | None
    ):
        """`host`, `port`: None for what was before, or the default. `worker_arguments`: None for no local worker."""
        self.data = data
        self._host, self._port, self._default_port = host, port, default_port
        self._worker_arguments = worker_arguments
        self.service: Service | None = None
        self.where = Where(url="", fingerprint="")
        self.moved_from = ""  # where it was found before, if that was elsewhere
        self.holder = 0  # the pid of the process that holds it, if that is another one
        self._workers: list[subprocess.Popen[bytes]] = []

    def endpoint(self) -> Endpoint | None:
        """Where the control plane is now, on this machine."""
        return self.service.endpoint if self.service is not None else read_endpoint(self.data)

    # ---------------------------------------------------------------- its life

    async def begin(self) -> None:
        """Hold it and listen, or let its holder listen.

        Raises `UpError`, and what `DataFolder` and `Service.start` raise; nothing listens then that did not before.
        """
        try:
            folder = DataFolder(self.data)
        except FolderHeld:
            await self._attach()
            return
        before = folder.listen
        try:
            listen = self._wanted(before)
        except BaseException:
            folder.close()
            raise
        await self._hold(folder, listen, before)

    async def run(self) -> None:
        """Where another process holds it, take its place once that ends."""
        if self.service is None:
            folder = await when_free(self.data)
            log.info("the control plane's holder has ended: taking over")
            await self._hold(folder, None, None)
        await asyncio.Event().wait()

    async def end(self) -> str:
        """End what is ours; a line on what goes on."""
        service, self.service = self.service, None
        if service is None:
            if not self.holder:
                return ""
            return f"the control plane goes on in process {self.holder}; other machines still reach it"
        log.info("told to end: its end has begun")
        live = service.live_jobs
        idle = service.shell.plane.idle()
        try:
            await asyncio.wait_for(service.stop(with_local_worker=idle), _END_S)
        except asyncio.TimeoutError:
            log.error("the control plane did not end within %g s", _END_S)
            return "ended without waiting any longer; `gpulayer up` again finds all that was accepted"
        if idle:
            await asyncio.to_thread(_end_all, self._workers)
            return "ended; `gpulayer up` listens at the same address again, and joined machines come back by themselves"
        stays = f"{live} job{'s go' if live != 1 else ' goes'} on" if live else "sessions stay"
        return f"ended; {stays}, on this machine too: `gpulayer up` again is back with them, and nothing is lost"

    async def _hold(self, folder: DataFolder, listen: Listen | None, before: Listen | None) -> None:
        service = Service(folder, listen=listen)
        await service.start()
        self.service, self.holder = service, 0
        listener = service.listener
        if listener.where is not None and listener.certificate is not None:
            self._listens(listener.where, listener.certificate.fingerprint, before)
        if self._worker_arguments is not None:
            self._workers.append(service.start_local_worker(*self._worker_arguments))

    async def _attach(self) -> None:
        """Ask the holder to listen. Raises `UpError`."""
        deadline = asyncio.get_running_loop().time() + _PATIENCE_S
        while True:
            endpoint = read_endpoint(self.data)
            answer = await self._ask(endpoint) if endpoint is not None else None
            if endpoint is not None and answer is not None:
                self.holder = endpoint.pid
                now, before = answer
                self._listens(Listen(host=now.host, port=now.port), now.fingerprint, before)
                return
            if asyncio.get_running_loop().time() > deadline:
                text = f"{self.data} is held by another process, which does not answer"
                raise UpError(f"{text}; end it (its pid is in {self.data}/lock), or give another --data")
            await asyncio.sleep(_LOOK_S)  # another process starts: there is nothing to wait for

    async def _ask(self, endpoint: Endpoint) -> tuple[Listening, Listen | None] | None:
        """Where it listens now, and where it did before; None where somebody else answers, or nobody."""
        before: Listen | None = None
        headers = {"Authorization": f"Bearer {endpoint.token}"}
        try:
            async with httpx.AsyncClient(base_url=endpoint.url, headers=headers, trust_env=False, verify=False) as http:
                answer = await http.get("/v1/listen")
                if answer.status_code == 200:
                    now = msgspec.json.decode(answer.content, type=Listening)
                    before = Listen(host=now.host, port=now.port) if now.host else None
                    wanted = self._wanted(before)
                    if before is not None and wanted == Listen(host=before.host, port=0):
                        wanted = before  # any port: then the one that machines know is as good
                    body = msgspec.json.encode(ListenBody(host=wanted.host, port=wanted.port))
                    answer = await http.post("/v1/listen", content=body)
        except (httpx.HTTPError, msgspec.MsgspecError):
            return None
        if answer.status_code == 200:
            return msgspec.json.decode(answer.content, type=Listening), before
        problem = problem_in(answer.headers.get("Content-Type", ""), answer.content)
        if answer.status_code == 401 or problem is None:
            return None  # one has just started there, and its file is not written yet: who answers is somebody else
        if answer.status_code == 404:
            text = f"process {endpoint.pid} holds {self.data} with an older GPUlayer, which listens for nobody else"
            raise UpError(f"{text}; end it, such as a Jupyter server, and run this again")
        raise UpError(problem.line())

    def _wanted(self, before: Listen | None) -> Listen:
        """Where to listen: as was asked, else as before where that is still an address of ours."""
        port = self._port if self._port is not None else before.port if before is not None else self._default_port
        if self._host is not None:
            return Listen(host=self._host, port=port)
        if before is not None and before.host and self._port is None:
            return before if reachable(before.host) != before.host or _is_ours(before.host) else _at(port)
        return _at(port)

    def _listens(self, where: Listen, fingerprint: str, before: Listen | None) -> None:
        shown = Listen(host=reachable(where.host), port=where.port)
        was = Listen(host=reachable(before.host), port=before.port) if before is not None else shown
        self.moved_from = was.url if was != shown else ""
        self.where = Where(url=shown.url, fingerprint=fingerprint)


def _at(port: int) -> Listen:
    return Listen(host=default_address(), port=port)


def _is_ours(host: str) -> bool:
    """Whether this machine still has the address."""
    import socket

    try:
        family, _, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_STREAM) as trying:
            trying.bind(address)
    except (OSError, ValueError):
        return False
    return True


def _end_all(workers: list[subprocess.Popen[bytes]]) -> None:
    """End local workers that were told to, or had not joined yet."""
    for worker in workers:
        worker.terminate()
    for worker in workers:
        try:
            worker.wait(5.0)
        except subprocess.TimeoutExpired:
            log.error("the local worker (pid %d) did not end in time; it ends by itself", worker.pid)


def machine() -> str:
    """This machine's name."""
    return os.uname().nodename

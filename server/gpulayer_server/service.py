"""A control plane that listens: the shell, its HTTP server on loopback, its end."""

from __future__ import annotations

import asyncio
import getpass
import logging
import os
import secrets
import socket
import subprocess
from pathlib import Path

from tornado.httpserver import HTTPServer
from tornado.web import Application

from gpulayer._version import __version__
from gpulayer.protocol.endpoint import Endpoint
from gpulayer.protocol.types import FRAME_DATA_BYTES
from gpulayer_server import localworker
from gpulayer_server.core.events import LocalWorkerExpected, ShutdownWanted
from gpulayer_server.core.state import Settings
from gpulayer_server.datafolder import DataFolder, Listen
from gpulayer_server.http import listen as listening
from gpulayer_server.http.app import make_app
from gpulayer_server.listening import MAX_BUFFER_BYTES, Listener
from gpulayer_server.shell import Shell

log = logging.getLogger("gpulayer.server")


class Service:
    """One control plane in one data folder. Use it on one loop, which owns its thread."""

    def __init__(
        self,
        data: Path | DataFolder,
        *,
        port: int = 0,
        settings: Settings | None = None,
        listen: Listen | None = None,
    ):
        """A control plane that is not started yet.

        Arguments:
            data: a folder, which is taken now, or one that was taken.
            port: on loopback; 0: the last one, or any.
            listen: where other machines find it, by TLS; None: where they did before, and nowhere if nobody ever said.

        Raises as `DataFolder` does.
        """
        self.folder = data if isinstance(data, DataFolder) else DataFolder(data)
        self.data = self.folder.path
        self._wanted_port = port
        self._wanted_listen = listen
        self._workers: list[subprocess.Popen[bytes]] = []  # that were started here
        self._settings = settings

    async def start(self) -> Endpoint:
        """Load the store, listen, say where. The epoch is on disk before the port is open.

        Raises `StoreError`, `DataFolderError` or `ListenError`; the folder is free then.
        """
        try:
            self.shell = Shell(self.folder, self._settings)
        except BaseException:
            self.folder.close()
            raise
        token = secrets.token_urlsafe(32)
        app = make_app(self.shell, token, getpass.getuser())
        self.listener = app.settings[listening.SETTING] = Listener(app, self.folder)
        try:
            if self._wanted_listen is not None:
                await self.listener.open(self._wanted_listen)
            endpoint = self._listen(app, token)
        except BaseException:
            await self.listener.close()
            await self.shell.close()
            raise
        if self._wanted_listen is None:
            self.listener.reopen()
        return endpoint

    def _listen(self, app: Application, token: str) -> Endpoint:
        self._server = HTTPServer(app, max_buffer_size=MAX_BUFFER_BYTES, chunk_size=FRAME_DATA_BYTES)
        listening = _bind(self._wanted_port or self.folder.last_port)
        self._server.add_sockets([listening])
        port = listening.getsockname()[1]
        self.endpoint = Endpoint(
            url=f"http://127.0.0.1:{port}", token=token, pid=os.getpid(), version=__version__, epoch=self.shell.epoch
        )
        self.folder.publish(self.endpoint)
        log.info("control plane %s listens on %s, data in %s", __version__, self.endpoint.url, self.data)
        return self.endpoint

    def start_local_worker(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a worker on this machine, in a session of its own; one that holds its folder already stays."""
        worker = localworker.start(self.data, list(arguments))
        self.expect_local_worker(worker)
        return worker

    def expect_local_worker(self, worker: subprocess.Popen[bytes]) -> None:
        """One was started: until it is here, work that it may be able to do waits for it."""
        self.shell.handle(LocalWorkerExpected(until=self.shell.clock.now() + 30.0))
        self._workers.append(worker)

    @property
    def live_jobs(self) -> int:
        """How many jobs have not ended."""
        return len(self.shell.plane.jobs)

    async def until_unused(self, idle_s: float) -> None:
        """Return once there has been no client, live job or session for `idle_s` seconds."""
        clock = self.shell.clock
        used_at = clock.now()
        while clock.now() - used_at < idle_s:
            await asyncio.sleep(min(1.0, idle_s / 4))  # a condition over time: there is no event to await
            if self.shell.clients or not self.shell.plane.idle():
                used_at = clock.now()

    async def stop(self, *, with_local_worker: bool) -> None:
        """End; local workers end too if asked, and are waited for a while. Jobs elsewhere go on."""
        if with_local_worker:
            self.shell.handle(ShutdownWanted(reason="the control plane ends"))
            for _ in range(100):
                if not any(w.local and w.conn is not None for w in self.shell.plane.workers.values()):
                    break
                await asyncio.sleep(0.05)
        self._server.stop()
        await self.listener.close()
        await self.shell.close()
        await self._server.close_all_connections()


def _bind(port: int) -> socket.socket:
    """Listen on loopback: on the wanted port, or on any if that is taken."""
    try:
        listening = socket.create_server(("127.0.0.1", port), backlog=128)
    except OSError:
        listening = socket.create_server(("127.0.0.1", 0), backlog=128)
    listening.setblocking(False)
    return listening

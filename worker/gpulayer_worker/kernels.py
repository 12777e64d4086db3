"""Kernels: real ipykernels over IPC sockets, one kept warm, found again by a new agent."""

from __future__ import annotations

import asyncio
import logging
import secrets
import shutil
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gpulayer.protocol as protocol_package
from gpulayer.protocol.lazily import Lazily
from gpulayer.protocol.messages import CommMessage
from gpulayer.protocol.records import encode_kernel
from gpulayer_worker import kernel as kernel_package
from gpulayer_worker.environ import allowed
from gpulayer_worker.keeper.client import ExitRecord, KeeperError
from gpulayer_worker.keeperlink import KeeperLink
from gpulayer_worker.layout import Layout

if TYPE_CHECKING:  # a worker that runs no cells does without: they take a tenth of a second
    import zmq
    import zmq.asyncio
    from jupyter_client.session import Session
else:
    zmq = Lazily("zmq")

log = logging.getLogger("gpulayer.worker")

_READY_S = 60.0
_STARTS = 3  # of a kernel whose keepers die
PORT = 6  # the kernel's own socket for requests, after the five of Jupyter: see kernel/direct.py
_TAIL_BYTES = 64 * 1024  # a crash is reported with the frames of all threads
_RUNNER = Path(kernel_package.__file__).with_name("main.py")
_RECORDS = Path(protocol_package.__file__).with_name("records.py")
_FAILPOINTS = Path(protocol_package.__file__).with_name("failpoints.py")


class KernelError(RuntimeError):
    """A kernel that did not come up, with the last lines that it wrote."""


class _Unknown(KernelError):
    """Such a kernel whose keeper died too: it may have been well."""


@dataclass
class Kernel:
    """A kernel process and the ways to it: its own socket for requests, and the shell channel."""

    name: str
    folder: Path
    session: Session
    socket: zmq.asyncio.Socket
    exit: asyncio.Future[ExitRecord]
    direct: asyncio.WriteTransport | None = None

    def execute(self, attempt: str, code: str, metadata: dict[str, Any]) -> None:
        """Send a cell; the request's id is the attempt's, and a kernel runs an attempt at most once."""
        content = {"code": code, "silent": False, "store_history": True, "allow_stdin": False, "stop_on_error": False}
        message = self.session.msg("execute_request", content, metadata={"gpulayer": metadata})
        message["header"]["msg_id"] = message["msg_id"] = attempt
        frames = self.session.serialize(message)
        if self.direct is not None and not self.direct.is_closing():
            self.direct.write(encode_kernel(frames))
            return
        plain: zmq.Socket[bytes] = zmq.Socket.shadow(self.socket.underlying)  # the same one, without a loop
        while plain.poll(0):
            plain.recv_multipart()  # replies of earlier cells, which nobody needs
        plain.send_multipart(frames, flags=zmq.NOBLOCK)

    def tail(self) -> str:
        """The last lines that the process itself wrote: what it said when it died."""
        try:
            data = (self.folder / "kernel.log").read_bytes()[-_TAIL_BYTES:]
        except FileNotFoundError:
            return ""
        return data.decode(errors="replace").strip()


class Kernels:
    """Owns this worker's kernel processes, by way of the keeper."""

    def __init__(self, layout: Layout, keeper: KeeperLink, *, python: str = sys.executable, warm: int = 1):
        self._layout = layout
        self._keeper = keeper
        self._python = python
        self._warm_wanted = warm
        self._warm: list[asyncio.Task[Kernel]] = []
        self._made_context: zmq.asyncio.Context | None = None
        self._sockets: dict[str, list[zmq.asyncio.Socket]] = {}
        self._transports: dict[str, list[asyncio.WriteTransport]] = {}
        self._controls: dict[str, zmq.Socket[bytes]] = {}  # to the control channels of kernels that have widgets
        self._closing = False

    @property
    def _context(self) -> zmq.asyncio.Context:
        """Made for the first kernel."""
        if self._made_context is None:
            import zmq.asyncio

            self._made_context = zmq.asyncio.Context()
        return self._made_context

    def keep_warm(self) -> None:
        """Start warm kernels until as many as wanted are there or on their way."""
        while not self._closing and len(self._warm) < self._warm_wanted:
            self._warm.append(asyncio.create_task(self._start()))

    async def take(self, owner: str) -> Kernel:
        """A fresh kernel, warm if there is one; `owner` is noted: it is warm no more."""
        self.keep_warm()
        kernel = await self._warm_one() or await self._start()
        self.keep_warm()  # the next cell finds one too
        self._layout.note(kernel.folder, "owner", {"owner": owner})
        return kernel

    async def _warm_one(self) -> Kernel | None:
        """The warm kernel; None where there is none, or one that did not come up or died since: that says nothing now.

        Raises asyncio.CancelledError.
        """
        if not self._warm:
            return None
        try:
            kernel = await self._warm.pop(0)
        except (KernelError, KeeperError, OSError) as error:
            log.warning("a warm kernel did not come up: %s", error)
            return None
        if not kernel.exit.done():
            return kernel
        await self.end(kernel.name)
        return None

    async def find(self, name: str) -> Kernel | None:
        """A kernel that an agent before us started, alive or not; None where nothing is left of it."""
        folder = self._layout.kernel(name)
        connection = self._layout.noted(folder, "connection")
        if connection is None:
            return None
        kernel = await self._open(name, folder, connection)
        await self._connect(kernel, connection)
        return kernel

    async def clean(self, kept: set[str]) -> None:
        """End kernels of before but those with these names; warm ones go on being warm."""
        alive = await self._keeper.groups()
        for folder in sorted(self._layout.data.glob("kernels/*")):
            if folder.name in kept:
                continue
            unused = self._layout.noted(folder, "owner") is None
            if unused and folder.name in alive and len(self._warm) < self._warm_wanted:
                self._warm.append(asyncio.create_task(self._ready_again(folder.name)))
            else:
                await self.end(folder.name)

    def tell_comm(self, kernel: Kernel, message: CommMessage) -> None:
        """Send what a page says to a widget of the kernel; lost where the kernel is behind with such messages."""
        control = self._controls.get(kernel.name)
        if control is None:
            connection = self._layout.noted(kernel.folder, "connection")
            if connection is None:
                return
            control = self._controls[kernel.name] = zmq.Context.shadow(self._context.underlying).socket(zmq.DEALER)
            control.linger = 0
            control.connect(f"ipc://{connection['ip']}-{connection['control_port']}")
        request = kernel.session.msg("gpulayer_comm_request", {"kind": message.kind})
        try:
            control.send_multipart([*kernel.session.serialize(request), *message.parts], flags=zmq.NOBLOCK)
        except zmq.Again:
            log.info("kernel %s is behind: a message to a widget is lost", kernel.name)

    async def interrupt(self, kernel: Kernel) -> None:
        """SIGINT to the kernel and the children in its process group."""
        try:
            await self._keeper.signal(kernel.name, signal.SIGINT)
        except KeeperError as error:
            log.info("kernel %s could not be interrupted: %s", kernel.name, error)

    async def kill(self, kernel: Kernel) -> None:
        """End its processes; its folder stays, with how it ended."""
        await self._keeper.kill(kernel.name)

    async def end(self, name: str) -> None:
        """End a kernel and everything that it started; returns once nothing of it is left."""
        await self._keeper.kill(name)
        await self._keeper.forget(name)
        for socket in self._sockets.pop(name, ()):
            socket.close(linger=0)  # an open one tries to connect to where nobody is, a hundred times a second
        control = self._controls.pop(name, None)
        if control is not None:
            control.close(linger=0)
        for transport in self._transports.pop(name, ()):
            transport.close()
        self._remove(self._layout.kernel(name))

    def _remove(self, folder: Path) -> None:
        connection = self._layout.noted(folder, "connection") or {}
        for port in range(1, PORT + 1):
            Path(f"{connection.get('ip', folder)}-{port}").unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)

    async def close(self) -> None:
        """End the warm ones."""
        self._closing = True
        for task in self._warm:
            task.cancel()
        await asyncio.gather(*self._warm, return_exceptions=True)
        for control in self._controls.values():
            control.close(linger=0)  # the context does not know of them, and would wait for their end
        self._controls.clear()
        if self._made_context is not None:
            self._made_context.destroy(linger=0)
        for transport in [each for transports in self._transports.values() for each in transports]:
            transport.close()

    async def _start(self) -> Kernel:
        """A new kernel that is up.

        A keeper that dies between forking a kernel and letting it go takes it along; nobody knows how it ended then.
        """
        for _ in range(_STARTS - 1):
            try:
                return await self._start_once()
            except _Unknown as error:
                log.warning("%s; starting another", error)
        return await self._start_once()

    async def _start_once(self) -> Kernel:
        name = f"k{secrets.token_hex(5)}"
        folder = self._layout.kernel(name)
        folder.mkdir(mode=0o700, parents=True)
        connection = _connection(self._keeper.run_dir / name)
        self._layout.note(folder, "connection", connection)
        (folder / "cwd").mkdir()
        argv = [self._python, str(_RUNNER), "--connection-file", str(folder / "connection.json")]
        argv += ["--records", str(_RECORDS), "--failpoints", str(_FAILPOINTS)]
        env = kernel_environ()
        await self._keeper.spawn(id=name, argv=argv, env=env, cwd=folder / "cwd", log_file=folder / "kernel.log")
        kernel = await self._until_ready(await self._open(name, folder, connection))
        await self._connect(kernel, connection)
        return kernel

    async def _ready_again(self, name: str) -> Kernel:
        kernel = await self.find(name)
        if kernel is None:
            return await self._start()
        await self._until_ready(kernel)
        if kernel.direct is None:  # it was not up yet
            await self._connect(kernel, self._layout.noted(kernel.folder, "connection") or {})
        return kernel

    async def _open(self, name: str, folder: Path, connection: Mapping[str, Any]) -> Kernel:
        await asyncio.to_thread(_load)  # the loop goes on meanwhile, and the kernel comes up
        from jupyter_client.session import Session

        socket = self._context.socket(zmq.DEALER)
        socket.linger = 1000
        socket.reconnect_ivl = 10  # milliseconds; the kernel binds when it is up
        socket.connect(f"ipc://{connection['ip']}-{connection['shell_port']}")
        self._sockets.setdefault(name, []).append(socket)
        session = Session(key=connection["key"].encode())
        exit_record = await self._keeper.exit_of(name, folder / "exit.json")
        return Kernel(name, folder, session, socket, exit_record)

    async def _connect(self, kernel: Kernel, connection: Mapping[str, Any]) -> None:
        """To the kernel's own socket; without it, as when the kernel is dead or its cell has closed it, requests go
        by the shell channel."""
        loop = asyncio.get_running_loop()
        try:
            transport, _ = await loop.create_unix_connection(asyncio.Protocol, f"{connection['ip']}-{PORT}")
        except OSError as error:
            log.info("kernel %s is not reached directly: %s", kernel.name, error)
            return
        kernel.direct = transport
        self._transports.setdefault(kernel.name, []).append(transport)

    async def _until_ready(self, kernel: Kernel) -> Kernel:
        """Wait for the first answer, or for the end of a kernel that can't come up."""
        request = kernel.session.msg("kernel_info_request")
        await kernel.socket.send_multipart(kernel.session.serialize(request))
        answer = asyncio.ensure_future(kernel.socket.recv_multipart())
        await asyncio.wait({answer, kernel.exit}, timeout=_READY_S, return_when=asyncio.FIRST_COMPLETED)
        if answer.done():
            return kernel
        answer.cancel()
        why = "ended before it was up" if kernel.exit.done() else f"was not up within {_READY_S:.0f} s"
        lines = kernel.tail()
        await self.end(kernel.name)
        last = lines.splitlines()[-1] if lines else "it wrote nothing"
        lost = kernel.exit.done() and kernel.exit.result().unknown
        raise (_Unknown if lost else KernelError)(f"the kernel {why} ({self._python}): {last}")


def _load() -> None:
    """Import what talks to kernels."""
    import jupyter_client.session  # noqa: F401
    import zmq.asyncio  # noqa: F401


def kernel_environ() -> dict[str, str]:
    """The environment in which every kernel starts; what is an attempt's own comes with its cell."""
    return {**allowed(), "PYDEVD_DISABLE_FILE_VALIDATION": "1"}


def _connection(prefix: Path) -> dict[str, Any]:
    ports = dict(zip(("shell_port", "iopub_port", "stdin_port", "hb_port", "control_port"), range(1, 6), strict=True))
    key = secrets.token_hex(16)
    return {"transport": "ipc", "ip": str(prefix), "key": key, "signature_scheme": "hmac-sha256", **ports}

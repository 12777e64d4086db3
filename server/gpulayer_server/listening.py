"""The second port, for other machines: TLS with the control plane's own certificate, at a remembered address."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket

from tornado.httpserver import HTTPServer
from tornado.web import Application

from gpulayer.protocol.types import FRAME_DATA_BYTES
from gpulayer_server.datafolder import DataFolder, DataFolderError, Listen
from gpulayer_server.tls import Certificate, own_certificate

log = logging.getLogger("gpulayer.server")

MAX_BUFFER_BYTES = 128 * 1024 * 1024
_FIRST_RETRY_S = 1.0
_LAST_RETRY_S = 60.0
_ANY = ("", "0.0.0.0", "::")


class ListenError(RuntimeError):
    """That address can't be listened on: which, why, and what to do."""


class Listener:
    """Where other machines find this control plane, once somebody has said that they may. On the service's loop."""

    def __init__(self, app: Application, folder: DataFolder):
        self._app = app
        self._folder = folder
        self._server: HTTPServer | None = None
        self._retrying: asyncio.Task[None] | None = None
        self.where: Listen | None = None  # where it listens
        self.certificate: Certificate | None = None

    @property
    def url(self) -> str:
        """What other machines are told; '' while none is listened on."""
        return self.where.url if self.where is not None else ""

    async def open(self, where: Listen) -> None:
        """Listen there from now on, and after every next start of this data folder's control plane.

        What was listened on before is given up, unless it is the same. Raises `ListenError` or `DataFolderError`, and
        then nothing is another.
        """
        if where == self.where:
            return
        certificate = own_certificate(self._folder.path)
        context = certificate.context()
        listening = bind(where)
        server = HTTPServer(
            self._app, ssl_options=context, max_buffer_size=MAX_BUFFER_BYTES, chunk_size=FRAME_DATA_BYTES
        )
        where = Listen(host=where.host, port=listening.getsockname()[1])
        try:
            self._folder.remember(where)
        except DataFolderError:
            listening.close()
            raise
        await self.close()
        server.add_sockets([listening])
        self._server, self.where, self.certificate = server, where, certificate
        log.info("other machines find this control plane at %s, fingerprint %s", self.url, certificate.fingerprint)

    def reopen(self) -> None:
        """Listen where the last holder of the folder did, as soon as that can be had; where it didn't, nowhere."""
        where = self._folder.listen
        if where is not None:
            self._retrying = asyncio.ensure_future(self._until_open(where))

    async def _until_open(self, where: Listen) -> None:
        retry_s, said = _FIRST_RETRY_S, ""
        while True:
            try:
                self._retrying = None  # what opens closes no retry of its own
                await self.open(where)
            except (ListenError, DataFolderError) as error:
                self._retrying = asyncio.current_task()
                if str(error) != said:
                    said = str(error)
                    log.error("other machines can't reach this control plane: %s; it is tried again", said)
            else:
                return
            await asyncio.sleep(retry_s)
            retry_s = min(_LAST_RETRY_S, retry_s * 2)

    async def close(self) -> None:
        """Listen no more; what is connected there is cut."""
        if self._retrying is not None:
            self._retrying.cancel()
            self._retrying = None
        server, self._server, self.where = self._server, None, None
        if server is not None:
            server.stop()
            await server.close_all_connections()


def bind(where: Listen) -> socket.socket:
    """A socket that listens there; port 0 takes any. Raises `ListenError`."""
    host = where.host
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host or None, where.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        both = family == socket.AF_INET6 and host == "::" and socket.has_dualstack_ipv6()
        listening = socket.create_server(address, family=family, backlog=128, dualstack_ipv6=both)
    except (socket.gaierror, ValueError) as error:  # ValueError: letters that no name has
        why = getattr(error, "strerror", None) or "it can't be one"
        raise ListenError(f"{host!a} is not the name of an address: {why}; name one of this machine") from None
    except OSError as error:
        raise ListenError(_why(where, error)) from error
    listening.setblocking(False)
    return listening


def _why(where: Listen, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {where.port} of {where.host} is taken by another program; choose another port"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{where.host} is not an address of this machine; choose one of its own"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"port {where.port} of {where.host} is not this user's to listen on; choose one above 1023"
    text = (error.strerror or str(error)).partition(" (while")[0]
    return f"{where.url.removeprefix('https://')} can't be listened on: {text}; choose another address"


def reachable(host: str) -> str:
    """By which address others reach a host that was named: itself, or that of the default route for 'all of them'."""
    return default_address() if host in _ANY else host


def default_address() -> str:
    """This machine's address on its way to everywhere else; 127.0.0.1 where it has none. Nothing is sent."""
    for family, somewhere in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):  # of documentation
        with socket.socket(family, socket.SOCK_DGRAM) as looking:
            try:
                looking.connect((somewhere, 9))
            except OSError:
                continue
            return looking.getsockname()[0]
    return "127.0.0.1"

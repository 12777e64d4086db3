"""What stands before a control plane on another machine: a reverse proxy with a path of its own, plain or with TLS."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ipaddress
import re
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

_CONNECTION = re.compile(rb"\r\nconnection:[^\r\n]*", re.IGNORECASE)
_HTML = b"<html>nothing of yours is here</html>"


class Front:
    """Serves the control plane at `port()` under `prefix`; any other path gets a page, one that is away a 502.

    As a context manager it listens inside, each time at the same address.
    """

    def __init__(self, port: Callable[[], int], prefix: str, tls: ssl.SSLContext | None = None):
        self._port_behind = port
        self._prefix = prefix
        self._tls = tls
        self._port = 0
        self.asked: list[str] = []  # the paths that were asked for
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """The control plane's address, here."""
        return f"{'https' if self._tls else 'http'}://localhost:{self._port}{self._prefix}"

    def __enter__(self) -> Front:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._server = self._call(asyncio.start_server(self._serve, "127.0.0.1", self._port, ssl=self._tls))
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, coroutine: object) -> asyncio.Server:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)  # type: ignore[arg-type]

    async def _end(self) -> None:
        """Every connection breaks."""
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._pass_on(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # either side is gone, or the test is over
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request of each connection: what follows an upgrade or a body goes by as it is."""
        head = await reader.readuntil(b"\r\n\r\n")
        line, _, fields = head.partition(b"\r\n")
        method, path, version = line.split(b" ")
        self.asked.append(path.decode().partition("?")[0])
        if not path.startswith(f"{self._prefix}/v1/".encode()):
            await _page(writer, b"404 Not Found")
            return
        try:
            behind, to_behind = await asyncio.open_connection("127.0.0.1", self._port_behind())
        except OSError:
            await _page(writer, b"502 Bad Gateway")
            return
        if b"upgrade: websocket" not in fields.lower():
            fields = _CONNECTION.sub(b"", b"\r\n" + fields)[2:].replace(
                b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1
            )
        to_behind.write(b" ".join((method, path[len(self._prefix) :], version)) + b"\r\n" + fields)
        pumps = [asyncio.ensure_future(_pump(reader, to_behind)), asyncio.ensure_future(_pump(behind, writer))]
        try:
            await asyncio.wait(pumps[1:])
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            to_behind.transport.abort()


async def _page(writer: asyncio.StreamWriter, status: bytes) -> None:
    size = str(len(_HTML)).encode()
    writer.write(b"HTTP/1.1 " + status + b"\r\nContent-Type: text/html\r\nConnection: close\r\nContent-Length: " + size)
    writer.write(b"\r\n\r\n" + _HTML)
    await writer.drain()
    writer.close()
    await writer.wait_closed()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
        else:  # TLS has no half-closed connections
            writer.close()
            await writer.wait_closed()


def certificate(folder: Path) -> Path:
    """A certificate for `localhost` that signs itself, with its key, in one file."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a test of gpulayer")])
    now = datetime.datetime.now(datetime.timezone.utc)
    names = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=24))
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = folder / "certificate.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM) + private)
    return path

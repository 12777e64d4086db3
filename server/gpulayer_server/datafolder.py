"""The data folder: one holder at a time, on a local disk."""

from __future__ import annotations

import asyncio
import fcntl
import os
import threading
from pathlib import Path

import msgspec

from gpulayer.protocol.endpoint import Endpoint, read_endpoint, write_private
from gpulayer.protocol.localdisk import network_filesystem
from gpulayer.protocol.types import Struct


class DataFolderError(RuntimeError):
    """The folder can't be used; says which, why, and what to do."""


class FolderHeld(DataFolderError):
    """Another control plane holds the folder."""


class Listen(Struct, frozen=True, kw_only=True):
    """Where a control plane listens for other machines: what `listen.json` remembers."""

    host: str  # as it was named: an address, a name, or '0.0.0.0' for all
    port: int

    @property
    def url(self) -> str:
        """Its address as others write it."""
        return f"https://[{self.host}]:{self.port}" if ":" in self.host else f"https://{self.host}:{self.port}"


def read_listen(text: str) -> Listen:
    """`HOST:PORT` or `[IPV6]:PORT`. Raises ValueError that says what is wrong."""
    host, colon, port = text.strip().rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if not colon or not bare or not port.isdecimal() or int(port) > 65_535 or (":" in bare and bare == host):
        raise ValueError(f"{text[:100]!r} is not an address such as 192.168.1.50:8443 or [::]:8443")
    return Listen(host=bare, port=int(port))


class DataFolder:
    """A control plane's folder, locked as long as this object lives. Use it as made: it is the holder then."""

    def __init__(self, path: Path, *, wait: bool = False):
        """Take the folder; it is made when missing.

        Arguments:
            wait: where another one holds it, block until that one ends, however it ends. Of many who wait one gets it.

        Raises `FolderHeld`, and `DataFolderError` for a folder that can't be had or lies on a network file system.
        """
        self.path = path
        kind = network_filesystem(path)
        if kind:
            text = f"{path} lies on a network file system ({kind}), where locks and SQLite are not safe"
            raise DataFolderError(f"{text}; set GPULAYER_DATA to a folder on a local disk")
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = _take(path / "lock", wait=wait)
            _sign(self._lock)
        except OSError as error:
            text = f"{path} can't be the data folder: {error.strerror}"
            raise DataFolderError(f"{text}; mend that, or set GPULAYER_DATA to another folder") from error

    @property
    def last_port(self) -> int:
        """The port of the last holder: workers look there first."""
        last = read_endpoint(self.path)
        return int(last.url.rsplit(":", 1)[1]) if last else 0

    @property
    def listen(self) -> Listen | None:
        """Where the last holder listened for other machines, None where it didn't."""
        try:
            return msgspec.json.decode((self.path / "listen.json").read_bytes(), type=Listen)
        except (OSError, msgspec.MsgspecError):
            return None

    def remember(self, listen: Listen) -> None:
        """Whoever holds this folder next listens there too. Raises `DataFolderError`."""
        try:
            write_private(self.path / "listen.json", msgspec.json.encode(listen))
        except OSError as error:
            raise DataFolderError(f"{self.path}/listen.json can't be written: {error.strerror}") from error

    def publish(self, endpoint: Endpoint) -> None:
        """Say where this control plane listens. Raises `DataFolderError`."""
        try:
            write_private(self.path / "endpoint.json", msgspec.json.encode(endpoint))
        except OSError as error:
            raise DataFolderError(f"{self.path}/endpoint.json can't be written: {error.strerror}") from error

    def close(self) -> None:
        """Let the lock go. `endpoint.json` stays, so that the next holder takes the same port."""
        os.close(self._lock)


async def when_free(path: Path) -> DataFolder:
    """The folder, once its holder has ended. Raises as `DataFolder` does.

    The lock is waited for by a thread of its own, which outlives a cancelled wait: what it gets then it lets go.
    """
    loop = asyncio.get_running_loop()
    taken: asyncio.Future[DataFolder] = loop.create_future()

    def give(folder: DataFolder | None, error: DataFolderError | None) -> None:
        if taken.done():
            if folder is not None:
                folder.close()
        elif error is not None:
            taken.set_exception(error)
        elif folder is not None:
            taken.set_result(folder)

    def wait() -> None:
        folder, failed = None, None
        try:
            folder = DataFolder(path, wait=True)
        except DataFolderError as error:
            failed = error
        try:
            loop.call_soon_threadsafe(give, folder, failed)
        except RuntimeError:  # the loop has ended meanwhile
            if folder is not None:
                folder.close()

    threading.Thread(target=wait, name="gpulayer-data-folder", daemon=True).start()
    return await taken


def _sign(lock: int) -> None:
    """Say who holds it. Raises OSError, and the lock is free again."""
    try:
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    except OSError:
        os.close(lock)
        raise


def _take(path: Path, *, wait: bool) -> int:
    """A descriptor with the lock on this file. Raises `FolderHeld` or OSError."""
    while True:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            if os.path.samestat(os.fstat(lock), os.stat(path)):
                return lock
        except FileNotFoundError:  # removed while we waited, with its folder: there is another, or nothing to hold
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except BlockingIOError:
            holder = os.pread(lock, 32, 0).decode(errors="replace").strip()
            os.close(lock)
            text = f"{path.parent} is held by another control plane (pid {holder})"
            raise FolderHeld(f"{text}; attach to it through {path.parent}/endpoint.json") from None
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)

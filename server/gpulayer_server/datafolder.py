"""The data folder: one holder at a time, on a local disk."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import msgspec

from gpulayer.protocol.endpoint import Endpoint, read_endpoint, write_private
from gpulayer.protocol.types import Struct
from gpulayer_server.folderlock import DataFolderError, FolderHeld, Taken, take

__all__ = ["DataFolder", "DataFolderError", "FolderHeld", "Listen", "read_listen", "when_free"]


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

    def __init__(self, path: Path, *, wait: bool = False, taken: Taken | None = None):
        """Take the folder; it is made when missing.

        Arguments:
            taken: the same folder, taken before.
            wait: where another one holds it, block until that one ends, however it ends. Of many who wait one gets it.

        Raises `FolderHeld`, and `DataFolderError` for a folder that can't be had or lies on a network file system.
        """
        self.path = path
        self._lock = taken.give() if taken is not None else take(path, wait=wait).give()

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

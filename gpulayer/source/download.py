"""A blob on its way from a control plane: from where it broke."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from gpulayer.protocol.lazily import Lazily
from gpulayer.source.again import Again, TransferStopped
from gpulayer.source.blobs import BlobError, write_all
from gpulayer.source.partial import hash_of_file

if TYPE_CHECKING:
    from hashlib import _Hash

    import httpx
else:
    httpx = Lazily("httpx")

__all__ = ["TransferStopped", "fetch_blob", "fetch_part"]

_TOLD_BYTES = 4 << 20
_FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


def fetch_blob(
    client: httpx.Client,
    digest: str,
    target: os.PathLike[str] | str,
    size: int,
    tell: Callable[[int], None] = lambda got_bytes: None,
    *,
    stop: threading.Event | None = None,
) -> None:
    """Get a blob as a file, which is there whole or not at all; arguments and errors as of `fetch_part`.

    What came lies beside it until it is whole, and a later call goes on from there.
    """
    folder, name = os.path.split(os.fspath(target))
    part = os.path.join(folder, f".{name[:100]}.{digest[:16]}.part")
    fetch_part(client, digest, part, size, tell, stop=stop)
    os.replace(part, target)


def fetch_part(
    client: httpx.Client,
    digest: str,
    part: str,
    size: int,
    tell: Callable[[int], None] = lambda got_bytes: None,
    *,
    stop: threading.Event | None = None,
) -> None:
    """Complete the file `part`, of which some bytes may be there, to a blob, and check it. Blocks.

    Where a connection breaks it goes on, after pauses; some tries later it raises, and called again it goes on too.

    Args:
        client: of the control plane; its base address ends before `/v1`.
        digest: SHA-256 of the blob, hexadecimal.
        part: the file; for one caller at a time.
        size: the blob's length in bytes.
        tell: takes how many bytes are there, every few MB.
        stop: set, it raises `TransferStopped` soon.

    Raises:
        BlobError: the bytes that came are not the blob's; the file is gone.
        TransferStopped: see `stop`.
        httpx.HTTPStatusError: the control plane refuses it, such as with 404.
        httpx.TransportError: it does not answer.
        OSError: the disk is full, such as; what came before stays.
    """
    _Fetcher(client, digest, part, size, tell, stop or threading.Event()).fetch()


class _Fetcher:
    """One blob's way."""

    def __init__(
        self,
        client: httpx.Client,
        digest: str,
        part: str,
        size: int,
        tell: Callable[[int], None],
        stop: threading.Event,
    ):
        self._client = client
        self._digest = digest
        self._part = part
        self._size = size
        self._tell = tell
        self._again = Again(stop)
        self._at = 0
        self._told = 0

    def fetch(self) -> None:
        descriptor = os.open(self._part, _FLAGS, 0o600)
        try:
            hasher = self._begin(descriptor)
            while self._at < self._size:
                self._again.look()
                before = self._at
                try:
                    self._take(descriptor, hasher)
                except httpx.HTTPError as error:
                    if self._at > before:
                        self._again.went_on()
                    self._again.wait(error)
        finally:
            os.close(descriptor)
        self._tell(self._at)
        if hasher.hexdigest() != self._digest:
            os.unlink(self._part)
            found = hasher.hexdigest()[:12]
            raise BlobError(f"blob {self._digest[:12]}…: the bytes that came have digest {found}…")

    def _begin(self, descriptor: int) -> _Hash:
        """Take up what is there: one that is too long is none of ours."""
        if os.fstat(descriptor).st_size > self._size:
            os.ftruncate(descriptor, 0)
        hasher = hash_of_file(self._part)
        self._at = os.lseek(descriptor, 0, os.SEEK_END)
        return hasher

    def _take(self, descriptor: int, hasher: _Hash) -> None:
        """Ask for the rest, and write it as it comes."""
        headers = {"Range": f"bytes={self._at}-"}
        with self._client.stream("GET", f"/v1/blobs/{self._digest}", headers=headers) as answer:
            answer.raise_for_status()
            skip = self._at - _start_of(answer)
            for data in answer.iter_bytes():
                self._again.look()
                fresh, skip = data[skip:], max(0, skip - len(data))
                fresh = fresh[: self._size - self._at]
                write_all(descriptor, fresh)
                hasher.update(fresh)
                self._at += len(fresh)
                if self._at - self._told >= _TOLD_BYTES:
                    self._told = self._at
                    self._tell(self._at)
        if self._at < self._size:
            text = f"blob {self._digest[:12]}… ended after {self._at} of {self._size} bytes"
            raise httpx.RemoteProtocolError(text, request=answer.request)


def _start_of(answer: httpx.Response) -> int:
    """Where an answer begins in the blob: at 0 where the other side knows nothing of ranges."""
    if answer.status_code != 206:
        return 0
    unit, _, span = answer.headers.get("Content-Range", "").partition(" ")
    start = span.partition("-")[0]
    if unit != "bytes" or not start.isdecimal():
        raise httpx.RemoteProtocolError("a part of a blob came without its range", request=answer.request)
    return int(start)

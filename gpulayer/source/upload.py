"""A large blob on its way to a control plane: in checked pieces, from where it broke."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from gpulayer.protocol.lazily import Lazily
from gpulayer.source.again import CHUNK_BYTES, LARGE_BYTES, Again, TransferStopped
from gpulayer.source.blobs import read_at
from gpulayer.source.digests import OPEN_FLAGS
from gpulayer.source.errors import SourceChanged, shown
from gpulayer.source.partial import hash_of_file

if TYPE_CHECKING:
    import httpx
else:
    httpx = Lazily("httpx")

__all__ = ["LARGE_BYTES", "TransferStopped", "send_blob"]

_FIRST_CHUNK_BYTES = 1 << 20
_PIECE_BYTES = 1 << 17
_QUICK_S = 1.0
_SLOW_S = 8.0
_OFFSET = "Upload-Offset"
_DAMAGED = 422  # the whole is not what its digest says


def send_blob(
    client: httpx.Client,
    digest: str,
    path: os.PathLike[str] | str,
    size: int,
    *,
    tell: Callable[[int], None] = lambda sent_bytes: None,
    stop: threading.Event | None = None,
) -> None:
    """Send a file as a blob, unless it is there; a part that is there is not sent again. Blocks.

    Where a connection breaks it goes on, after pauses; some tries later it raises, and called again it goes on too.

    Args:
        client: of the control plane; its base address ends before `/v1`.
        digest: SHA-256 of the file, hexadecimal.
        path: the file.
        size: its length in bytes.
        tell: takes how many bytes the control plane has, a few times a second at most.
        stop: set, it raises `TransferStopped` soon.

    Raises:
        SourceChanged: the file is not what its digest says, or gone.
        TransferStopped: see `stop`.
        httpx.HTTPStatusError: the control plane refuses it.
        httpx.TransportError: it does not answer.
        OSError: the file can't be read.
    """
    _Sender(client, digest, os.fspath(path), size, tell, stop or threading.Event()).send()


class _Sender:
    """One blob's way."""

    def __init__(
        self,
        client: httpx.Client,
        digest: str,
        path: str,
        size: int,
        tell: Callable[[int], None],
        stop: threading.Event,
    ):
        self._client = client
        self._digest = digest
        self._path = path
        self._size = size
        self._tell = tell
        self._again = Again(stop)
        self._chunk_bytes = _FIRST_CHUNK_BYTES
        self._url = f"/v1/uploads/{digest}"
        self._damaged = False

    def send(self) -> None:
        offset: int | None = None
        descriptor = self._open()
        try:
            while offset != self._size:
                self._again.look()
                try:
                    offset = self._ask() if offset is None else self._give(descriptor, offset)
                except httpx.HTTPError as error:
                    offset = None
                    self._take(error)
                else:
                    self._again.went_on()
                    self._tell(offset)
        finally:
            os.close(descriptor)

    def _take(self, error: httpx.HTTPError) -> None:
        """After a failed try: wait, or raise."""
        if not isinstance(error, httpx.HTTPStatusError) or error.response.status_code != _DAMAGED:
            self._again.wait(error)
            return
        if hash_of_file(self._path).hexdigest() != self._digest:
            raise self._changed() from error
        if self._damaged:
            raise error
        self._damaged = True  # what somebody else had sent of it before was wrong, and has been dropped now

    def _open(self) -> int:
        try:
            descriptor = os.open(self._path, OPEN_FLAGS)
        except FileNotFoundError:
            raise self._changed() from None
        if os.fstat(descriptor).st_size != self._size:
            os.close(descriptor)
            raise self._changed()
        return descriptor

    def _changed(self) -> SourceChanged:
        return SourceChanged(f"{shown(self._path)} changed while it was sent; run it again")

    def _ask(self) -> int:
        """How much of it is there."""
        answer = self._client.head(self._url, params={"size": str(self._size)})
        answer.raise_for_status()
        return _offset_in(answer)

    def _give(self, descriptor: int, offset: int) -> int:
        """Send one chunk; how much is there then."""
        data = self._read(descriptor, offset)
        headers = {
            _OFFSET: str(offset),
            "Upload-Checksum": hashlib.sha256(data).hexdigest(),
            "Content-Length": str(len(data)),
            "Content-Type": "application/octet-stream",
        }
        begun_s = time.monotonic()
        answer = self._client.patch(
            self._url, params={"size": str(self._size)}, headers=headers, content=self._pieces(data)
        )
        if answer.status_code == 409:  # somebody else sends it too, or our answer was lost
            return _offset_in(answer)
        answer.raise_for_status()
        self._adapt(time.monotonic() - begun_s)
        return _offset_in(answer)

    def _read(self, descriptor: int, offset: int) -> bytes:
        wanted = min(self._chunk_bytes, self._size - offset)
        data = read_at(descriptor, wanted, offset)
        if len(data) != wanted:
            raise self._changed()
        return data

    def _pieces(self, data: bytes) -> Iterator[bytes]:
        """Small ones: httpcore copies what is left of a piece each time that the socket takes a part of it."""
        for begin in range(0, len(data), _PIECE_BYTES):
            self._again.look()
            yield data[begin : begin + _PIECE_BYTES]

    def _adapt(self, took_s: float) -> None:
        """A slow way gets small chunks: less is lost with one, and the other side holds less."""
        if took_s < _QUICK_S:
            self._chunk_bytes = min(CHUNK_BYTES, self._chunk_bytes * 2)
        elif took_s > _SLOW_S:
            self._chunk_bytes = max(_PIECE_BYTES, self._chunk_bytes // 2)


def _offset_in(answer: httpx.Response) -> int:
    text = answer.headers.get(_OFFSET, "")
    if not text.isdecimal():
        raise httpx.RemoteProtocolError(f"an upload was answered without {_OFFSET}", request=answer.request)
    return int(text)

"""Blobs in transit: our own framing, since Python's tarfile costs more than the network.

    magic and version     8 bytes, b"GPLPACK" + 1
    each blob            32 bytes SHA-256, 8 bytes length (big-endian), the bytes
    the end              32 zero bytes, 8 bytes number of blobs

Both sides check each blob against its digest while it passes and hold at most one chunk (64 KiB) of it.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterable, Iterator
from typing import BinaryIO, TypeAlias

from gpulayer.source.errors import PackError, SourceChanged, shown

__all__ = ["CHUNK_BYTES", "MAGIC", "iter_pack", "read_pack", "write_pack"]

MAGIC = b"GPLPACK\x01"
CHUNK_BYTES = 65_536

_HEADER = struct.Struct(">32sQ")
_END = bytes(32)

Blob: TypeAlias = "tuple[str, BinaryIO | os.PathLike[str] | str]"
"""Digest (hexadecimal), and the path of a file or an open, seekable one, read from where it stands."""


def write_pack(blobs: Iterable[Blob], out: BinaryIO) -> int:
    """Write a pack.

    Args:
        blobs: what to send.
        out: written to, not closed.

    Returns:
        The number of bytes written.

    Raises:
        SourceChanged: a file is not (any more) what its digest says; what was written is no whole pack.
        PackError: a digest that is none, or a stream whose length cannot be told.
        OSError: a file cannot be read.
    """
    written = 0
    for data in iter_pack(blobs):
        out.write(data)
        written += len(data)
    return written


def iter_pack(blobs: Iterable[Blob]) -> Iterator[bytes]:
    """The bytes of a pack, in pieces below 128 KiB; small blobs share one. Arguments and errors: as `write_pack`."""
    pending = bytearray(MAGIC)
    count = 0
    for digest, source in blobs:
        count += 1
        for data in _framed(_raw_digest(digest), digest, source):
            pending += data
            if len(pending) >= CHUNK_BYTES:
                yield bytes(pending)
                pending.clear()
    pending += _HEADER.pack(_END, count)
    yield bytes(pending)


def read_pack(stream: BinaryIO) -> Iterator[tuple[str, int, Iterator[bytes]]]:
    """Read a pack.

    Args:
        stream: read to its end; not closed.

    Yields:
        For each blob its digest (hexadecimal), its length in bytes, and its bytes in chunks. Keep a blob only when its
        chunks have *ended* without an error: the digest is checked after the last one. Chunks that were not taken are
        read and checked when the next blob is asked for.

    Raises:
        PackError: no pack, another version, it ends early, a wrong digest or count, or something follows the end.
    """
    magic = _read_exactly(stream, len(MAGIC), "before its header was whole")
    if magic != MAGIC:
        if magic[:-1] == MAGIC[:-1]:
            raise PackError(f"pack version {magic[-1]} is not {MAGIC[-1]}; update GPUlayer on the older side")
        raise PackError(f"these bytes are no pack of blobs (they begin with {magic!r})")
    count = 0
    while True:
        raw, length = _HEADER.unpack(_read_exactly(stream, _HEADER.size, f"after {count} blobs, without its end mark"))
        if raw == _END:
            break
        count += 1
        chunks = _Chunks(stream, raw, length)
        yield raw.hex(), length, chunks
        for _ in chunks:
            pass
    if length != count:
        raise PackError(f"the pack's end mark counts {length} blobs, but {count} came; send it again")
    if stream.read(1):
        raise PackError("something follows the end of the pack; send it again")


def _raw_digest(digest: str) -> bytes:
    try:
        raw = bytes.fromhex(digest)
    except ValueError:
        raw = b""
    if len(raw) != 32 or raw == _END or raw.hex() != digest:
        raise PackError(f"digest {digest!r} is not 64 lower-case hexadecimal digits")
    return raw


def _framed(raw: bytes, digest: str, source: BinaryIO | os.PathLike[str] | str) -> Iterator[bytes]:
    if isinstance(source, (str, os.PathLike)):
        with open(source, "rb", buffering=0) as file:
            yield from _framed_stream(raw, digest, file, os.fstat(file.fileno()).st_size, shown(os.fspath(source)))
    else:
        yield from _framed_stream(raw, digest, source, _length(source, digest), f"blob {digest[:12]}")


def _framed_stream(raw: bytes, digest: str, file: BinaryIO, length: int, name: str) -> Iterator[bytes]:
    yield _HEADER.pack(raw, length)
    sha256 = hashlib.sha256()
    left = length
    while left:
        data = file.read(min(left, CHUNK_BYTES))
        if not data:
            break
        sha256.update(data)
        left -= len(data)
        yield data
    if left or sha256.hexdigest() != digest:
        raise SourceChanged(f"{name} changed while it was sent; run it again")


def _length(stream: BinaryIO, digest: str) -> int:
    if not stream.seekable():
        raise PackError(f"blob {digest[:12]} is a stream that cannot seek, so its length is unknown; give a file")
    here = stream.tell()
    end = stream.seek(0, os.SEEK_END)
    stream.seek(here)
    return end - here


class _Chunks:
    """The bytes of one blob. No generator: one that is closed early would leave its rest in the stream."""

    def __init__(self, stream: BinaryIO, raw: bytes, length: int) -> None:
        self._stream = stream
        self._raw = raw
        self._left = length
        self._sha256 = hashlib.sha256()
        self._checked = False

    def __iter__(self) -> _Chunks:
        return self

    def __next__(self) -> bytes:
        if self._left:
            data = self._stream.read(min(self._left, CHUNK_BYTES))
            if not data:
                raise PackError(
                    f"the pack ends {self._left} bytes before the end of blob {self._raw.hex()[:12]}; send it again"
                )
            self._sha256.update(data)
            self._left -= len(data)
            return data
        if not self._checked:
            if self._sha256.digest() != self._raw:
                raise PackError(
                    f"blob {self._raw.hex()[:12]} arrived with other bytes than its digest says; send it again"
                )
            self._checked = True
        raise StopIteration


def _read_exactly(stream: BinaryIO, length: int, where: str) -> bytes:
    data = b""
    while len(data) < length:
        more = stream.read(length - len(data))
        if not more:
            raise PackError(f"the pack ends {where}; send it again")
        data += more
    return data

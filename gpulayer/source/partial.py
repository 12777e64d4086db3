"""Blobs of which only a part is here yet: they come in checked pieces, and the next piece may come a week later.

    partial/DIGEST.SIZE   the first bytes of a blob; the file's length is how many of them are here

A piece counts once its own checksum holds, so whatever ends this process leaves a prefix that is right; the digest of
the whole is looked at when it is whole. It grows along in memory, and is made up from the file after a restart.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from gpulayer.source.blobs import PARTIAL_KEPT_S, BlobError, Blobs, Span, SpanReader, clear_old, write_all

if TYPE_CHECKING:
    from hashlib import _Hash

__all__ = ["ChunkDamaged", "OffsetMoved", "Partials"]

_REMEMBERED = 256
_READ_BYTES = 1 << 20
_NAME = re.compile(r"[0-9a-f]{64}\.\d{1,20}")
_FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


class OffsetMoved(ValueError):
    """A piece that does not begin where the others end."""

    def __init__(self, offset: int):
        super().__init__(f"{offset} bytes are here; go on from there")
        self.offset = offset


class ChunkDamaged(BlobError):
    """A piece that is not what its checksum says: it may be sent again."""


class _Begun:
    """One partial blob, as this process knows it. Its lock is held by whoever looks at its file."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.users = 0
        self.forget()

    def forget(self) -> None:
        """Nothing was hashed."""
        self.hasher = hashlib.sha256()
        self.hashed_bytes = 0


class Partials:
    """The partial blobs of a folder of blobs. For any number of threads of one process; its methods block."""

    def __init__(self, blobs: Blobs):
        self._blobs = blobs
        self._folder = blobs.folder / "partial"
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self._lock = threading.Lock()
        self._begun: OrderedDict[str, _Begun] = OrderedDict()

    def offset(self, digest: str, size: int) -> int:
        """How many bytes of a blob of `size` bytes are here: `size` where it is whole.

        Raises `BlobError` for what is no digest, or an empty blob of another digest than that of no bytes; OSError.
        """
        if self._whole(digest, size):
            return size
        if size == 0:
            self._blobs.put(digest, ())
            return 0
        try:
            return os.stat(self._path(digest, size)).st_size
        except FileNotFoundError:
            return 0

    def add(self, digest: str, size: int, offset: int, pieces: Sequence[bytes], checksum: str) -> int:
        """Take the bytes from `offset` on, in pieces of any size; how many are here then. With the last the blob is.

        Args:
            digest: SHA-256 of the whole blob, hexadecimal.
            size: bytes of the whole blob.
            offset: where these bytes begin.
            pieces: the bytes.
            checksum: SHA-256 of these bytes, hexadecimal.

        Raises:
            OffsetMoved: another number of bytes is here.
            ChunkDamaged: the bytes are not what `checksum` says; none of them is kept.
            BlobError: the whole blob is not what `digest` says, and all of it was dropped; or they are too many.
            OSError: the disk is full, such as; none of these bytes is kept.
        """
        with self._holding(f"{digest}.{size}") as begun:
            here = self.offset(digest, size)
            if here == size:
                return size
            if offset != here:
                raise OffsetMoved(here)
            self._check(offset, size, pieces, checksum)
            self._append(begun, self._path(digest, size), offset, pieces)
            here += sum(map(len, pieces))
            if here == size:
                self._finish(begun, digest, size)
            return here

    def clear(self, age_s: float = PARTIAL_KEPT_S) -> int:
        """Remove partial blobs to which nothing was added for so long; how many."""
        return clear_old(self._folder, age_s)

    def _whole(self, digest: str, size: int) -> bool:
        return not self._blobs.missing({digest: size})

    def _path(self, digest: str, size: int) -> str:
        name = f"{digest}.{size}"
        if not _NAME.fullmatch(name):
            raise BlobError(f"not a SHA-256 digest and a size: {name[:100]!r}")
        return f"{self._folder}/{name}"

    @contextlib.contextmanager
    def _holding(self, name: str) -> Iterator[_Begun]:
        """A partial blob, for this thread alone."""
        with self._lock:
            begun = self._begun.setdefault(name, _Begun())
            self._begun.move_to_end(name)
            begun.users += 1
        try:
            with begun.lock:
                yield begun
        finally:
            with self._lock:
                begun.users -= 1
                idle = [name for name, each in self._begun.items() if not each.users]
                for name in idle[: max(0, len(self._begun) - _REMEMBERED)]:
                    del self._begun[name]

    def _check(self, offset: int, size: int, pieces: Sequence[bytes], checksum: str) -> None:
        count = sum(map(len, pieces))
        if offset + count > size:
            raise BlobError(f"{count} bytes from byte {offset} on are more than the {size} that it is said to have")
        hasher = hashlib.sha256()
        for piece in pieces:
            hasher.update(piece)
        if hasher.hexdigest() != checksum.lower():
            raise ChunkDamaged(f"bytes {offset} to {offset + count} came with another checksum than they have")

    def _append(self, begun: _Begun, path: str, offset: int, pieces: Sequence[bytes]) -> None:
        descriptor = os.open(path, _FLAGS, 0o600)
        try:
            os.lseek(descriptor, offset, os.SEEK_SET)
            try:
                for piece in pieces:
                    write_all(descriptor, piece)
            except OSError:
                os.ftruncate(descriptor, offset)
                raise
        finally:
            os.close(descriptor)
        if begun.hashed_bytes == offset:
            for piece in pieces:
                begun.hasher.update(piece)
                begun.hashed_bytes += len(piece)

    def _finish(self, begun: _Begun, digest: str, size: int) -> None:
        path = self._path(digest, size)
        if begun.hashed_bytes != size:
            begun.forget()
            begun.hasher = hash_of_file(path)
        found = begun.hasher.hexdigest()
        begun.forget()
        if found != digest:
            os.unlink(path)
            raise BlobError(f"blob {digest[:12]}…: the {size} bytes that came have digest {found[:12]}…")
        self._blobs.adopt(digest, path)


def hash_of_file(path: str) -> _Hash:
    """SHA-256 of all that a file holds. Raises OSError."""
    hasher = hashlib.sha256()
    with SpanReader() as reader:
        for chunk in reader.chunks(Span(path, 0, os.stat(path).st_size), _READ_BYTES):
            hasher.update(chunk)
    return hasher

"""Large parts: those of arguments are mapped, those of results are written into files of their own."""

from __future__ import annotations

import mmap
import os
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from . import wire

_PIECE_BYTES = 1 << 20


def fetch(places: Mapping[str, Any], digest: str, size: int) -> Any:
    """The bytes of a blob: a private map of its file, which a value may keep and change.

    Raises ValueError where it is not here, OSError where its file can't be had.
    """
    place = places.get(digest)
    if place is None or place.size != size:
        raise ValueError(f"the blob {digest} did not come with the call")
    if not size:
        return b""
    fd = os.open(place.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if os.fstat(fd).st_size < place.offset + size:
            raise ValueError(f"the file of the blob {digest} is cut short")
        before = place.offset % mmap.ALLOCATIONGRANULARITY
        mapped = mmap.mmap(fd, size + before, access=mmap.ACCESS_COPY, offset=place.offset - before)
    finally:
        os.close(fd)
    return memoryview(mapped)[before:] if before else memoryview(mapped)


class Results:
    """Writes the large parts of results. Used by the main thread."""

    def __init__(self, folder: str, reserve_bytes: int) -> None:
        """`reserve_bytes` of the disk stay free."""
        self._folder = folder
        self._reserve_bytes = reserve_bytes
        self._made = 0
        self.places: list[Any] = []  # of the result at hand

    def put(self, data: memoryview) -> str:
        """Writes one part; its digest. Raises OSError, also where the disk has no room for it."""
        import hashlib  # only where there is a large part

        if len(data) >= _PIECE_BYTES:
            self._check_room(len(data))
        self._made += 1
        path = os.path.join(self._folder, f"{os.getpid()}-{self._made}")
        sha256 = hashlib.sha256()
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            for start in range(0, len(data), _PIECE_BYTES):
                piece = data[start : start + _PIECE_BYTES]
                sha256.update(piece)
                while piece:
                    piece = piece[os.write(fd, piece) :]
        except BaseException:
            os.unlink(path)
            raise
        finally:
            os.close(fd)
        digest = sha256.hexdigest()
        self.places.append(wire.BlobPlace(digest, path, 0, len(data)))
        return digest

    def _check_room(self, size: int) -> None:
        disk = os.statvfs(self._folder)
        free = disk.f_bavail * disk.f_frsize - self._reserve_bytes
        if size > free:
            have, want = max(0, free) / 1e6, size / 1e6
            raise OSError(f"it needs {want:,.0f} MB on the worker's disk, which has {have:,.0f} MB to spare")

    def taken(self) -> list[Any]:
        """The places of the result at hand, which is whole."""
        places, self.places = self.places, []
        return places

    def abandon(self) -> None:
        """Removes the files of the result at hand, which can't travel."""
        for place in self.taken():
            try:
                os.unlink(place.path)
            except FileNotFoundError:
                pass


class Refs:
    """Values that many calls share, the last used ones up to a bound. An array among them is read-only."""

    def __init__(self, unpack: Callable[[Any, Any], Any], limit_bytes: int) -> None:
        """`unpack` makes a value of its bytes, and the places of blobs that these may name."""
        self._unpack = unpack
        self._limit_bytes = limit_bytes
        self._values: OrderedDict[str, tuple[Any, int]] = OrderedDict()
        self._bytes = 0

    def get(self, places: Mapping[str, Any], digest: str, size: int) -> Any:
        """The value; made of its blob when it is not here. Raises as `fetch`, and as the codec does."""
        if digest in self._values:
            self._values.move_to_end(digest)
            return self._values[digest][0]
        value = self._unpack(fetch(places, digest, size), places)
        if type(value).__module__ == "numpy" and hasattr(value, "setflags"):
            value.setflags(write=False)  # what one call changed, the next would see
        self._values[digest] = (value, size)
        self._bytes += size
        while self._bytes > self._limit_bytes and len(self._values) > 1:
            self._bytes -= self._values.popitem(last=False)[1][1]
        return value

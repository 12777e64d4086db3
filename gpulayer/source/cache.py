"""A folder of blobs as a cache: below a limit, what was used longest ago goes first, and nothing that is in use.

Files of blobs are what goes: one that many small blobs share goes when its last use is the oldest, with all of them.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import threading
import time
from collections.abc import Collection, Iterator
from pathlib import Path

from gpulayer.source.blobs import BlobFile, Blobs

__all__ = ["Cache", "default_limit"]

log = logging.getLogger("gpulayer")

_DOWN_TO = 0.9  # of the limit: then some time passes before the next walk through the folder
_LOOK_AGAIN = 0.02  # of the limit: once so much has come
_AT_ONCE = 64  # files are removed while nobody can begin to use one


def default_limit(folder: Path) -> int:
    """20 GB, or a tenth of the disk if that is less; bytes."""
    return min(20_000_000_000, shutil.disk_usage(folder).total // 10)


class Cache:
    """Keeps a folder of blobs below its limit. For any number of threads of the one process that removes there."""

    def __init__(self, blobs: Blobs, limit_bytes: int):
        """`limit_bytes`: of all files of blobs. What is in use together may be more, for so long."""
        self._blobs = blobs
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._pinned: list[Collection[str]] = []
        self._for_a_while: dict[str, float] = {}  # until when, on the monotonic clock
        self._trimming = threading.Lock()
        self._added_bytes = limit_bytes  # nobody knows yet what is there

    @contextlib.contextmanager
    def pinned(self, digests: Collection[str]) -> Iterator[None]:
        """Within it none of these blobs is removed, whether they are here already or come meanwhile."""
        with self._lock:
            self._pinned.append(digests)
        try:
            yield
        finally:
            with self._lock:
                self._pinned = [each for each in self._pinned if each is not digests]

    def pin_for(self, digest: str, seconds: float) -> None:
        """A blob is about to be read by somebody who can't tell when that is done."""
        with self._lock:
            self._for_a_while[digest] = time.monotonic() + seconds

    def trim(self) -> int:
        """Remove what was used longest ago until the rest is below the limit; how many bytes went. Blocks.

        Raises OSError.
        """
        with self._trimming:
            files = list(self._blobs.files())
            too_many = sum(file.size for file in files) - self._limit_bytes
            if too_many <= 0:
                return 0
            wanted = too_many + int(self._limit_bytes * (1 - _DOWN_TO))
            files.sort(key=lambda file: file.used_at)
            removed = 0
            while files and removed < wanted:
                batch, files = files[:_AT_ONCE], files[_AT_ONCE:]
                removed += self._remove(batch, wanted - removed)
            log.info("the cache of blobs was %d MB above its limit; %d MB went", too_many // 10**6, removed // 10**6)
            return removed

    def trim_soon(self, added_bytes: int | None = None) -> None:
        """`trim`, in a thread of its own unless one is at it.

        `added_bytes` is what has come: of a small part of the limit it is put off, since each looks at all files.
        """
        with self._lock:
            self._added_bytes += self._limit_bytes if added_bytes is None else added_bytes
            if self._added_bytes < self._limit_bytes * _LOOK_AGAIN:
                return
            self._added_bytes = 0
        if not self._trimming.locked():
            threading.Thread(target=self._trim_quietly, name="blob-cache", daemon=True).start()

    def _trim_quietly(self) -> None:
        try:
            self.trim()
        except OSError as error:
            log.warning("the cache of blobs can't be trimmed: %s", error)

    def _remove(self, batch: list[BlobFile], wanted: int) -> int:
        """Remove some files, if nobody uses them by now, until so many bytes went; how many did."""
        removed = 0
        with self._lock:
            in_use = self._in_use()
            for file in batch:
                if removed >= wanted:
                    break
                if file.path not in in_use and self._blobs.remove(file):
                    removed += file.size
        return removed

    def _in_use(self) -> set[str]:
        now = time.monotonic()
        self._for_a_while = {digest: until for digest, until in self._for_a_while.items() if until > now}
        digests = [digest for some in (*self._pinned, self._for_a_while) for digest in some]
        return {span.path for span in map(self._blobs.find, digests) if span is not None}

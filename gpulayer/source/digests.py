"""SHA-256 of files, remembered by what `stat` says of them, so that an unchanged folder is never read twice.

A remembered digest is used only when size, mtime, ctime and inode are what they were. That alone is not safe: a file
can change again within one tick of the file system's clock and keep its stamps. So, as git does with its index, a
digest is remembered only when the file's stamps were older, by a margin, than the moment at which the reading began
('racy' otherwise): a file edited just now is read again by the next scan.
"""

from __future__ import annotations

import hashlib
import os
import stat
import struct
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from gpulayer.source.errors import SourceChanged, SourceError, shown

__all__ = ["OPEN_FLAGS", "DigestCache", "Hashed", "Known", "hash_descriptor", "hash_file", "is_racy"]

TRIES = 3
"""How often a file that changes while it is read is read."""

FINE_MARGIN_NS = 100_000_000
"""Margin where stamps have fractions of a second: kernels advance them every 1 to 10 ms."""

COARSE_MARGIN_NS = 2_100_000_000
"""Margin where stamps are whole seconds: FAT counts in twos, HFS+ and ext3 in ones."""

READ_AT_ONCE_BYTES = 1 << 18
_MAGIC = b"GPLDIG02"
_HEAD = struct.Struct(">Q32s")
_SLACK_ROWS = 1000
_ON_WINDOWS = os.name == "nt"
OPEN_FLAGS = (
    os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
)  # a file may have become a symlink or a fifo since the scan: neither is followed nor waited for


class Known(NamedTuple):
    """What the cache remembers of a file: the stamps it had, its digest, and whether its content was looked at."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    sha256: str
    clean: bool  # the content was searched for secrets and none was found


@dataclass(frozen=True, kw_only=True, slots=True)
class Hashed:
    """A file as it was read: digest, the `stat` that held before and after, and when the reading began."""

    sha256: str
    stat: os.stat_result
    started_ns: int
    content: bytes | None  # only where it was asked for


def is_racy(status: os.stat_result, moment_ns: int) -> bool:
    """Whether a file with this `stat` could still change without a change of its stamps.

    Args:
        status: of the file.
        moment_ns: when its reading began, in nanoseconds since the epoch.
    """
    newest_ns = max(status.st_mtime_ns, status.st_ctime_ns)
    whole_seconds = status.st_mtime_ns % 1_000_000_000 == 0 and status.st_ctime_ns % 1_000_000_000 == 0
    return newest_ns > moment_ns - (COARSE_MARGIN_NS if whole_seconds else FINE_MARGIN_NS)


def hash_descriptor(descriptor: int) -> tuple[str, int]:
    """SHA-256 (hexadecimal) and length in bytes of what is left to read from an open file."""
    sha256 = hashlib.sha256()
    length = 0
    while data := os.read(descriptor, READ_AT_ONCE_BYTES):
        sha256.update(data)
        length += len(data)
    return sha256.hexdigest(), length


def hash_file(path: str, *, keep: bool = False, clock_ns: Callable[[], int] = time.time_ns) -> Hashed:
    """Read a regular file and take its digest; a file that changes meanwhile is read again.

    Args:
        path: absolute path; its last part is not followed if it is a symlink (an error).
        keep: also return the content (for small files only).
        clock_ns: the time, in nanoseconds since the epoch.

    Raises:
        FileNotFoundError: it is gone.
        SourceChanged: it changed during each of the tries.
        SourceError: it cannot be read, or is no regular file any more.
    """
    for _ in range(TRIES):
        hashed = _hash_once(path, keep, clock_ns())
        if hashed is not None:
            return hashed
    raise SourceChanged(
        f"{shown(path)} changes while it is read ({TRIES} tries); stop what writes it, or leave it out with --exclude"
    )


class DigestCache:
    """Digests by absolute path, in memory and, if a path is given, in a file between processes.

    Owned by one scanning process; several may share the file, and the last `save` of a path wins. It is a cache: a file
    that is missing, of another version or damaged counts as empty.

    Args:
        path: the file to load from and `save` to, or None for memory only.
        clock_ns: the time, in nanoseconds since the epoch.
        max_entries: how many files are remembered; the ones longest not hashed go first.
    """

    def __init__(
        self, path: Path | None = None, *, clock_ns: Callable[[], int] = time.time_ns, max_entries: int = 200_000
    ) -> None:
        self._path = path
        self._clock_ns = clock_ns
        self._max_entries = max_entries
        # How many rows the file has, those out of date included; 0 where it has to be written anew.
        self._known, self._rows = _load(path) if path is not None else ({}, 0)
        self._fresh: set[str] = set()

    def lookup(self, path: str, status: os.stat_result) -> Known | None:
        """What is remembered of the file, if its stamps are still those."""
        known = self._known.get(path)
        if (
            known is not None
            and known[1] == status.st_mtime_ns
            and known[0] == status.st_size
            and (_ON_WINDOWS or (known[2] == status.st_ctime_ns and known[3] == status.st_ino))
        ):
            return known
        return None

    def remember(self, path: str, hashed: Hashed, *, clean: bool = False) -> None:
        """Keep the digest of a file just hashed, unless it is racy.

        Args:
            path: absolute.
            hashed: from `hash_file`.
            clean: its content was searched for secrets and none was found.
        """
        self._known.pop(path, None)
        self._fresh.discard(path)
        status = hashed.stat
        if is_racy(status, hashed.started_ns):
            return
        while len(self._known) >= self._max_entries:
            self._known.pop(next(iter(self._known)))
        self._known[path] = Known(
            status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, hashed.sha256, clean
        )
        self._fresh.add(path)

    def digest(self, path: str | os.PathLike[str]) -> str:
        """SHA-256 of a regular file (symlinks are followed), from memory where that is safe.

        Raises:
            FileNotFoundError, SourceError: as `hash_file`.
        """
        name = os.path.realpath(path)
        known = self.lookup(name, os.stat(name, follow_symlinks=False))
        if known is not None:
            return known.sha256
        hashed = self.hash(name)
        self.remember(name, hashed)
        return hashed.sha256

    def hash(self, path: str, *, keep: bool = False) -> Hashed:
        """Read the file now, by this cache's clock; see `hash_file`. Nothing is remembered."""
        return hash_file(path, keep=keep, clock_ns=self._clock_ns)

    def save(self) -> None:
        """Write what this process learned to the file; nothing new: nothing is written.

        It is added at the file's end, in one write, so that a changed file costs a hundred bytes. When half of what the
        file holds is out of date it is written anew, in one atomic step.

        Raises:
            OSError: the file cannot be written.
        """
        if self._path is None or not self._fresh:
            return
        learned = [(path, self._known[path]) for path in self._fresh if path in self._known]
        if self._rows and self._rows + len(learned) <= 2 * len(self._known) + _SLACK_ROWS:
            self._rows = self._rows + len(learned) if _append(self._path, _encode(learned)) else 0
        else:
            merged = _load(self._path)[0]
            for path, known in learned:
                merged.pop(path, None)
                merged[path] = known
            newest = list(merged.items())[-self._max_entries :]
            _replace(self._path, _MAGIC + _encode(newest))
            self._rows = len(newest)
        self._fresh.clear()

    def __len__(self) -> int:
        return len(self._known)


def _hash_once(path: str, keep: bool, started_ns: int) -> Hashed | None:
    try:
        descriptor = os.open(path, OPEN_FLAGS)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise SourceError(f"{shown(path)} cannot be read: {error.strerror}; leave it out with --exclude") from error
    try:
        before = os.fstat(descriptor)
        if not stat.S_ISREG(before.st_mode):
            raise SourceError(f"{shown(path)} is no regular file any more; run it again")
        content: bytes | None = None
        if keep or before.st_size < READ_AT_ONCE_BYTES:
            content = os.read(descriptor, before.st_size + 1)  # one more shows that it has grown
            sha256, length = hashlib.sha256(content).hexdigest(), len(content)
        else:
            sha256, length = hash_descriptor(descriptor)
    finally:
        os.close(descriptor)
    # By name: an editor that saves by rename leaves the file that we read untouched.
    after = os.stat(path, follow_symlinks=False)
    if length != before.st_size or _stamps(before) != _stamps(after):
        return None
    return Hashed(sha256=sha256, stat=before, started_ns=started_ns, content=content if keep else None)


def _stamps(status: os.stat_result) -> tuple[int, int, int, int]:
    return (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


def _encode(known: Iterable[tuple[str, Known]]) -> bytes:
    """One batch: its length, its checksum, and rows."""
    import msgpack

    rows = [(os.fsencode(path), *entry[:4], bytes.fromhex(entry.sha256), entry.clean) for path, entry in known]
    payload: bytes = msgpack.packb(rows) or b""
    return _HEAD.pack(len(payload), hashlib.sha256(payload).digest()) + payload


def _load(path: Path) -> tuple[dict[str, Known], int]:
    """What the file says, and how many rows it has; 0 rows where nothing may be added at its end."""
    import msgpack

    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return {}, 0
    if not data.startswith(_MAGIC):
        return {}, 0
    known: dict[str, Known] = {}
    count, at = 0, len(_MAGIC)
    while at < len(data):
        head, at = data[at : at + _HEAD.size], at + _HEAD.size
        length, checksum = _HEAD.unpack(head) if len(head) == _HEAD.size else (0, b"")
        payload, at = data[at : at + length], at + length
        # The checksum makes a torn or foreign file a smaller cache, never a wrong digest.
        if hashlib.sha256(payload).digest() != checksum:
            return known, 0
        rows = msgpack.unpackb(payload, use_list=False)
        count += len(rows)
        for row in rows:
            name = os.fsdecode(row[0])
            known.pop(name, None)  # the ones longest not hashed stand first
            known[name] = Known(row[1], row[2], row[3], row[4], row[5].hex(), row[6])
    return known, count


def _append(path: Path, data: bytes) -> bool:
    """Whether all of it was written."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o600)
    try:
        return os.write(descriptor, data) == len(data)
    finally:
        os.close(descriptor)


def _replace(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=path.name, suffix=".tmp", dir=path.parent)  # mode 0600
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise

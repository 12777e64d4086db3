"""Blobs: bytes by their SHA-256, in a folder of a control plane or a worker.

A blob has a file of its own, so that a workspace's file can be a reflink of it. But where one transfer brings many
small ones, they lie together in shared files: making 2,000 files takes longer than sending them, on either side.

    ab/abcd…      a blob of its own
    shared/NAME   bytes of blobs; an index of (SHA-256, offset, length); offset and length of the index, magic
    new/          what is being written; it is renamed into place when it is whole
    partial/      what is here in part, and goes on some time: see `gpulayer.source.partial`
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import re
import secrets
import struct
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from gpulayer.source.spans import Span, SpanReader, read_at, write_all, write_pieces

__all__ = ["BlobError", "BlobFile", "BlobReader", "Blobs", "Span", "SpanReader", "read_at", "write_all"]

SHARED_BELOW_BYTES = 65_536
"""Smaller blobs may share a file: below, a copy costs about what a reflink does."""

SHARED_AT_LEAST = 16
"""So many blobs that came together get a shared file; fewer get one each."""

SHARED_FILE_BYTES = 1 << 22
"""About so large are shared files. A kill loses what is not yet in one, and nothing else of an upload."""

USED_EVERY_S = 600.0
"""So long the use of a file is not noted again."""

_USED_FILES = 10_000
_FOLDER = re.compile(r"[0-9a-f]{2}")
PARTIAL_KEPT_S = 7 * 86_400.0
"""So long after its last piece a blob that is here in part is kept."""

_LEFT_OVER_S = 86_400.0
_RELIED_S = 3600.0
_COARSE_NS = 50_000_000
_DIGEST = re.compile(r"[0-9a-f]{64}")
_ROW = struct.Struct(">32sQQ")
_FOOT = struct.Struct(">QQ8s")
_MAGIC = b"GPLBLOB\x01"
_NEW_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


class BlobError(ValueError):
    """Bytes that are not what their digest says, or a digest that is none."""


class BlobFile(NamedTuple):
    """A file that one blob lies in, or many."""

    path: str
    size: int  # bytes
    used_at: float  # Unix time, seconds; right to some minutes


class BlobReader:
    """A folder of blobs that somebody else fills; nothing in it is made or changed."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._shared = _Shared(folder / "shared")

    def find(self, digest: str) -> Span | None:
        """Where the blob is, or None. Raises `BlobError` for what is no digest."""
        span = self._shared.find(digest) or self._own(digest)
        if span is None and self._shared.look():
            span = self._shared.find(digest)
        return span

    def __contains__(self, digest: str) -> bool:
        return self.find(digest) is not None

    def missing(self, digests: Iterable[str] | Mapping[str, int]) -> list[str]:
        """Those of `digests` that are not here, each once, in order.

        With sizes (bytes) a blob of another size is missing too: a power cut may have cut it short.
        """
        sizes: Mapping[str, int | None] = digests if isinstance(digests, Mapping) else dict.fromkeys(digests)
        return [
            digest
            for (digest, size), span in zip(sizes.items(), self._spans(sizes), strict=True)
            if span is None or (size is not None and span.size != size)
        ]

    def _spans(self, digests: Iterable[str]) -> list[Span | None]:
        """`find` for many."""
        self._shared.look()
        return [self._shared.find(digest) or self._own(digest) for digest in digests]

    def read(self, digest: str) -> bytes:
        """A small blob's bytes. Raises FileNotFoundError where it is not here."""
        span = self.find(digest)
        if span is None:
            raise FileNotFoundError(f"no blob {digest} in {self.folder}")
        with SpanReader() as reader:
            return b"".join(reader.chunks(span))

    def _own(self, digest: str) -> Span | None:
        path = self._own_path(digest)
        try:
            return Span(path, 0, os.stat(path).st_size)
        except FileNotFoundError:
            return None

    def _own_path(self, digest: str) -> str:
        if not _DIGEST.fullmatch(digest):
            raise BlobError(f"not a SHA-256 digest: {digest[:80]!r}")
        return f"{self.folder}/{digest[:2]}/{digest}"


class Blobs(BlobReader):
    """A folder of blobs. A blob is there whole or not at all; any number of threads and processes may add."""

    def __init__(self, folder: Path):
        super().__init__(folder)
        self._new = folder / "new"
        for made in (folder, folder / "shared", folder / "partial", self._new):
            made.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._numbers = itertools.count()
        self._gate = threading.Lock()  # whoever counts on a blob, and whoever removes one
        self._relying = threading.Lock()  # the same, for a moment only
        self._relied: dict[str, float] = {}  # digest -> when somebody last asked for it by `rely`, Unix time
        self._used: dict[str, float] = {}  # when the time of a file was set
        self._clear_left_overs()

    def path(self, digest: str) -> Path:
        """Where the blob's own file is or would be. Raises `BlobError` for what is no digest."""
        return Path(self._own_path(digest))

    def put(self, digest: str, chunks: Iterable[bytes]) -> None:
        """Store a blob; raises `BlobError`, and nothing is kept, when the bytes have another digest."""
        self._own_path(digest)
        self._store(digest, _checked(digest, chunks))

    def adopt(self, digest: str, path: str) -> None:
        """Let a file of the same disk be the blob: whoever calls has checked its bytes. Raises OSError."""
        _place(path, self._own_path(digest))

    def files(self) -> Iterator[BlobFile]:
        """Every file that blobs lie in; what is on its way is not among them. Raises OSError."""
        with os.scandir(self.folder) as entries:
            folders = [entry.path for entry in entries if _FOLDER.fullmatch(entry.name)]
        for folder in [*folders, f"{self.folder}/shared"]:
            with os.scandir(folder) as entries:
                for entry in entries:
                    with contextlib.suppress(FileNotFoundError):
                        status = entry.stat()
                        yield BlobFile(entry.path, status.st_size, status.st_mtime)

    def in_file(self, path: str) -> list[str]:
        """The digests of the blobs in a file of `files`."""
        folder, name = os.path.split(path)
        if os.path.basename(folder) != "shared":
            return [name]
        try:
            index = _index_of(path) or b""
        except FileNotFoundError:
            return []
        return [raw.hex() for raw, _, _ in _ROW.iter_unpack(index)]

    def used(self, digests: Iterable[str]) -> None:
        """Note, with their files, that these blobs are used now: the times of files are what is looked at."""
        now = time.time()
        if len(self._used) > _USED_FILES:
            self._used.clear()
        for path in {span.path for span in self._spans(digests) if span is not None}:
            if now - self._used.get(path, 0.0) > USED_EVERY_S:
                self._used[path] = now
                with contextlib.suppress(FileNotFoundError):
                    os.utime(path)

    def claim(self, digests: Mapping[str, int]) -> list[str]:
        """`missing`; those that are here are used from now on."""
        with self._gate:
            self.used(digests)
            return self.missing(digests)

    def rely(self, digest: str) -> bool:
        """Whether a blob is here; then nothing removes it for a while. Waits for no disk but to look for it.

        Raises `BlobError` for what is no digest.
        """
        with self._relying:
            here = self.find(digest) is not None
            if here:
                self._relied[digest] = time.time()
        return here

    def relied(self) -> set[str]:
        """The blobs that `rely` keeps now."""
        with self._relying:
            now = time.time()
            self._relied = {digest: at for digest, at in self._relied.items() if now - at < _RELIED_S}
            return set(self._relied)

    def remove(self, file: BlobFile) -> bool:
        """Remove a file with the blobs in it, unless it was used meanwhile; whether it is gone. Raises OSError."""
        digests = self.in_file(file.path)
        try:
            with self._gate, self._relying:
                if os.stat(file.path).st_mtime != file.used_at or not self._relied.keys().isdisjoint(digests):
                    return False
                gone = f"{self._new}/{os.getpid()}-{next(self._numbers)}-{secrets.token_hex(4)}"
                os.replace(file.path, gone)
                self._shared.forget({file.path}, map(bytes.fromhex, digests))
            os.unlink(gone)  # of a large file it takes its time
        except FileNotFoundError:
            self._shared.forget({file.path}, map(bytes.fromhex, digests))
        return True

    def take(self, blobs: Iterable[tuple[str, int, Iterable[bytes]]]) -> int:
        """Store blobs whose digests are checked while their bytes are read, as `read_pack` gives them; how many.

        Where that raises, what came before is kept: whoever sends them again need not send these.
        """
        count = 0
        gathered: list[tuple[str, bytes]] = []
        size_bytes = 0
        try:
            for digest, size, chunks in blobs:
                if size < SHARED_BELOW_BYTES:
                    gathered.append((digest, b"".join(map(bytes, chunks))))  # their memory may be used again
                    size_bytes += size
                else:
                    self._store(digest, chunks)
                count += 1
                if size_bytes >= SHARED_FILE_BYTES:
                    self._store_gathered(gathered)
                    gathered, size_bytes = [], 0
        finally:
            self._store_gathered(gathered)
        return count

    def _store(self, digest: str, chunks: Iterable[bytes]) -> None:
        with self._new_file(self._own_path(digest)) as descriptor:
            for chunk in chunks:
                write_all(descriptor, chunk)

    def _store_gathered(self, gathered: list[tuple[str, bytes]]) -> None:
        if len(gathered) < SHARED_AT_LEAST:
            for digest, data in gathered:
                self._store(digest, (data,))
            return
        target = self._shared.new_path()
        rows: list[bytes] = []
        end = 0
        for digest, data in gathered:
            rows.append(_ROW.pack(bytes.fromhex(digest), end, len(data)))
            end += len(data)
        index = b"".join(rows)
        with self._new_file(target) as descriptor:
            write_pieces(descriptor, [*(data for _, data in gathered), index, _FOOT.pack(end, len(index), _MAGIC)])
        self._shared.add(target, index)

    @contextlib.contextmanager
    def _new_file(self, target: str) -> Iterator[int]:
        """A file that is renamed into place when the block ends well, and removed when it raises."""
        name = f"{self._new}/{os.getpid()}-{next(self._numbers)}-{secrets.token_hex(4)}"
        descriptor = os.open(name, _NEW_FLAGS, 0o600)
        try:
            try:
                yield descriptor
            finally:
                os.close(descriptor)
            _place(name, target)
        except BaseException:
            os.unlink(name)
            raise

    def _clear_left_overs(self) -> None:
        """What a killed process was writing; whatever is a day old, nobody is writing any more."""
        clear_old(self._new, _LEFT_OVER_S)
        clear_old(self.folder / "partial", PARTIAL_KEPT_S)


def _place(path: str, target: str) -> None:
    """Rename a file; the folder is made with the first one in it."""
    try:
        os.replace(path, target)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(target), mode=0o700, exist_ok=True)
        os.replace(path, target)


def clear_old(folder: Path, age_s: float) -> int:
    """Remove the files of a folder that were not written for so long; how many. Raises OSError."""
    removed = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                if entry.stat().st_mtime < time.time() - age_s:
                    os.unlink(entry.path)
                    removed += 1
    return removed


class _Shared:
    """The files that blobs share, and where each blob is in them: 300 bytes of memory a blob."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._lock = threading.Lock()
        self._known: set[str] = set()
        self._where: dict[bytes, Span] = {}
        self._stamp_ns = -1

    def find(self, digest: str) -> Span | None:
        try:
            return self._where.get(bytes.fromhex(digest))
        except ValueError:
            return None

    def new_path(self) -> str:
        return f"{self._folder}/{secrets.token_hex(16)}"

    def add(self, path: str, index: bytes) -> None:
        with self._lock:
            if path in self._known:
                return
            self._known.add(path)
            self._where.update((raw, Span(path, offset, size)) for raw, offset, size in _ROW.iter_unpack(index))

    def forget(self, paths: set[str], raws: Iterable[bytes]) -> None:
        """Files are gone: those of these blobs that lay in them lack."""
        with self._lock:
            self._known -= paths
            for raw in raws:
                span = self._where.get(raw)
                if span is not None and span.path in paths:
                    del self._where[raw]

    def look(self) -> bool:
        """Take in files that this process does not know yet; whether there may have been some."""
        try:
            stamp_ns = os.stat(self._folder).st_mtime_ns
        except FileNotFoundError:
            return False
        if stamp_ns == self._stamp_ns:
            return False
        # A clock may be coarse: of a folder that changed just now more may change without another stamp.
        self._stamp_ns = stamp_ns if time.time_ns() - stamp_ns > _COARSE_NS else -1
        with os.scandir(self._folder) as entries:
            there = {entry.path for entry in entries}
        unknown = there - self._known
        if gone := self._known - there:  # somebody made room
            self.forget(gone, list(self._where))
        for path in unknown:
            with contextlib.suppress(FileNotFoundError):  # somebody just removed it
                index = _index_of(path)
                if index is not None:
                    self.add(path, index)
        return bool(unknown)


def _index_of(path: str) -> bytes | None:
    """The index of a shared file; None for one that is no such, or cut short: its blobs count as missing."""
    with SpanReader() as reader:
        descriptor = reader.descriptor(path)
        size = os.fstat(descriptor).st_size
        if size < _FOOT.size:
            return None
        offset, length, magic = _FOOT.unpack(read_at(descriptor, _FOOT.size, size - _FOOT.size))
        if magic != _MAGIC or offset + length + _FOOT.size != size or length % _ROW.size:
            return None
        index = read_at(descriptor, length, offset)
        return index if len(index) == length else None


def _checked(digest: str, chunks: Iterable[bytes]) -> Iterator[bytes]:
    hasher = hashlib.sha256()
    for chunk in chunks:
        hasher.update(chunk)
        yield chunk
    if hasher.hexdigest() != digest:
        raise BlobError(f"blob {digest[:12]}…: the bytes that came have digest {hasher.hexdigest()[:12]}…")

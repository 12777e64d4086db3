"""What is removed after a while: blobs that no kept job names, streams of jobs that are gone, uploads that never ended.

A thread of its own looks now and then, a little at a time; whatever is asked of the control plane goes before.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from gpulayer.source import Manifest, SourceError
from gpulayer.source.blobs import USED_EVERY_S, BlobFile, Blobs
from gpulayer.source.cache import default_limit
from gpulayer.source.partial import Partials
from gpulayer_server.store.database import StoreError
from gpulayer_server.store.kept import Kept
from gpulayer_server.store.streams import stream_files

log = logging.getLogger("gpulayer.server")

UNUSED_S = 3600.0
"""So long a blob that nobody names is kept after its last use: what a client was told is here, it will count on."""

_FIRST_S = 60.0
_EVERY_S = 3600.0
_PAUSE_S = 0.01
_DOWN_TO = 0.9  # of the limit: then some hours pass before the next mark


class Retention:
    """Removes what nobody will ask for. `close` it before its folder is another's."""

    def __init__(self, data: Path, blobs: Blobs, partials: Partials, limit_bytes: int | None = None):
        """`limit_bytes`: of blobs; None for `default_limit`. What kept jobs name is kept also where that is more."""
        self._data = data
        self._blobs = blobs
        self._partials = partials
        self._limit_bytes = default_limit(data) if limit_bytes is None else limit_bytes
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpulayer-retention", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop, and return when it has."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        wait_s = _FIRST_S
        while not self._stop.wait(wait_s):
            wait_s = _EVERY_S
            try:
                self.look()
            except (StoreError, OSError, SourceError) as error:
                log.warning("what nobody needs could not be removed, and is tried again in an hour: %s", error)

    def look(self) -> None:
        """Remove what may go now. Blocks. Raises `StoreError`, OSError, `SourceError`."""
        self._partials.clear()
        kept = Kept(self._data / "store.db")
        try:
            self._remove_orphans(kept)
            self._remove_blobs(kept)
        finally:
            kept.close()

    def _go_on(self) -> bool:
        """Give way to whatever else there is to do; whether to go on after it."""
        return not self._stop.wait(_PAUSE_S)

    # ---------------------------------------------------------------- streams

    def _remove_orphans(self, kept: Kept) -> None:
        """Streams whose job was dropped, such as by a control plane that died before it removed them too.

        Files are listed before the store is asked: an attempt is in the store before its stream is there.
        """
        streams = self._data / "streams"
        orphans = {attempt for attempt, _ in stream_files(streams)}
        for some in kept.attempts():
            orphans.difference_update(some)
            if not orphans or not self._go_on():
                return
        removed = 0
        for attempt, path in stream_files(streams) if orphans else ():
            if attempt in orphans:
                Path(path).unlink(missing_ok=True)
                removed += 1
        if removed:
            log.info("%d streams of jobs that are not kept any more were removed", removed)

    # ---------------------------------------------------------------- blobs

    def _remove_blobs(self, kept: Kept) -> None:
        self._blobs.relied()  # what it remembers for long enough, it forgets
        files = list(self._blobs.files())
        too_many = sum(file.size for file in files) - self._limit_bytes
        if too_many <= 0:
            return
        named = self._named(kept)
        wanted = too_many + int(self._limit_bytes * (1 - _DOWN_TO))
        removed = self._remove_unnamed(files, named, wanted)
        if removed < too_many and not self._stop.is_set():
            left = (too_many - removed) // 10**6
            log.warning("the blobs of kept jobs are %d MB more than the limit: keep fewer jobs, or raise it", left)
        log.info("%d MB of blobs that no kept job names were removed", removed // 10**6)

    def _named(self, kept: Kept) -> set[bytes]:
        """The raw digests of all blobs that kept jobs name, by themselves or in a manifest."""
        named: set[bytes] = set()
        manifests: set[str] = set()
        for some in kept.named():
            named.update(bytes.fromhex(digest) for digest in some.blobs | some.manifests)
            manifests |= some.manifests
            self._go_on()
        for digest in manifests - {""}:
            if digest in self._blobs:
                named.update(_named_in(self._blobs.read(digest)))
            self._go_on()
        return named

    def _remove_unnamed(self, files: list[BlobFile], named: set[bytes], wanted: int) -> int:
        """Remove what was used longest ago until so many bytes went; how many did."""
        now = time.time()
        first, later = [], []
        for file in files:
            # A manifest goes before what it names: whoever finds it counts on that.
            if _may_be_manifest(file):
                if now - file.used_at > UNUSED_S:
                    first.append(file)
            elif now - file.used_at > UNUSED_S + 2 * USED_EVERY_S:
                later.append(file)
        removed = self._remove_some(_oldest_first(first), named, wanted)
        if removed < wanted:
            named |= self._relied()  # by jobs that came meanwhile: they found their manifests still here
            removed += self._remove_some(_oldest_first(later), named, wanted - removed)
        return removed

    def _relied(self) -> set[bytes]:
        """The raw digests of all blobs that manifests name which jobs count on that may not be in the store yet."""
        named: set[bytes] = set()
        for digest in self._blobs.relied():
            span = self._blobs.find(digest)
            if span is not None and _begins_as_manifest(span.path, span.offset):
                named.update(_named_in(self._blobs.read(digest)))
        return named

    def _remove_some(self, files: list[BlobFile], named: set[bytes], wanted: int) -> int:
        """The same, of these files."""
        removed = 0
        for file in files:
            if removed >= wanted or self._stop.is_set():
                break
            if named.isdisjoint(map(bytes.fromhex, self._blobs.in_file(file.path))) and self._blobs.remove(file):
                removed += file.size
                self._go_on()
        return removed


def _oldest_first(files: list[BlobFile]) -> list[BlobFile]:
    return sorted(files, key=lambda file: file.used_at)


def _named_in(manifest: bytes) -> Iterator[bytes]:
    return (bytes.fromhex(entry.sha256) for entry in Manifest.from_bytes(manifest).files if entry.sha256)


def _may_be_manifest(file: BlobFile) -> bool:
    """Whether a file begins as manifests do. One that does, and is none, goes first: that harms nobody."""
    return _begins_as_manifest(file.path, 0)


def _begins_as_manifest(path: str, offset: int) -> bool:
    try:
        with open(path, "rb", buffering=0) as opened:
            opened.seek(offset)
            return opened.read(2) == b"\x92\x01"
    except FileNotFoundError:
        return False

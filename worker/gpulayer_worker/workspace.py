"""Workspaces: a job's files, from blobs that are fetched when they lack."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gpulayer.protocol.endpoint import Endpoint, write_private
from gpulayer.protocol.lazily import Lazily
from gpulayer.protocol.types import Struct
from gpulayer.source import Manifest, materialize, read_pack, synchronize, worth_compressing
from gpulayer.source.again import LARGE_BYTES
from gpulayer.source.blobs import SHARED_BELOW_BYTES, BlobReader, Blobs, Span
from gpulayer.source.cache import Cache, default_limit
from gpulayer.source.download import fetch_part
from gpulayer.source.materialize import Written
from gpulayer.source.streams import Stream, body_of
from gpulayer_worker.web import open_client

if TYPE_CHECKING:
    import httpx
else:
    httpx = Lazily("httpx")

TIMEOUT = (30.0, 120.0, 30.0, 30.0)  # to connect, to read, to write, for a free connection; in seconds
_CHUNK_BYTES = 256 * 1024
_TOLD_EVERY_S = 0.5
_READ_WITHIN_S = 600.0  # a kernel reads the values that it is given


class FetchError(RuntimeError):
    """The control plane could not give the source; it may be asked again, for what lacks then."""


class _Kept(Struct, frozen=True, kw_only=True):
    """What is remembered of a session's workspace: the bundle, and how each of its entries was left, in their order."""

    digest: str
    written: tuple[tuple[int, int] | None, ...]  # size, mtime in nanoseconds; None for what is not ours any more


class _Progress:
    """How far the large blobs are, said now and then."""

    def __init__(self, total_bytes: int, tell: Callable[[str], None]):
        self._total_bytes = total_bytes
        self._tell = tell
        self._done_bytes = 0
        self._next_s = 0.0

    def of_one(self, got_bytes: int) -> None:
        """So much of the one that is on its way is here."""
        if time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + _TOLD_EVERY_S
            got, total = (self._done_bytes + got_bytes) / 1e6, self._total_bytes / 1e6
            self._tell(f"fetching large files · {got:.0f} of {total:.0f} MB")

    def one_more(self, size_bytes: int) -> None:
        """One is here whole."""
        self._done_bytes += size_bytes


class Workspaces:
    """Makes workspaces from bundles. Its methods block: call them in a thread, for one workspace one at a time."""

    def __init__(
        self,
        blobs: Blobs,
        endpoint: Callable[[], Endpoint],
        beside: Callable[[], Path | None] = lambda: None,
        *,
        cache_bytes: int | None = None,
    ):
        """What is used of `blobs` is kept, and of the rest the last used, `cache_bytes` at most (`default_limit`).

        `beside` names the folder of the control plane's blobs where that is on this machine.
        What is there is read there: for a local worker nothing travels, and no blob is stored twice.
        """
        self._blobs = blobs
        self._cache = Cache(blobs, default_limit(blobs.folder) if cache_bytes is None else cache_bytes)
        self._endpoint = endpoint
        self._beside = beside
        self._reader: BlobReader | None = None  # of that folder
        self._lock = threading.Lock()
        self._fetching: dict[str, threading.Lock] = {}  # by digest: large blobs that are on their way
        self._kept: dict[Path, tuple[Manifest, Written]] = {}  # of sessions' workspaces, by their state's file
        self._digests: dict[Path, str] = {}  # of the bundles that these are at

    def is_current(self, digest: str, state: Path) -> bool:
        """Whether `update` would find nothing to do. Blocks for nothing."""
        return self._digests.get(state) == digest

    def forget(self, state: Path) -> None:
        """A session's workspace is gone."""
        self._digests.pop(state, None)
        self._kept.pop(state, None)

    def fresh(self, digest: str, target: Path, tell: Callable[[str], None]) -> None:
        """A new workspace with a bundle's files; an empty one for no bundle.

        Nothing runs in `target` yet: what an agent that died over this left there goes.
        """
        if target.exists():
            shutil.rmtree(target)
        target.mkdir(mode=0o700, parents=True)
        if digest:
            with self._fetched(digest, tell) as manifest:
                materialize(manifest, target, self._find)

    def update(self, digest: str, target: Path, state: Path, tell: Callable[[str], None]) -> None:
        """Bring a session's workspace to a bundle: only files that changed at home are written.

        `state` is where what was written is remembered. Raises `SourceConflict` for files changed on both sides,
        before anything is touched.
        """
        if digest:
            self._digests.pop(state, None)
            self._bring(digest, target, state, tell)
        else:
            target.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._digests[state] = digest

    def _bring(self, digest: str, target: Path, state: Path, tell: Callable[[str], None]) -> None:
        old, written = self._kept.pop(state, None) or self._remembered(state)
        new = old
        if not target.exists():
            with self._fetched(digest, tell) as new:
                written = self._make(new, target)
        elif old.digest != digest:
            with self._fetched(digest, tell, near=old) as new:
                written = synchronize(old, new, target, self._find, written)
        if new is not old:
            note = _Kept(digest=digest, written=tuple(written.get(entry.path) for entry in new.files))
            write_private(state, msgspec.json.encode(note))
        self._kept[state] = new, written

    def _make(self, manifest: Manifest, target: Path) -> Written:
        """A workspace that is there whole or not at all, so that its files need not be renamed one by one."""
        new = target.with_name(f".{target.name}.new")
        if new.exists():
            shutil.rmtree(new)
        new.mkdir(mode=0o700, parents=True)
        written = materialize(manifest, new, self._find)
        new.rename(target)
        return written

    @contextlib.contextmanager
    def _fetched(self, digest: str, tell: Callable[[str], None], near: Manifest | None = None) -> Iterator[Manifest]:
        """The manifest, with every blob within reach that it names and `near`, which the workspace is at, does not.

        They stay there within the block.
        """
        self._look_beside()
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._cache.pinned((digest,)))
            try:
                with contextlib.ExitStack() as asking:
                    client: httpx.Client | None = None
                    if not self._has(digest):
                        client = asking.enter_context(self._client())
                        self._get(client, digest)
                    manifest = Manifest.from_bytes(self._blobs.read(digest), near)
                    named = self._named(manifest, near)
                    stack.enter_context(self._cache.pinned(named))
                    if missing := self._missing(named):
                        self._get_all(client or asking.enter_context(self._client()), missing, tell)
            except httpx.HTTPError as error:
                raise FetchError(f"bundle {digest[:12]}… could not be fetched: {why(error)}") from error
            self._blobs.used((digest, *named))
            yield manifest
        if missing:
            self._cache.trim_soon()

    def _has(self, digest: str) -> bool:
        """Whether a manifest is in the cache; one that is within reach is taken into it, for when that ends."""
        if digest in self._blobs:
            return True
        if self._reader is None or digest not in self._reader:
            return False
        self._blobs.put(digest, [self._reader.read(digest)])
        return True

    @property
    def blobs(self) -> Blobs:
        """This worker's own blobs."""
        return self._blobs

    def at_hand(self, digest: str) -> Span | None:
        """Where a blob is, if nothing has to be fetched for it: it stays there for a while. Waits for no network."""
        self._look_beside()
        self._cache.pin_for(digest, _READ_WITHIN_S)
        return self._find(digest)

    def fetch(
        self, digests: Sequence[str], client: httpx.Client, came: Callable[[str], object] = lambda digest: None
    ) -> None:
        """Have these blobs here, by one request; `came` is told of each large one once it is.

        Raises `FetchError`, `SourceError`, `BlobError`.
        """
        wanted = set(digests)
        size_bytes = 0

        def told(stream: Stream) -> Iterator[tuple[str, int, Iterator[bytes]]]:
            nonlocal size_bytes
            for each in read_pack(stream):
                if each[0] in wanted:
                    yield each  # the next one is asked for when this is stored, if it gets a file of its own
                    size_bytes += each[1]
                    if each[1] >= SHARED_BELOW_BYTES:
                        came(each[0])

        try:
            with client.stream("POST", "/v1/blobs/fetch", content=msgspec.json.encode(digests)) as response:
                response.raise_for_status()
                self._blobs.take(told(body_of(response)))
        except httpx.HTTPError as error:
            raise FetchError(f"{len(digests)} blobs could not be fetched: {why(error)}") from error
        self._cache.trim_soon(size_bytes)

    def blob(self, digest: str, tell: Callable[[str], None], what: str = "the values of --in") -> Span:
        """Where one blob is, fetched if it is not within reach: `what` it holds. Raises `FetchError`, `BlobError`."""
        self._look_beside()
        self._cache.pin_for(digest, _READ_WITHIN_S)
        span = self._find(digest)
        if span is not None:
            return span
        tell(f"fetching {what}")
        try:
            with self._client() as client:
                self._get(client, digest)
        except httpx.HTTPError as error:
            raise FetchError(f"blob {digest[:12]}… could not be fetched: {why(error)}") from error
        self._cache.trim_soon()
        path = self._blobs.path(digest)
        return Span(str(path), 0, path.stat().st_size)

    def _look_beside(self) -> None:
        folder = self._beside()
        if folder is None or not os.access(folder / "shared", os.R_OK | os.X_OK):  # of another user, or another place
            self._reader = None
        elif self._reader is None or self._reader.folder != folder:
            self._reader = BlobReader(folder)

    def _find(self, digest: str) -> Span | None:
        span = self._blobs.find(digest)
        return self._reader.find(digest) if span is None and self._reader is not None else span

    def _named(self, manifest: Manifest, near: Manifest | None) -> dict[str, int]:
        """Blobs that a workspace needs, with their sizes in bytes; what is in it already need not be in the cache."""
        there = near.by_path if near is not None else {}
        files = [entry for entry in manifest.files if there.get(entry.path) != entry]
        return {entry.sha256: entry.size for entry in files if entry.sha256}

    def _missing(self, sizes: dict[str, int]) -> dict[str, int]:
        """Those that lack."""
        for blobs in (self._blobs, self._reader):
            if blobs is not None and sizes:
                sizes = {digest: sizes[digest] for digest in blobs.missing(sizes)}
        return sizes

    def _remembered(self, state: Path) -> tuple[Manifest, Written]:
        """How a workspace was left, by an agent before us."""
        try:
            kept = msgspec.json.decode(state.read_bytes(), type=_Kept)
        except FileNotFoundError:
            return Manifest(files=()), {}
        self._look_beside()
        if not self._has(kept.digest):
            try:
                with self._client() as client:
                    self._get(client, kept.digest)
            except httpx.HTTPError as error:
                raise FetchError(f"bundle {kept.digest[:12]}… could not be fetched: {why(error)}") from error
        manifest = Manifest.from_bytes(self._blobs.read(kept.digest))
        left = zip(manifest.files, kept.written, strict=True)
        return manifest, {entry.path: written for entry, written in left if written is not None}

    def _client(self) -> httpx.Client:
        return open_client(self._endpoint(), TIMEOUT)

    def _get(self, client: httpx.Client, digest: str) -> None:
        with client.stream("GET", f"/v1/blobs/{digest}") as response:
            response.raise_for_status()
            self._blobs.put(digest, response.iter_bytes(_CHUNK_BYTES))

    def _get_all(self, client: httpx.Client, missing: dict[str, int], tell: Callable[[str], None]) -> None:
        """Small ones together, each large one by itself: that goes on where a connection broke."""
        if small := {digest: size for digest, size in missing.items() if size < LARGE_BYTES}:
            self._get_pack(client, small, tell)
        large = {digest: size for digest, size in missing.items() if size >= LARGE_BYTES}
        progress = _Progress(sum(large.values()), tell)
        for digest, size in large.items():
            self._get_large(client, digest, size, progress)

    def _get_large(self, client: httpx.Client, digest: str, size: int, progress: _Progress) -> None:
        """One thread fetches it; another that wants it too finds it here then."""
        with self._lock:
            fetching = self._fetching.setdefault(digest, threading.Lock())
        with fetching:
            if self._blobs.missing({digest: size}):
                part = str(self._blobs.folder / "partial" / f"{digest}.{size}")
                fetch_part(client, digest, part, size, progress.of_one)
                self._blobs.adopt(digest, part)
        progress.one_more(size)
        with self._lock:
            self._fetching.pop(digest, None)

    def _get_pack(self, client: httpx.Client, missing: dict[str, int], tell: Callable[[str], None]) -> None:
        """Only what lacks is asked for; what came whole before a connection breaks is kept."""
        size_bytes = sum(missing.values())
        tell(f"fetching {len(missing)} file{'s' if len(missing) > 1 else ''}")
        coding = {"coding": "zstd"} if worth_compressing(size_bytes, str(client.base_url)) else {}
        wanted = msgspec.json.encode(list(missing))
        with client.stream("POST", "/v1/blobs/fetch", params=coding, content=wanted) as response:
            response.raise_for_status()
            self._blobs.take(read_pack(body_of(response), wanted=missing))


def why(error: httpx.HTTPError) -> str:
    """What went wrong with a request, in one line."""
    if isinstance(error, httpx.HTTPStatusError):  # its own text has a second line
        return f"the control plane answered {error.response.status_code} {error.response.reason_phrase}"
    return str(error) or type(error).__name__

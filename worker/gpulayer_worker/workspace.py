"""Workspaces: a job's files, from blobs that are fetched when they lack."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import httpx
import msgspec

from gpulayer.protocol.endpoint import Endpoint, write_private
from gpulayer.protocol.types import Struct
from gpulayer.source import Manifest, materialize, read_pack, synchronize, worth_compressing
from gpulayer.source.blobs import BlobReader, Blobs, Span
from gpulayer.source.materialize import Written
from gpulayer.source.pack import Pieces
from gpulayer_worker.web import open_client

TIMEOUT = httpx.Timeout(30.0, read=120.0)
_CHUNK_BYTES = 256 * 1024


class FetchError(RuntimeError):
    """The control plane could not give the source; it may be asked again, for what lacks then."""


class _Kept(Struct, frozen=True, kw_only=True):
    """What is remembered of a session's workspace: the bundle, and how each of its entries was left, in their order."""

    digest: str
    written: tuple[tuple[int, int] | None, ...]  # size, mtime in nanoseconds; None for what is not ours any more


class Workspaces:
    """Makes workspaces from bundles. Its methods block: call them in a thread, for one workspace one at a time."""

    def __init__(
        self, blobs: Blobs, endpoint: Callable[[], Endpoint], beside: Callable[[], Path | None] = lambda: None
    ):
        """`beside` names the folder of the control plane's blobs where that is on this machine.

        What is there is read there: for a local worker nothing travels, and no blob is stored twice.
        """
        self._blobs = blobs
        self._endpoint = endpoint
        self._beside = beside
        self._reader: BlobReader | None = None  # of that folder
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
            materialize(self._fetch(digest, tell), target, self._find)

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
        old, written = self._kept.pop(state, None) or _remembered(state, self._blobs)
        new = old
        if not target.exists():
            new = self._fetch(digest, tell)
            written = self._make(new, target)
        elif old.digest != digest:
            new = self._fetch(digest, tell, near=old)
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

    def _fetch(self, digest: str, tell: Callable[[str], None], near: Manifest | None = None) -> Manifest:
        """The manifest, with every blob within reach that it names and `near`, which the workspace is at, does not."""
        self._look_beside()
        try:
            with contextlib.ExitStack() as stack:
                client: httpx.Client | None = None
                if digest not in self._blobs:
                    if self._reader is not None and digest in self._reader:
                        self._blobs.put(digest, [self._reader.read(digest)])  # needed when that folder may be gone
                    else:
                        client = stack.enter_context(self._client())
                        self._get(client, digest)
                manifest = Manifest.from_bytes(self._blobs.read(digest), near)
                if missing := self._missing(manifest, near):
                    self._get_pack(client or stack.enter_context(self._client()), missing, tell)
        except httpx.HTTPError as error:
            raise FetchError(f"bundle {digest[:12]}… could not be fetched: {why(error)}") from error
        return manifest

    def blob(self, digest: str, tell: Callable[[str], None]) -> Span:
        """Where one blob is, fetched if it is not within reach. Raises `FetchError`, `BlobError`."""
        self._look_beside()
        span = self._find(digest)
        if span is not None:
            return span
        tell("fetching the values of --in")
        try:
            with self._client() as client:
                self._get(client, digest)
        except httpx.HTTPError as error:
            raise FetchError(f"blob {digest[:12]}… could not be fetched: {why(error)}") from error
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

    def _missing(self, manifest: Manifest, near: Manifest | None) -> dict[str, int]:
        """Blobs that lack, with their sizes in bytes; what is in the workspace already need not be in the cache."""
        there = near.by_path if near is not None else {}
        files = [entry for entry in manifest.files if there.get(entry.path) != entry]
        sizes = {entry.sha256: entry.size for entry in files if entry.sha256}
        for blobs in (self._blobs, self._reader):
            if blobs is not None and sizes:
                sizes = {digest: sizes[digest] for digest in blobs.missing(sizes)}
        return sizes

    def _client(self) -> httpx.Client:
        return open_client(self._endpoint(), TIMEOUT)

    def _get(self, client: httpx.Client, digest: str) -> None:
        with client.stream("GET", f"/v1/blobs/{digest}") as response:
            response.raise_for_status()
            self._blobs.put(digest, response.iter_bytes(_CHUNK_BYTES))

    def _get_pack(self, client: httpx.Client, missing: dict[str, int], tell: Callable[[str], None]) -> None:
        """Only what lacks is asked for; what came whole before a connection breaks is kept."""
        size_bytes = sum(missing.values())
        tell(f"fetching {len(missing)} file{'s' if len(missing) > 1 else ''}")
        coding = {"coding": "zstd"} if worth_compressing(size_bytes, str(client.base_url)) else {}
        wanted = msgspec.json.encode(list(missing))
        with client.stream("POST", "/v1/blobs/fetch", params=coding, content=wanted) as response:
            response.raise_for_status()
            body = response.iter_bytes()
            self._blobs.take(read_pack(Pieces(lambda: next(body, b"")), wanted=missing))


def why(error: httpx.HTTPError) -> str:
    """What went wrong with a request, in one line."""
    if isinstance(error, httpx.HTTPStatusError):  # its own text has a second line
        return f"the control plane answered {error.response.status_code} {error.response.reason_phrase}"
    return str(error) or type(error).__name__


def _remembered(state: Path, blobs: Blobs) -> tuple[Manifest, Written]:
    try:
        kept = msgspec.json.decode(state.read_bytes(), type=_Kept)
    except FileNotFoundError:
        return Manifest(files=()), {}
    manifest = Manifest.from_bytes(blobs.read(kept.digest))
    left = zip(manifest.files, kept.written, strict=True)
    return manifest, {entry.path: written for entry, written in left if written is not None}

"""Workspaces: a job's files, from blobs that are fetched when they lack."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import httpx
import msgspec

from gpulayer.protocol.endpoint import Endpoint, write_private
from gpulayer.source import Manifest, materialize, read_pack, synchronize
from gpulayer.source.blobs import Blobs

_TIMEOUT = httpx.Timeout(30.0, read=120.0)


class FetchError(RuntimeError):
    """The control plane could not give the source; it may be asked again."""


class _Body(io.RawIOBase):
    """An HTTP body as a file that `read_pack` reads from."""

    def __init__(self, response: httpx.Response):
        self._chunks = response.iter_bytes(256 * 1024)
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        """Fill some of `buffer`; 0 at the end."""
        if not self._rest:
            self._rest = memoryview(next(self._chunks, b""))
        size = min(len(buffer), len(self._rest))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        return size


class Workspaces:
    """Makes workspaces from bundles. Its methods block: call them in a thread."""

    def __init__(self, blobs: Blobs, endpoint: Callable[[], Endpoint]):
        self._blobs = blobs
        self._endpoint = endpoint
        self._digests: dict[Path, str] = {}  # of the bundles that sessions' workspaces are at, by their state's file

    def is_current(self, digest: str, state: Path) -> bool:
        """Whether `update` would find nothing to do. Blocks for nothing."""
        return self._digests.get(state) == digest

    def forget(self, state: Path) -> None:
        """A session's workspace is gone."""
        self._digests.pop(state, None)

    def fresh(self, digest: str, target: Path, tell: Callable[[str], None]) -> None:
        """A new workspace with a bundle's files; an empty one for no bundle."""
        target.mkdir(mode=0o700, parents=True, exist_ok=True)
        if digest:
            materialize(self._fetch(digest, tell), target, self._blobs.path)

    def update(self, digest: str, target: Path, state: Path, tell: Callable[[str], None]) -> None:
        """Bring a session's workspace to a bundle: only files that changed at home are written.

        `state` is where what was written is remembered. Raises `SourceConflict` for files changed on both sides,
        before anything is touched.
        """
        target.mkdir(mode=0o700, parents=True, exist_ok=True)
        if digest:
            self._digests.pop(state, None)
            self._bring(digest, target, state, tell)
        self._digests[state] = digest

    def _bring(self, digest: str, target: Path, state: Path, tell: Callable[[str], None]) -> None:
        old, written = _remembered(state, self._blobs)
        if old is not None and old.digest == digest:
            return
        new = self._fetch(digest, tell)
        empty = Manifest(files=())
        written = synchronize(old or empty, new, target, self._blobs.path, written)
        note = {"digest": digest, "written": {path: list(stat) for path, stat in written.items()}}
        write_private(state, json.dumps(note).encode("utf-8", "surrogateescape"))

    def _fetch(self, digest: str, tell: Callable[[str], None]) -> Manifest:
        """The manifest, with every blob that it names here."""
        if digest not in self._blobs:
            self._get(digest)
        manifest = Manifest.from_bytes(self._blobs.read(digest))
        missing = self._blobs.missing(entry.sha256 for entry in manifest.files if entry.sha256)
        if missing:
            self._get_pack(missing, tell)
        return manifest

    def _client(self) -> httpx.Client:
        endpoint = self._endpoint()
        local = endpoint.url.startswith(("http://127.0.0.1", "http://localhost", "http://[::1]"))
        headers = {"Authorization": f"Bearer {endpoint.token}"}
        tls = endpoint.url.startswith("https")  # without it there are no certificates to load, which takes 60 ms
        options = {"base_url": endpoint.url, "verify": tls, "trust_env": not local}
        return httpx.Client(headers=headers, timeout=_TIMEOUT, **options)

    def _get(self, digest: str) -> None:
        try:
            with self._client() as client, client.stream("GET", f"/v1/blobs/{digest}") as response:
                response.raise_for_status()
                self._blobs.put(digest, response.iter_bytes(256 * 1024))
        except httpx.HTTPError as error:
            raise FetchError(f"bundle {digest[:12]}… could not be fetched: {error}") from error

    def _get_pack(self, missing: list[str], tell: Callable[[str], None]) -> None:
        tell(f"fetching {len(missing)} file{'s' if len(missing) > 1 else ''}")
        body = msgspec.json.encode(missing)
        try:
            with self._client() as client, client.stream("POST", "/v1/blobs/fetch", content=body) as response:
                response.raise_for_status()
                for digest, _, chunks in read_pack(io.BufferedReader(_Body(response))):
                    self._blobs.put(digest, chunks)
        except httpx.HTTPError as error:
            raise FetchError(f"{len(missing)} files could not be fetched: {error}") from error


def _remembered(state: Path, blobs: Blobs) -> tuple[Manifest | None, dict[str, tuple[int, int]]]:
    try:
        note = json.loads(state.read_bytes().decode("utf-8", "surrogateescape"))
    except FileNotFoundError:
        return None, {}
    manifest = Manifest.from_bytes(blobs.read(note["digest"]))
    return manifest, {path: (stat[0], stat[1]) for path, stat in note["written"].items()}

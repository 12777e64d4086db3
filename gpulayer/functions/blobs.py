"""Large parts of arguments and results: as blobs, to and from the control plane.

Where its data folder is this machine's, and ours to write, its blobs are written and read there: by HTTP the same bytes
would be copied five times.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from gpulayer.client.errors import ControlPlaneError, RequestRefused
from gpulayer.client.transfer import PAUSES_S, Away, Damaged, download, open_client, upload
from gpulayer.protocol.endpoint import Endpoint, data_folder, read_endpoint
from gpulayer.source.blobs import Blobs
from gpulayer.source.mapped import mapped
from gpulayer.source.spans import Span, filled

if TYPE_CHECKING:
    import httpx

    from gpulayer.client.transfer import Body
    from gpulayer.protocol.values.decoding import Buffer

T = TypeVar("T")

_KNOWN_S = 600.0  # so long a blob that was sent is taken to be there still
_KNOWN = 100_000


class BlobStore:
    """Sends and fetches blobs. Any number of threads may use it."""

    def __init__(self, endpoint: Callable[[], Endpoint]):
        """`endpoint` tells where the control plane is; it may raise `ControlPlaneError`."""
        self._endpoint = endpoint
        self._known: dict[str, float] = {}  # digest: until when
        self._lock = threading.Lock()
        self._client: httpx.Client | None = None
        self._beside: Blobs | None = None
        self._of: Endpoint | None = None
        self._numbers = itertools.count()

    def put(self, data: memoryview) -> str:
        """Send a blob unless it is there; its SHA-256, hexadecimal.

        Raises `RequestRefused`, `ControlPlaneError`.
        """
        return self.put_pieces((data,))[0]

    def put_pieces(self, pieces: Sequence[Buffer]) -> tuple[str, int]:
        """The same of bytes that lie in several places; the blob's SHA-256, and its size in bytes."""
        sha256, size_bytes = hashlib.sha256(), 0
        views = [memoryview(piece).cast("B") for piece in pieces if memoryview(piece).nbytes]
        for view in views:
            sha256.update(view)
            size_bytes += view.nbytes
        digest = sha256.hexdigest()
        if self._known.get(digest, 0.0) < time.monotonic():
            self._store(digest, size_bytes, views)
            if len(self._known) >= _KNOWN:
                self._known.clear()
            self._known[digest] = time.monotonic() + _KNOWN_S
        return digest, size_bytes

    def get(self, digest: str, size_bytes: int) -> Buffer:
        """A blob's bytes, which a value may keep and change. Raises `RequestRefused`, `ControlPlaneError`."""
        beside = self._folder()
        if beside is not None:
            span = beside.find(digest)
            if span is not None and span.size == size_bytes:
                with contextlib.suppress(OSError):  # it was just removed: the control plane says so
                    made = _bytes_of(span)
                    if made is not None:
                        return made

        def read(body: Body, size_bytes: int) -> bytearray:
            made = bytearray(size_bytes)
            at, view = 0, memoryview(made)
            while at < size_bytes and (count := body.readinto(view[at:])):
                at += count
            return made

        return self._persist(lambda client: download(client, digest, read, _silent, ""), "a result was fetched")

    def forget(self) -> None:
        """Take nothing more to be there."""
        self._known.clear()

    def close(self) -> None:
        """Close what is open."""
        with self._lock:
            client, self._client, self._of, self._beside = self._client, None, None, None
        if client is not None:
            client.close()

    # ---------------------------------------------------------------- how

    def _store(self, digest: str, size_bytes: int, views: list[memoryview]) -> None:
        beside = self._folder()
        if beside is not None and (digest in beside or self._write(beside, digest, views)):
            return
        self._persist(
            lambda client: upload(client, digest, size_bytes, iter(views), _silent, ""), "arguments were sent"
        )

    def _write(self, beside: Blobs, digest: str, views: list[memoryview]) -> bool:
        """Into the control plane's own folder; False where that can't be."""
        path = beside.folder / "new" / f"call-{os.getpid()}-{next(self._numbers)}"
        try:
            with path.open("xb", buffering=0) as file:
                for view in views:
                    at = 0
                    while at < view.nbytes:
                        at += file.write(view[at:]) or 0
            beside.adopt(digest, str(path))
        except OSError:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
            return False  # it is full, or not ours: the control plane says so
        return True

    def _folder(self) -> Blobs | None:
        """The control plane's own folder of blobs, if it is here."""
        endpoint = self._endpoint()
        if endpoint != self._of:
            with self._lock:
                self._of, self._beside = endpoint, _beside(endpoint)
                self._known.clear()
        return self._beside

    def _persist(self, act: Callable[[httpx.Client], T], doing: str) -> T:
        """What `act` returns, tried again after a break, over a connection that is kept."""
        import httpx

        pauses_s, refused = [*PAUSES_S], False
        while True:
            try:
                return act(self._open())
            except (httpx.HTTPError, Away, Damaged) as error:
                if not pauses_s:
                    text = f"the control plane went away while {doing} ({error})"
                    raise ControlPlaneError(f"{text}; call it again") from error
            except RequestRefused as error:
                # One that was started again has another token, which its file says by now.
                if error.problem.status != 401 or refused:
                    raise
                refused = True
            self.close()
            time.sleep(pauses_s.pop(0))  # nobody tells when it is back

    def _open(self) -> httpx.Client:
        endpoint = self._endpoint()
        with self._lock:
            if self._client is None or endpoint != self._of:
                if self._client is not None:
                    self._client.close()
                self._client, self._of = open_client(endpoint), endpoint
                self._beside = _beside(endpoint)
            return self._client


def _beside(endpoint: Endpoint) -> Blobs | None:
    folder: Path = data_folder()
    if read_endpoint(folder) != endpoint:
        return None
    try:
        return Blobs(folder / "blobs")
    except OSError:
        return None  # not this user's to write


def _bytes_of(span: Span) -> Buffer | None:
    """The bytes of a blob's file: mapped, or read where that is no slower. None where it is cut short."""
    view = mapped(span.path, span.size) if span.offset == 0 else None
    if view is not None:
        return view
    made = bytearray(span.size)
    with open(span.path, "rb", buffering=0) as file:
        file.seek(span.offset)
        return made if filled(file, memoryview(made)) else None


def _silent(line: str) -> None:
    pass

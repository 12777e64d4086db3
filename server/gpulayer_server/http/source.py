"""Bundles and blobs over HTTP: only what the other side lacks travels."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import os
import queue
import re
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from tornado import web

from gpulayer.protocol.types import Problem, Struct
from gpulayer.source import BlobError, Manifest, PackError, SourceError, iter_pack, plain_pack_bytes, read_pack
from gpulayer.source.blobs import Blobs, Span, SpanReader
from gpulayer.source.pack import Pieces, Stream
from gpulayer_server.http.base import Handler, ProblemError, parse

MAX_UPLOAD_BYTES = 4 * 1024**3
"""Of one upload, as it travels and as it is unpacked."""

_RESERVE_BYTES = 256_000_000  # of the disk, which files leave free
_RESERVE_PART = 50  # or so small a part of it, if that is less
_HELD_BYTES = 4 << 20  # of an upload wait at most for the thread that stores them
_TOLD_BYTES = 1 << 20
_STALLED_S = 300.0
_REMEMBERED_ENTRIES = 10_000  # of manifests together: some MB
_RANGE = re.compile(r"bytes=(\d{1,20})-(\d{1,20})?")
_IN_PLACE_BYTES = 65_536  # a manifest of 900 files; a larger one would hold the loop for longer than 2 ms


class BundleAnswer(Struct, frozen=True, kw_only=True):
    """What a client has to send before it may submit."""

    digest: str
    missing: tuple[str, ...]


class BlobsAnswer(Struct, frozen=True, kw_only=True):
    """How many blobs came, and what the bundle that was named still lacks."""

    stored: int
    missing: tuple[str, ...] | None = None


def _bad(error: Exception) -> ProblemError:
    return ProblemError(Problem(status=400, code="bad_source", title="the source can't be taken", detail=str(error)))


def _full(error: OSError) -> ProblemError:
    problem = Problem(status=507, code="disk", title="the control plane can't store the source", detail=str(error))
    return ProblemError(problem)


def check_room(folder: Path, size_bytes: int) -> None:
    """Files never take the last of a disk: the control plane writes down there what jobs do. Raises OSError."""
    disk = shutil.disk_usage(folder)
    if disk.free - size_bytes < min(_RESERVE_BYTES, disk.total // _RESERVE_PART):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))


def _problem(error: BaseException) -> BaseException:
    if isinstance(error, (SourceError, BlobError)):
        return _bad(error)
    return _full(error) if isinstance(error, OSError) else error


class Manifests:
    """Stores manifests, and remembers the last few: the next one resembles one of them. For any number of threads."""

    def __init__(self, blobs: Blobs):
        self._blobs = blobs
        self._lock = threading.Lock()
        self._last: dict[str, Manifest] = {}

    def keep(self, data: bytes, near: str = "") -> BundleAnswer:
        """Store a manifest, unless something that it names is missing.

        `near` is the digest of one that may resemble it. Raises `SourceError`, OSError.
        """
        known = self._last.get(hashlib.sha256(data).hexdigest())  # as when it was announced
        manifest = known or Manifest.from_bytes(data, self._last.get(near))
        missing = self._blobs.claim({entry.sha256: entry.size for entry in manifest.files if entry.sha256})
        if not missing and self._blobs.claim({manifest.digest: len(data)}):
            self._blobs.put(manifest.digest, [data])
        with self._lock:
            self._last.pop(near, None)
            if len(manifest) <= _REMEMBERED_ENTRIES:
                self._last[manifest.digest] = manifest
            while sum(map(len, self._last.values())) > _REMEMBERED_ENTRIES:
                self._last.pop(next(iter(self._last)))
        return BundleAnswer(digest=manifest.digest, missing=tuple(missing))


class _SourceHandler(Handler):
    @property
    def manifests(self) -> Manifests:
        """Those of this application."""
        return self.settings.setdefault("manifests", Manifests(self.shell.blobs))


class BundlesHandler(_SourceHandler):
    """POST /v1/bundles: a manifest; the answer names the blobs that are missing here."""

    async def post(self) -> None:
        """A bundle counts as known once nothing is missing: only then the manifest is stored."""
        data = self.request.body
        try:
            if len(data) <= _IN_PLACE_BYTES:
                self.answer(self.manifests.keep(data))
            else:
                self.answer(await asyncio.to_thread(self.manifests.keep, data))
        except (SourceError, OSError) as error:
            raise _problem(error) from error


@web.stream_request_body
class BlobsHandler(_SourceHandler):
    """POST /v1/blobs[?bundle=DIGEST[&near=DIGEST]]: a pack of blobs, stored while it comes.

    Named as bundle, a blob of the pack is a manifest: it is stored if nothing that it names is missing then, so one
    request brings a bundle of which a single file changed. `near` names the bundle that it was before.
    """

    _upload: _Upload | None = None

    def prepare(self) -> None:
        """Refuse before a byte is read."""
        super().prepare()
        self.request.connection.set_max_body_size(MAX_UPLOAD_BYTES)  # type: ignore[union-attr]
        bundle, near = self.get_query_argument("bundle", ""), self.get_query_argument("near", "")
        blobs, manifests = self.shell.blobs, self.manifests
        self._upload = _Upload(lambda stream: _store(stream, blobs, manifests, bundle, near))

    async def data_received(self, chunk: bytes) -> None:
        """A part of the body."""
        if self._upload is not None:
            await self._upload.feed(chunk)

    async def post(self) -> None:
        """Each blob was checked and kept."""
        if self._upload is None:
            raise web.HTTPError(500)
        try:
            self.answer(await self._upload.finish())
        except (SourceError, BlobError, OSError) as error:
            raise _problem(error) from error

    def on_connection_close(self) -> None:
        """What came whole is kept: the client sends the rest again."""
        self.on_finish()

    def on_finish(self) -> None:
        """The thread ends, however the request did."""
        if self._upload is not None:
            self._upload.abandon()


class _Upload:
    """Hands a body from the loop to a thread that stores it, a few MB ahead at most.

    Where that fails the rest of the body is let go by, so that the client reads why.
    """

    def __init__(self, store: Callable[[Stream], BlobsAnswer]):
        self._store = store
        self._chunks: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._held_bytes = 0  # owned by the loop
        self._taken_bytes = 0  # owned by the thread: what the loop was not told of yet
        self._room = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._outcome: asyncio.Future[BlobsAnswer | Exception] = self._loop.create_future()
        threading.Thread(target=self._run, name="upload", daemon=True).start()

    async def feed(self, chunk: bytes) -> None:
        """Take a part; waits while too much of it is not stored yet."""
        if self._outcome.done():
            return
        self._chunks.put(chunk)
        self._held_bytes += len(chunk)
        if self._held_bytes > _HELD_BYTES:
            self._room.clear()
            await self._room.wait()

    async def finish(self) -> BlobsAnswer:
        """All of it came; raises what the storing raised."""
        self._chunks.put(b"")
        outcome = await self._outcome
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def abandon(self) -> None:
        """No more will come."""
        self._chunks.put(b"")

    def _run(self) -> None:
        try:
            outcome = self._store(Pieces(self._next))
        except Exception as error:  # noqa: BLE001 raised where the request is answered
            outcome = error
        self._tell(self._end, outcome)

    def _next(self) -> bytes:
        try:
            chunk = self._chunks.get(timeout=_STALLED_S)
        except queue.Empty:
            raise PackError(f"nothing came for {_STALLED_S:.0f} s; send it again") from None
        self._taken_bytes += len(chunk)
        if self._taken_bytes >= _TOLD_BYTES:
            self._tell(self._make_room, self._taken_bytes)
            self._taken_bytes = 0
        return chunk

    def _tell(self, function: Callable[..., object], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended, and all requests with it
            self._loop.call_soon_threadsafe(function, *arguments)

    def _make_room(self, size: int) -> None:
        self._held_bytes -= size
        if self._held_bytes <= _HELD_BYTES:
            self._room.set()

    def _end(self, outcome: BlobsAnswer | Exception) -> None:
        self._outcome.set_result(outcome)
        self._room.set()


def _store(stream: Stream, blobs: Blobs, manifests: Manifests, bundle: str, near: str) -> BlobsAnswer:
    manifest: list[bytes] = []

    def without_manifest() -> Iterator[tuple[str, int, Iterable[bytes]]]:
        for digest, size, chunks in read_pack(stream, max_bytes=MAX_UPLOAD_BYTES):
            if digest == bundle:
                manifest.append(b"".join(chunks))
            else:
                check_room(blobs.folder, size)
                yield digest, size, chunks

    stored = blobs.take(without_manifest())
    if not bundle:
        return BlobsAnswer(stored=stored)
    if not manifest:
        raise PackError(f"bundle {bundle[:12]} was named, but its manifest is not in the pack")
    return BlobsAnswer(stored=stored, missing=manifests.keep(manifest[0], near).missing)


class FetchHandler(Handler):
    """POST /v1/blobs/fetch[?coding=zstd]: a JSON list of digests; the answer is a pack of them."""

    async def post(self) -> None:
        """Stream the blobs as fast as the reader takes them."""
        wanted: list[str] = parse(self.request.body, list[str])
        try:
            spans = {digest: self.shell.blobs.find(digest) for digest in wanted}
        except BlobError as error:
            raise _bad(error) from error
        here = [(digest, span) for digest, span in spans.items() if span is not None]
        if len(here) < len(spans):
            first = next(digest for digest, span in spans.items() if span is None)
            detail = f"{len(spans) - len(here)} of {len(spans)} blobs are not here, the first is {first}"
            raise ProblemError(Problem(status=404, code="no_such_blob", title="unknown blob", detail=detail))
        self.set_header("Content-Type", "application/octet-stream")
        compress = self.get_query_argument("coding", "") == "zstd"
        if not compress:
            self.set_header("Content-Length", plain_pack_bytes(span.size for _, span in here))
        chunks = iter_pack(here, compress=compress, verify=False)
        while chunk := await asyncio.to_thread(next, chunks, b""):
            self.write(chunk)
            await self.flush()


class BlobHandler(Handler):
    """GET and HEAD /v1/blobs/DIGEST: one blob, such as a manifest; with `Range: bytes=FIRST-[LAST]` a part of it."""

    def head(self, digest: str) -> None:
        """Whether it is here, and its length."""
        self._find(digest)

    def _find(self, digest: str) -> Span:
        span = self.shell.blobs.find(digest)
        if span is None:
            raise ProblemError(Problem(status=404, code="no_such_blob", title=f"no blob {digest}"))
        self.set_header("Content-Type", "application/octet-stream")
        self.set_header("Accept-Ranges", "bytes")
        self.set_header("Content-Length", str(span.size))
        return span

    async def get(self, digest: str) -> None:
        """Its bytes."""
        span = self._part(self._find(digest))
        with SpanReader() as reader:
            chunks = reader.chunks(span)
            while chunk := await asyncio.to_thread(next, chunks, b""):
                self.write(chunk)
                await self.flush()

    def _part(self, whole: Span) -> Span:
        """The part that is asked for: all of it where the range is none that we know, as RFC 9110 has it."""
        asked = _RANGE.fullmatch(self.request.headers.get("Range", ""))
        if asked is None:
            return whole
        first, last = int(asked[1]), min(int(asked[2] or whole.size), whole.size - 1)
        if first > last:
            self._whole_bytes = whole.size
            detail = f"it has {whole.size} bytes, and byte {first} is the first that was asked for"
            raise ProblemError(Problem(status=416, code="range", title="the blob has no such part", detail=detail))
        self.set_status(206)
        self.set_header("Content-Range", f"bytes {first}-{last}/{whole.size}")
        self.set_header("Content-Length", str(last + 1 - first))
        return Span(whole.path, whole.offset + first, last + 1 - first)

    _whole_bytes: int | None = None

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """A problem; with the blob's length where a part of it was asked for that it has not."""
        if self._whole_bytes is not None:
            self.set_header("Content-Range", f"bytes */{self._whole_bytes}")
        super().write_error(status_code, **kwargs)

"""Bundles and blobs over HTTP: only what the other side lacks travels."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import re
import shutil
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tornado import web

from gpulayer.protocol.types import Problem, Struct
from gpulayer.source import BlobError, Manifest, PackError, SourceError, iter_pack, plain_pack_bytes, read_pack
from gpulayer.source.blobs import SHARED_BELOW_BYTES, Blobs, Span
from gpulayer.source.pack import PackFrame, Stream
from gpulayer_server.http.base import Handler, ProblemError, parse
from gpulayer_server.http.bodies import Upload, send_span

MAX_UPLOAD_BYTES = 4 * 1024**3
"""Of one upload, as it travels and as it is unpacked."""

_RESERVE_BYTES = 256_000_000  # of the disk, which files leave free
_RESERVE_PART = 50  # or so small a part of it, if that is less
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

    _upload: Upload[BlobsAnswer] | None = None

    async def prepare(self) -> None:  # type: ignore[override]
        """Refuse before a byte is read. A body whose length is known is read here, in larger pieces than tornado's."""
        super().prepare()
        self.request.connection.set_max_body_size(MAX_UPLOAD_BYTES)  # type: ignore[union-attr]
        bundle, near = self.get_query_argument("bundle", ""), self.get_query_argument("near", "")
        blobs, manifests = self.shell.blobs, self.manifests
        self._upload = Upload(lambda stream: _store(stream, blobs, manifests, bundle, near))
        await self._upload.take(self.request, MAX_UPLOAD_BYTES)

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


def _store(stream: Stream, blobs: Blobs, manifests: Manifests, bundle: str, near: str) -> BlobsAnswer:
    manifest: list[bytes] = []

    def without_manifest() -> Iterator[tuple[str, int, Iterable[bytes]]]:
        for digest, size, chunks in read_pack(stream, max_bytes=MAX_UPLOAD_BYTES):
            if digest == bundle:
                manifest.append(b"".join(map(bytes, chunks)))
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
        if not compress and all(span.size >= SHARED_BELOW_BYTES for _, span in here):
            await self._send_large(here)
            return
        chunks = iter_pack(here, compress=compress, verify=False)
        while chunk := await asyncio.to_thread(next, chunks, b""):
            self.write(chunk)
            await self.flush()

    async def _send_large(self, here: list[tuple[str, Span]]) -> None:
        frame = PackFrame()
        for digest, span in here:
            self.write(frame.blob(digest, span.size))
            await self.flush()
            await send_span(self.request.connection, span)  # type: ignore[arg-type]
        self.write(frame.end())


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
        await self.flush()
        await send_span(self.request.connection, span)  # type: ignore[arg-type]

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

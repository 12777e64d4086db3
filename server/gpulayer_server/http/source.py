"""Bundles and blobs over HTTP: only what the other side lacks travels."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import BinaryIO, cast

from tornado import web

from gpulayer.protocol.types import Problem, Struct
from gpulayer.source import BlobError, Manifest, PackError, SourceError, iter_pack, read_pack
from gpulayer.source.blobs import Blobs
from gpulayer_server.http.base import Handler, ProblemError, parse

MAX_UPLOAD_BYTES = 4 * 1024**3


class BundleAnswer(Struct, frozen=True, kw_only=True):
    """What a client has to send before it may submit."""

    digest: str
    missing: tuple[str, ...]


def _bad(error: Exception) -> ProblemError:
    return ProblemError(Problem(status=400, code="bad_source", title="the source can't be taken", detail=str(error)))


def _full(error: OSError) -> ProblemError:
    problem = Problem(status=507, code="disk", title="the control plane can't store the source", detail=str(error))
    return ProblemError(problem)


class BundlesHandler(Handler):
    """POST /v1/bundles: a manifest; the answer names the blobs that are missing here."""

    def post(self) -> None:
        """A bundle counts as known once nothing is missing: the manifest is stored last, by a second call."""
        try:
            manifest = Manifest.from_bytes(self.request.body)
        except SourceError as error:
            raise _bad(error) from error
        missing = self.shell.blobs.missing(entry.sha256 for entry in manifest.files if entry.sha256)
        if not missing:
            try:
                self.shell.blobs.put(manifest.digest, [self.request.body])
            except OSError as error:
                raise _full(error) from error
        self.answer(BundleAnswer(digest=manifest.digest, missing=tuple(missing)))


@web.stream_request_body
class BlobsHandler(Handler):
    """POST /v1/blobs: a pack of blobs, streamed to disk."""

    def prepare(self) -> None:
        """Refuse before a byte is read; then write the body to a file, never to memory."""
        super().prepare()
        self.request.connection.set_max_body_size(MAX_UPLOAD_BYTES)  # type: ignore[union-attr]
        self._file: BinaryIO = cast(BinaryIO, tempfile.TemporaryFile(dir=self.shell.blobs.folder))  # noqa: SIM115 closed in on_finish

    async def data_received(self, chunk: bytes) -> None:
        """A part of the body."""
        try:
            await asyncio.to_thread(self._file.write, chunk)
        except OSError as error:
            raise _full(error) from error

    async def post(self) -> None:
        """Check and keep each blob."""
        self._file.seek(0)
        try:
            stored = await asyncio.to_thread(_store, self._file, self.shell.blobs)
        except (PackError, BlobError) as error:
            raise _bad(error) from error
        except OSError as error:
            raise _full(error) from error
        self.answer({"stored": stored})

    def on_finish(self) -> None:
        """The temporary file goes with its descriptor."""
        file = getattr(self, "_file", None)
        if file is not None:
            file.close()


def _store(file: BinaryIO, blobs: Blobs) -> int:
    count = 0
    for digest, _, chunks in read_pack(file):
        blobs.put(digest, chunks)
        count += 1
    return count


class FetchHandler(Handler):
    """POST /v1/blobs/fetch: a JSON list of digests; the answer is a pack of them."""

    async def post(self) -> None:
        """Stream the blobs as fast as the reader takes them."""
        wanted: list[str] = parse(self.request.body, list[str])
        try:
            missing = self.shell.blobs.missing(wanted)
        except BlobError as error:
            raise _bad(error) from error
        if missing:
            detail = f"{len(missing)} of {len(wanted)} blobs are not here, the first is {missing[0]}"
            raise ProblemError(Problem(status=404, code="no_such_blob", title="unknown blob", detail=detail))
        self.set_header("Content-Type", "application/octet-stream")
        chunks = iter_pack((digest, self.shell.blobs.path(digest)) for digest in dict.fromkeys(wanted))
        while chunk := await asyncio.to_thread(next, chunks, b""):
            self.write(chunk)
            await self.flush()


class BlobHandler(Handler):
    """GET /v1/blobs/DIGEST: one blob, such as a manifest."""

    async def get(self, digest: str) -> None:
        """Its bytes."""
        path = self._path(digest)
        self.set_header("Content-Type", "application/octet-stream")
        with path.open("rb") as file:
            while chunk := await asyncio.to_thread(file.read, 256 * 1024):
                self.write(chunk)
                await self.flush()

    def _path(self, digest: str) -> Path:
        if digest not in self.shell.blobs:
            raise ProblemError(Problem(status=404, code="no_such_blob", title=f"no blob {digest}"))
        return self.shell.blobs.path(digest)

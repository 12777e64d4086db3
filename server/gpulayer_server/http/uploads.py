"""Uploads of large blobs, in checked chunks: a broken one goes on where it broke, also after a restart."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import Any

from tornado import web

from gpulayer.protocol.types import Problem, Struct
from gpulayer.source import BlobError
from gpulayer.source.again import CHUNK_BYTES
from gpulayer.source.partial import ChunkDamaged, OffsetMoved, Partials
from gpulayer_server.http.base import Handler, ProblemError
from gpulayer_server.http.rest import whole_number
from gpulayer_server.http.source import check_room

_ROOM_BYTES = 8 * CHUNK_BYTES  # of chunks that are on their way, of all uploads together
_STALLED_S = 120.0
_MOST_BYTES = 2**63 - 1
_DIGITS = 19


class UploadAnswer(Struct, frozen=True, kw_only=True, omit_defaults=False):
    """How many bytes of the blob are here."""

    offset: int


class _Room:
    """Memory for chunks. Whoever comes while there is none waits, and its bytes stay with the network."""

    def __init__(self, size_bytes: int):
        self._free_bytes = size_bytes
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, size_bytes: int) -> None:
        """Returns once there is room, in the order of those who asked."""
        if not self._waiting and size_bytes <= self._free_bytes:
            self._free_bytes -= size_bytes
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size_bytes, turn))
        await turn

    def give(self, size_bytes: int) -> None:
        """Room is free again."""
        self._free_bytes += size_bytes
        while self._waiting and self._waiting[0][0] <= self._free_bytes:
            size, turn = self._waiting.popleft()
            if not turn.done():
                self._free_bytes -= size
                turn.set_result(None)


class Uploads:
    """What all uploads of a control plane share."""

    def __init__(self, partials: Partials):
        self.partials = partials
        self.room = _Room(_ROOM_BYTES)


@web.stream_request_body
class UploadHandler(Handler):
    """HEAD and PATCH /v1/uploads/SHA256?size=N"""

    _held_bytes = 0
    _gone = False
    _here: int | None = None
    _came_s = 0.0
    _watch: asyncio.TimerHandle | None = None

    @property
    def uploads(self) -> Uploads:
        """Those of this application."""
        if "uploads" not in self.settings:
            self.settings["uploads"] = Uploads(self.shell.partials)
        return self.settings["uploads"]

    async def prepare(self) -> None:  # type: ignore[override]
        """Refuse before a byte is read, and read none before there is room for it."""
        super().prepare()
        self._pieces: list[bytes] = []
        if self.request.method != "PATCH":
            return
        length = self._number("Content-Length")
        if length > CHUNK_BYTES:
            detail = f"{length} bytes came with one request, and at most {CHUNK_BYTES} may"
            raise ProblemError(Problem(status=413, code="too_large", title="the chunk is too large", detail=detail))
        await self.uploads.room.take(length)
        self._held_bytes = length
        if self._gone:
            self._let_go()
        loop = asyncio.get_running_loop()
        self._came_s = loop.time()
        self._watch = loop.call_later(_STALLED_S, self._look)

    def data_received(self, chunk: bytes) -> None:
        """A part of the chunk."""
        self._pieces.append(chunk)
        self._came_s = asyncio.get_running_loop().time()

    async def head(self, digest: str) -> None:
        """How many bytes are here, as `Upload-Offset`."""
        size = self._size()
        try:
            offset = await asyncio.to_thread(self.uploads.partials.offset, digest, size)
        except (BlobError, OSError) as error:
            raise self._problem(error) from error
        self.set_header("Upload-Offset", str(offset))

    async def patch(self, digest: str) -> None:
        """Take one chunk."""
        size, offset = self._size(), self._number("Upload-Offset")
        checksum = self.request.headers.get("Upload-Checksum", "")
        try:
            check_room(self.shell.blobs.folder, self._held_bytes)
            here = await asyncio.to_thread(self.uploads.partials.add, digest, size, offset, self._pieces, checksum)
        except (OffsetMoved, BlobError, OSError) as error:
            raise self._problem(error) from error
        finally:
            self._let_go()
        self.set_header("Upload-Offset", str(here))
        self.answer(UploadAnswer(offset=here))

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """A problem; with the true offset where the chunk's was another."""
        if self._here is not None:
            self.set_header("Upload-Offset", str(self._here))
        super().write_error(status_code, **kwargs)

    def on_finish(self) -> None:
        """Nothing is held any more."""
        self._let_go()

    def on_connection_close(self) -> None:
        """What came of the chunk is of no use: the client sends it again."""
        self._gone = True
        self._let_go()

    def _size(self) -> int:
        size = whole_number(self.get_query_argument("size", ""), "size")
        if not 0 <= size <= _MOST_BYTES:
            raise ProblemError(Problem(status=400, code="bad_request", title=f"size can't be {size}"))
        return size

    def _number(self, header: str) -> int:
        text = self.request.headers.get(header, "")
        if not text.isdecimal() or len(text) > _DIGITS:
            title = f"the request needs the header {header}, a number of bytes"
            raise ProblemError(Problem(status=400, code="bad_request", title=title))
        return int(text)

    def _problem(self, error: Exception) -> ProblemError:
        if isinstance(error, OffsetMoved):
            self._here = error.offset
            title = "the chunk does not begin where the others end"
            return ProblemError(Problem(status=409, code="offset", title=title, detail=str(error)))
        if isinstance(error, ChunkDamaged):
            return ProblemError(Problem(status=460, code="checksum", title="the chunk is damaged", detail=str(error)))
        if isinstance(error, BlobError):
            title = "the blob is not what its digest says; send it again"
            return ProblemError(Problem(status=422, code="digest", title=title, detail=str(error)))
        detail = f"{error}: make room in {self.shell.blobs.folder}, then send it again"
        return ProblemError(Problem(status=507, code="disk", title="the control plane can't store it", detail=detail))

    def _look(self) -> None:
        """One who sends nothing for long holds room that others wait for."""
        loop = asyncio.get_running_loop()
        left_s = self._came_s + _STALLED_S - loop.time()
        if left_s > 0:
            self._watch = loop.call_later(left_s, self._look)
        elif self.request.connection is not None and self._held_bytes:
            with contextlib.suppress(AttributeError):
                self.request.connection.stream.close()  # type: ignore[attr-defined]

    def _let_go(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        self._pieces = []
        held, self._held_bytes = self._held_bytes, 0
        if held:
            self.uploads.room.give(held)

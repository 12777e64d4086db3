"""The large values of calls: those of arguments on their way here, those of results on their way back."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterable, Sequence

import httpx
from msgspec.structs import replace

from gpulayer.protocol.calls import CallBatch, CallRun
from gpulayer.source import SourceChanged, SourceError, iter_pack, plain_pack_bytes, worth_compressing
from gpulayer.source.blobs import BlobError, Blobs
from gpulayer.source.upload import LARGE_BYTES, TransferStopped, send_blob
from gpulayer_worker.callranges import CallRanges
from gpulayer_worker.delivery import BATCH_BYTES, DeliveryError, NobodyThere, Undeliverable, refused
from gpulayer_worker.run.callsqueue import Piece
from gpulayer_worker.run.fetching import fetched
from gpulayer_worker.run.services import Over, Services
from gpulayer_worker.runner.wire import BlobPlace
from gpulayer_worker.web import open_client
from gpulayer_worker.workspace import TIMEOUT, why

log = logging.getLogger("gpulayer.worker")

_DIGEST = re.compile(rb"[0-9a-f]{64}")
_AT_ONCE = 4
_AGAIN_S = 1.0
_AGAIN_AT_MOST_S = 15.0
_TRIES = 60  # while somebody answers, and does not take it


class ArgumentBlobs:
    """What the calls of one attempt need here. All of it runs on the loop, but for the transfers.

    Arguments:
        services: the agent.
        here: called when one more is here.
        failed: called with the digest of one that can't be had, and why.
        tell: takes lines about how far it is.
        check_wish: raises `Over` where nobody wants them any more.
    """

    def __init__(
        self,
        services: Services,
        *,
        here: Callable[[], None],
        failed: Callable[[str, str], None],
        tell: Callable[[str], None],
        check_wish: Callable[[], None],
    ):
        self._services = services
        self._here = here
        self._failed = failed
        self._tell = tell
        self._check_wish = check_wish
        self._coming: dict[str, asyncio.Task[None]] = {}
        self._turns = asyncio.Semaphore(_AT_ONCE)

    def ready(self, piece: Piece) -> bool:
        """Whether all that these calls need is here: the piece has their places then. What lacks is on its way."""
        if piece.batch is None:
            return True
        piece.places = []
        lacking = [digest for digest in named_in(piece.batch.blobs, piece.args) if not self._find(digest, piece.places)]
        for digest in lacking:
            self._want(digest)
        return not lacking

    def want(self, batch: CallBatch) -> None:
        """These calls are to run here: what lacks is fetched from now on."""
        for digest in named_in(batch.blobs, batch.args):
            if self._services.workspaces.at_hand(digest) is None:
                self._want(digest)

    def close(self) -> None:
        """Nothing is needed any more."""
        for task in self._coming.values():
            task.cancel()
        self._coming.clear()

    def _find(self, digest: str, found: list[BlobPlace]) -> bool:
        span = self._services.workspaces.at_hand(digest)
        if span is not None:
            found.append(BlobPlace(digest, os.path.abspath(span.path), span.offset, span.size))
        return span is not None

    def _want(self, digest: str) -> None:
        if digest not in self._coming:
            task = self._coming[digest] = asyncio.ensure_future(self._fetch(digest))
            task.add_done_callback(lambda _: self._coming.pop(digest, None))

    async def _fetch(self, digest: str) -> None:
        def get(tell: Callable[[str], None]) -> None:
            self._services.workspaces.blob(digest, tell, "arguments")

        try:
            async with self._turns:
                await fetched(get, tell=self._tell, check_wish=self._check_wish, pause=asyncio.sleep)
        except Over as over:
            self._failed(digest, over.outcome.problem)
        except OSError as error:
            self._failed(digest, self._services.layout.trouble(error))
        else:
            self._here()


def named_in(blobs: Iterable[str], args: Iterable[bytes]) -> list[str]:
    """Those of a batch's blobs that some of its calls name: in packed values a digest stands as text."""
    found = {match for each in args for match in _DIGEST.findall(each)}
    named = [digest for digest in blobs if digest.encode() in found]
    return named or list(blobs)


class ResultBlobs:
    """What results name, on its way to the control plane: beside it, or by HTTP. One transfer at a time.

    Arguments:
        services: the agent.
        there: called, on the loop, with results whose blobs are all there.
        failed: called with results of which they can't be, and why.
        tell: takes lines about how far it is.
    """

    def __init__(
        self,
        services: Services,
        *,
        there: Callable[[list[CallRun]], None],
        failed: Callable[[CallRun, str], None],
        tell: Callable[[str], None],
    ):
        self._services = services
        self._there = there
        self._failed = failed
        self._tell = tell
        self._waiting: list[tuple[CallRun, list[BlobPlace]]] = []
        self._task: asyncio.Task[None] | None = None
        self._stop = threading.Event()
        self._files: list[tuple[CallRun, list[BlobPlace]]] = []  # a runner tells of them again until they are accepted
        self._beside: Blobs | None = None

    @property
    def busy(self) -> bool:
        """Whether results wait."""
        return bool(self._waiting) or self._task is not None

    def add(self, run: CallRun, places: Sequence[BlobPlace]) -> None:
        """Results, and where the files are that they name."""
        mine = replace(run, blobs=tuple(place.digest for place in places)), list(places)
        self._waiting.append(mine)
        self._files.append(mine)
        if self._task is None:
            self._task = asyncio.ensure_future(self._deliver_all())

    def keep(self, wanted: CallRanges) -> None:
        """Results outside of `wanted` were accepted: their files may go."""
        gone = [each for each in self._files if not wanted.within(each[0].map, *_span(each[0]))]
        if gone:
            self._files = [each for each in self._files if wanted.within(each[0].map, *_span(each[0]))]
            for place in (place for _, places in gone for place in places):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(place.path)

    def close(self) -> None:
        """Nobody wants them any more."""
        self._stop.set()
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _deliver_all(self) -> None:
        while self._waiting:
            some, self._waiting = self._waiting, []
            try:
                await self._deliver([place for _, places in some for place in places])
            except (DeliveryError, SourceError, BlobError, OSError) as error:
                if len(some) > 1:  # which of them it is: each by itself
                    await self._one_by_one(some)
                    continue
                self._fail(some[0][0], error)
            else:
                self._there([run for run, _ in some])
        self._task = None

    async def _one_by_one(self, some: list[tuple[CallRun, list[BlobPlace]]]) -> None:
        for run, places in some:
            try:
                await self._deliver(places)
            except (DeliveryError, SourceError, BlobError, OSError) as error:
                self._fail(run, error)
            else:
                self._there([run])

    def _fail(self, run: CallRun, error: Exception) -> None:
        text = self._services.layout.trouble(error) if isinstance(error, OSError) else str(error)
        self._failed(replace(run, blobs=()), text)

    async def _deliver(self, places: list[BlobPlace]) -> None:
        """Until the control plane has them; tried again while it is away."""
        wait_s, tries = _AGAIN_S, 0
        while True:
            try:
                return await asyncio.to_thread(self._send, places)
            except NobodyThere as error:
                problem = str(error)
            except Undeliverable:
                raise
            except DeliveryError as error:
                problem, tries = str(error), tries + 1
                if tries == _TRIES:
                    raise
            log.warning("results of calls could not be sent: %s", problem)
            self._tell(f"sending results back: {problem}; trying again")
            await asyncio.sleep(wait_s)
            wait_s = min(_AGAIN_AT_MOST_S, wait_s * 1.5)

    # ---------------------------------------------------------------- in a thread

    def _send(self, places: list[BlobPlace]) -> None:
        beside = self._services.blobs_beside()
        if beside is not None and os.access(beside / "new", os.W_OK | os.X_OK):
            if self._beside is None or self._beside.folder != beside:
                self._beside = Blobs(beside)
            _put_beside(self._beside, places)
            return
        here = self._services.workspaces.blobs
        for place in places:  # so a call that takes what another returned finds it on this machine
            if here.missing({place.digest: place.size}):
                _take_in(here, place)
        try:
            with open_client(self._services.endpoint(), TIMEOUT) as client:
                self._upload(client, places, here)
        except httpx.HTTPStatusError as error:
            raise refused(error) from error
        except (httpx.HTTPError, TransferStopped) as error:
            raise NobodyThere(why(error) if isinstance(error, httpx.HTTPError) else "stopped") from error

    def _upload(self, client: httpx.Client, places: list[BlobPlace], here: Blobs) -> None:
        files = {place.digest: (str(here.path(place.digest)), place.size) for place in places}
        batch: dict[str, tuple[str, int]] = {}
        for digest, (path, size) in files.items():
            if size >= LARGE_BYTES:
                send_blob(client, digest, path, size, stop=self._stop)
                continue
            if batch and sum(each for _, each in batch.values()) + size > BATCH_BYTES:
                _send_pack(client, batch)
                batch = {}
            batch[digest] = path, size
        if batch:
            _send_pack(client, batch)


def _put_beside(blobs: Blobs, places: list[BlobPlace]) -> None:
    """The control plane's folder is on this machine: files go there as they are."""
    for place in places:
        if blobs.claim({place.digest: place.size}):
            _take_in(blobs, place)


def _send_pack(client: httpx.Client, files: dict[str, tuple[str, int]]) -> None:
    sizes = [size for _, size in files.values()]
    compress = worth_compressing(sum(sizes), str(client.base_url))
    pack = iter_pack([(digest, path) for digest, (path, _) in files.items()], compress=compress)
    headers = {} if compress else {"Content-Length": str(plain_pack_bytes(sizes))}
    client.post("/v1/blobs", content=pack, headers=headers).raise_for_status()


def _take_in(blobs: Blobs, place: BlobPlace) -> None:
    """Let a runner's file be a blob; it stays where it was, too, where the file system can't do without a copy.

    The runner has hashed it: whoever it serves can write what it likes anyway.
    """
    if place.offset or os.stat(place.path).st_size != place.size:
        raise SourceChanged(f"{os.path.basename(place.path)} is not what the call left")
    target = str(blobs.folder / "new" / f"{os.getpid()}-{threading.get_ident()}-{place.digest[:16]}")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(target)
    try:
        os.link(place.path, target)
    except OSError:  # another disk, or one without links
        shutil.copyfile(place.path, target)
    blobs.adopt(place.digest, target)


def _span(run: CallRun) -> tuple[int, int]:
    return run.first, run.first + len(run.codes)

"""The large values of calls: those of arguments on their way here, those of results on their way back."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Container, Iterable, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from gpulayer.protocol.calls import CallBatch, CallRun
from gpulayer.protocol.endpoint import Endpoint
from gpulayer.protocol.lazily import Lazily
from gpulayer.source import SourceError
from gpulayer.source.blobs import BlobError, Blobs
from gpulayer.source.upload import LARGE_BYTES, TransferStopped, send_blob
from gpulayer_worker.delivery import BATCH_BYTES, DeliveryError, NobodyThere, Undeliverable, refused
from gpulayer_worker.run.callsfiles import send_pack, take_in
from gpulayer_worker.run.callsqueue import Piece
from gpulayer_worker.run.fetching import fetched
from gpulayer_worker.run.services import Over, Services
from gpulayer_worker.runner.wire import BlobPlace
from gpulayer_worker.web import open_client
from gpulayer_worker.workspace import TIMEOUT, FetchError, why

if TYPE_CHECKING:
    import httpx
else:
    httpx = Lazily("httpx")

log = logging.getLogger("gpulayer.worker")

_DIGEST = re.compile(rb"[0-9a-f]{64}")
_AT_ONCE = 8
_TOGETHER_BYTES = 8 << 20  # of results that are sent, and told, together
_FOUND_S = 60.0  # so long nothing removes a blob that was looked for, and much longer
_FOUND = 10_000
_NAMED = 256
_REST_S = 5.0  # so long a connection is kept for the next transfer
_AGAIN_S = 1.0
_AGAIN_AT_MOST_S = 15.0
_TRIES = 60  # while somebody answers, and does not take it


class _Way:
    """A connection to the control plane that is kept for the next transfer. For one thread at a time."""

    def __init__(self, endpoint: Callable[[], Endpoint]):
        self._endpoint = endpoint
        self._open: tuple[Endpoint, httpx.Client] | None = None
        self._resting: asyncio.TimerHandle | None = None

    def client(self) -> httpx.Client:
        """Raises OSError where nobody knows where it is."""
        endpoint = self._endpoint()
        if self._open is None or self._open[0] != endpoint:
            self.close()
            self._open = endpoint, open_client(endpoint, TIMEOUT)
        return self._open[1]

    def wake(self) -> None:
        """Something will be transferred."""
        if self._resting is not None:
            self._resting.cancel()
            self._resting = None

    def rest(self) -> None:
        """Nothing is, for now: it is closed a while later."""
        self.wake()
        self._resting = asyncio.get_running_loop().call_later(_REST_S, self.close)

    def close(self) -> None:
        """Harmless when repeated."""
        self.wake()
        if self._open is not None:
            self._open[1].close()
            self._open = None


class ArgumentBlobs:
    """What the calls of one attempt need here. All of it runs on the loop, but for the transfers, one at a time.

    Arguments:
        services: the agent.
        here: called when more is here.
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
        self._lacking: dict[str, None] = {}  # in order
        self._found: dict[str, tuple[BlobPlace, float]] = {}  # until when, on the monotonic clock, in seconds
        self._named_by: dict[tuple[int, int, int], tuple[CallBatch, list[str]]] = {}  # by a batch's identity, and calls
        self._task: asyncio.Task[None] | None = None
        self._way = _Way(services.endpoint)

    @property
    def lacking(self) -> Container[str]:
        """Digests of those that are on their way."""
        return self._lacking

    def ready(self, piece: Piece) -> bool:
        """Whether all that these calls need is here: the piece has their places then. What lacks is on its way."""
        if piece.batch is None:
            return True
        named = self._named(piece, piece.batch)
        piece.lacks = next((digest for digest in named if digest in self._lacking), "")
        if piece.lacks:
            return False
        places = [place for digest in named if (place := self._find(digest)) is not None]
        if len(places) < len(named):
            here = {place.digest for place in places}
            lacking = [digest for digest in named if digest not in here]
            piece.lacks = lacking[0]
            self._want(lacking)
            return False
        piece.places = places
        return True

    def _named(self, piece: Piece, batch: CallBatch) -> list[str]:
        """What the calls of a piece name; the same one is asked for again and again, while something lacks."""
        key = id(batch), piece.first, piece.stop
        known, named = self._named_by.get(key, (None, []))
        if known is not batch:
            if len(self._named_by) >= _NAMED:
                self._named_by.clear()
            named = named_in(batch.blobs, piece.args)
            self._named_by[key] = batch, named
        return named

    def want(self, batch: CallBatch) -> None:
        """These calls are to run here: what lacks is fetched from now on."""
        self._want([digest for digest in named_in(batch.blobs, batch.args) if self._find(digest) is None])

    def close(self) -> None:
        """Nothing is needed any more."""
        self._lacking.clear()
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self._way.close()

    def _find(self, digest: str) -> BlobPlace | None:
        """Where a blob is; it was looked for not long ago."""
        now = time.monotonic()
        place, until_s = self._found.get(digest, (None, 0.0))
        if now < until_s:
            return place
        span = self._services.workspaces.at_hand(digest)
        if span is None:
            return None
        if len(self._found) >= _FOUND:
            self._found.clear()
        place = BlobPlace(digest, os.path.abspath(span.path), span.offset, span.size)
        self._found[digest] = place, now + _FOUND_S
        return place

    def _want(self, digests: Iterable[str]) -> None:
        self._lacking.update(dict.fromkeys(digests))
        if self._lacking and self._task is None:
            self._tell("fetching arguments")
            self._task = asyncio.ensure_future(self._fetch_all())

    async def _fetch_all(self) -> None:
        try:
            self._way.wake()
            count = 1  # a call waits for the first
            while self._lacking:
                some = list(self._lacking)[:count]
                await self._fetch(some)
                if [digest for digest in some if self._lacking.pop(digest, self) is None]:
                    self._here()
                count = _AT_ONCE
        finally:
            self._task = None
            self._way.rest()

    async def _fetch(self, some: list[str]) -> None:
        loop = asyncio.get_running_loop()

        def came(digest: str) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._came, digest)

        try:
            await asyncio.to_thread(lambda: self._services.workspaces.fetch(some, self._way.client(), came))
        except (FetchError, SourceError, BlobError, OSError) as error:  # which of them it is: each by itself
            log.info("%d blobs did not come together: %s", len(some), error)
            for digest in some:
                if self._find(digest) is None:
                    await self._fetch_one(digest)

    def _came(self, digest: str) -> None:
        """One of those that come together is here: its calls need not wait for the others."""
        if self._lacking.pop(digest, self) is None:
            self._here()

    async def _fetch_one(self, digest: str) -> None:
        def get(tell: Callable[[str], None]) -> None:
            self._services.workspaces.blob(digest, tell, "arguments")

        try:
            await fetched(get, tell=self._tell, check_wish=self._check_wish, pause=asyncio.sleep)
        except Over as over:
            self._failed(digest, over.outcome.problem)
        except OSError as error:
            self._failed(digest, self._services.layout.trouble(error))


def named_in(blobs: Iterable[str], args: Iterable[bytes]) -> list[str]:
    """Those of a batch's blobs that some of its calls name: in packed values a digest stands as text."""
    found = {match for each in args for match in _DIGEST.findall(each)}
    named = [digest for digest in blobs if digest.encode() in found]
    return named or list(blobs)


class ResultBlobs:
    """What results name, on its way to the control plane: put beside it, or by HTTP, one transfer at a time.

    The runner has hashed it: whoever it serves can write what it likes anyway.

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
        self._way = _Way(services.endpoint)
        self._beside: Blobs | None = None

    @property
    def busy(self) -> bool:
        """Whether results wait."""
        return bool(self._waiting) or self._task is not None

    def add(self, run: CallRun, places: Sequence[BlobPlace]) -> CallRun | None:
        """Results, and where the files are that they name. Returned as they are to be told, where that can be now."""
        run = replace(run, blobs=tuple(place.digest for place in places))
        if self._put_beside(places):
            return run
        self._waiting.append((run, list(places)))
        if self._task is None:
            self._task = asyncio.ensure_future(self._deliver_all())
        return None

    def close(self) -> None:
        """Nobody wants them any more."""
        self._stop.set()
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self._way.close()

    # ---------------------------------------------------------------- beside the control plane

    def _put_beside(self, places: Sequence[BlobPlace]) -> bool:
        """The control plane's folder is on this disk: files go there as they are."""
        folder = self._services.blobs_beside()
        if folder is None:
            return False
        try:
            if self._beside is None or self._beside.folder != folder:
                if not os.access(folder / "new", os.W_OK | os.X_OK):
                    return False
                self._beside = Blobs(folder)
            for place in places:
                take_in(self._beside, place)
        except (SourceError, OSError) as error:
            log.info("large results can't be put beside the control plane, and go by HTTP: %s", error)
            return False
        return True

    # ---------------------------------------------------------------- by HTTP

    async def _deliver_all(self) -> None:
        try:
            self._way.wake()
            while self._waiting:
                some = self._next()
                if not await self._delivered(some):  # which of them it is: each by itself
                    for one in some:
                        await self._delivered([one])
        finally:
            self._task = None
            self._way.rest()

    def _next(self) -> list[tuple[CallRun, list[BlobPlace]]]:
        """Those that go now: they are told together, so that few bytes of others are waited for."""
        size_bytes = count = 0
        for _, places in self._waiting:
            size_bytes += sum(place.size for place in places)
            if count and size_bytes > _TOGETHER_BYTES:
                break
            count += 1
        some, self._waiting = self._waiting[:count], self._waiting[count:]
        return some

    async def _delivered(self, some: list[tuple[CallRun, list[BlobPlace]]]) -> bool:
        """Send what these name, and tell of them; False where that failed, and it is not known for which."""
        try:
            await self._deliver([place for _, places in some for place in places])
        except (DeliveryError, SourceError, BlobError, OSError) as error:
            if len(some) > 1:
                return False
            text = self._services.layout.trouble(error) if isinstance(error, OSError) else str(error)
            self._failed(replace(some[0][0], blobs=()), text)
        else:
            self._there([run for run, _ in some])
        return True

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

    def _send(self, places: list[BlobPlace]) -> None:
        """Blocking: runs in a thread."""
        here = self._services.workspaces.blobs
        for place in places:  # so a call that takes what another returned finds it on this machine
            self._services.workspaces.at_hand(place.digest)  # nothing removes it for a while
            take_in(here, place)
        try:
            client = self._way.client()
        except OSError as error:
            raise NobodyThere(str(error)) from error
        try:
            self._upload(client, {place.digest: (str(here.path(place.digest)), place.size) for place in places})
        except httpx.HTTPStatusError as error:
            raise refused(error) from error
        except httpx.HTTPError as error:
            raise NobodyThere(why(error)) from error
        except TransferStopped as error:
            raise NobodyThere("stopped") from error

    def _upload(self, client: httpx.Client, files: dict[str, tuple[str, int]]) -> None:
        batch: dict[str, tuple[str, int]] = {}
        for digest, (path, size) in files.items():
            if size >= LARGE_BYTES:
                send_blob(client, digest, path, size, stop=self._stop)
                continue
            if batch and sum(each for _, each in batch.values()) + size > BATCH_BYTES:
                send_pack(client, batch)
                batch = {}
            batch[digest] = path, size
        if batch:
            send_pack(client, batch)

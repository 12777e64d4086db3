"""What a cell made, on its way to the control plane's blobs."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from gpulayer.protocol.endpoint import Endpoint
from gpulayer.protocol.failpoints import reach
from gpulayer.protocol.lazily import Lazily
from gpulayer.protocol.types import Problem
from gpulayer.source import Manifest, SourceChanged, iter_pack, plain_pack_bytes, worth_compressing
from gpulayer.source.upload import LARGE_BYTES, TransferStopped, send_blob
from gpulayer_worker.web import open_client
from gpulayer_worker.workspace import TIMEOUT, why

if TYPE_CHECKING:
    import httpx
else:
    httpx = Lazily("httpx")

BLOB_BYTES = 1024**4
"""Of a file that comes back at most."""

BATCH_BYTES = 256 * 1024**2
"""Files travel in uploads of about this size: what came whole is not sent again."""

_TOLD_EVERY_S = 0.5
_AWAY = frozenset({502, 503, 504})  # of a proxy before a control plane that does not answer
_SOON_OTHER = frozenset({401, 403, 408, 429, 500, 507})  # a token that is about to be another, a full disk


class DeliveryError(RuntimeError):
    """It could not be delivered: why."""


class Undeliverable(DeliveryError):
    """Tried again it would go the same way."""


class NobodyThere(DeliveryError):
    """The control plane does not answer: it may be away for long, and be tried for as long."""


@dataclass(frozen=True, kw_only=True)
class Parcel:
    """What goes back of one attempt."""

    paths: Mapping[str, str]  # digest -> where the bytes are
    sizes: Mapping[str, int]  # digest -> bytes
    values: str = ""  # digest of the blob of values
    manifest: Manifest | None = None  # of the files

    def __post_init__(self) -> None:
        for digest, size in self.sizes.items():
            if size > BLOB_BYTES:
                name = os.path.basename(self.paths[digest])
                raise Undeliverable(f"{name} has {size / 1e9:.1f} GB, and at most {BLOB_BYTES / 1e9:.1f} GB come back")


def deliver(
    parcel: Parcel, endpoint: Callable[[], Endpoint], tell: Callable[[str], None], stop: threading.Event
) -> None:
    """Send what the control plane lacks of a parcel. Blocks: call it in a thread. Done again, it does no harm.

    Args:
        parcel: what to send.
        endpoint: where to; raises OSError where that is not known.
        tell: takes lines such as 'sending results back · 120 of 800 MB'.
        stop: set, it returns soon, and nothing was promised.

    Raises:
        DeliveryError: see its kinds. `SourceChanged`: a file is not what it was. OSError: it can't be read.
    """
    try:
        there = endpoint()
    except OSError as error:
        raise NobodyThere(str(error)) from error
    try:
        with open_client(there, TIMEOUT) as client:
            _deliver(client, parcel, tell, stop)
    except TransferStopped:
        return
    except httpx.HTTPStatusError as error:
        raise refused(error) from error
    except httpx.HTTPError as error:
        if stop.is_set():
            return
        raise NobodyThere(why(error)) from error


def _deliver(client: httpx.Client, parcel: Parcel, tell: Callable[[str], None], stop: threading.Event) -> None:
    missing = _missing(client, parcel)
    total_bytes = sum(parcel.sizes[digest] for digest in missing)
    progress = _Progress(total_bytes, tell, stop)
    small = [digest for digest in missing if parcel.sizes[digest] < LARGE_BYTES]
    for batch in _batches(small, parcel.sizes):
        _upload(client, batch, parcel, progress)
        reach("agent.mid-delivery")
    for digest in [digest for digest in missing if parcel.sizes[digest] >= LARGE_BYTES]:
        send_blob(client, digest, parcel.paths[digest], parcel.sizes[digest], tell=progress.of_one(), stop=stop)
        reach("agent.mid-delivery")
    if missing and parcel.manifest is not None:  # it is stored once nothing that it names is missing
        left = _announce(client, parcel.manifest)
        if left:
            raise DeliveryError(f"{len(left)} files did not arrive")


def _missing(client: httpx.Client, parcel: Parcel) -> list[str]:
    missing: list[str] = []
    if parcel.values:
        answer = client.head(f"/v1/blobs/{parcel.values}")
        if answer.status_code != 404:
            answer.raise_for_status()
        if answer.status_code == 404 or answer.headers.get("Content-Length") != str(parcel.sizes[parcel.values]):
            missing.append(parcel.values)
    if parcel.manifest is not None:
        missing += _announce(client, parcel.manifest)
    return list(dict.fromkeys(missing))


def _announce(client: httpx.Client, manifest: Manifest) -> list[str]:
    answer = client.post("/v1/bundles", content=manifest.to_bytes())
    answer.raise_for_status()
    return answer.json()["missing"]


def _batches(digests: list[str], sizes: Mapping[str, int]) -> Iterator[list[str]]:
    batch: list[str] = []
    for digest in digests:
        if batch and sum(sizes[each] for each in batch) + sizes[digest] > BATCH_BYTES:
            yield batch
            batch = []
        batch.append(digest)
    if batch:
        yield batch


def _upload(client: httpx.Client, digests: list[str], parcel: Parcel, progress: _Progress) -> None:
    sizes = [parcel.sizes[digest] for digest in digests]
    compress = worth_compressing(sum(sizes), str(client.base_url))
    pack = iter_pack([(digest, parcel.paths[digest]) for digest in digests], compress=compress)
    headers = {} if compress else {"Content-Length": str(plain_pack_bytes(sizes))}
    client.post("/v1/blobs", content=progress.over(pack), headers=headers).raise_for_status()


class _Progress:
    """How far it is, said now and then; also looks whether anybody still wants it."""

    def __init__(self, total_bytes: int, tell: Callable[[str], None], stop: threading.Event) -> None:
        self._total_bytes = total_bytes
        self._tell = tell
        self._stop = stop
        self._sent_bytes = 0
        self._next_s = time.monotonic() + _TOLD_EVERY_S

    def over(self, pack: Iterator[bytes]) -> Iterator[bytes]:
        """The pack, counted while it goes."""
        for piece in pack:
            if self._stop.is_set():
                raise TransferStopped
            yield piece
            reach("agent.mid-upload")
            self._went(len(piece))

    def of_one(self) -> Callable[[int], None]:
        """For one blob that travels by itself: takes how many bytes of it are there."""
        before = 0

        def there(size_bytes: int) -> None:
            nonlocal before
            reach("agent.mid-upload")
            self._went(size_bytes - before)
            before = size_bytes

        return there

    def _went(self, size_bytes: int) -> None:
        self._sent_bytes += size_bytes
        if time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + _TOLD_EVERY_S
            sent, total = self._sent_bytes / 1e6, self._total_bytes / 1e6
            self._tell(f"sending results back · {min(sent, total):.0f} of {total:.0f} MB")


def refused(error: httpx.HTTPStatusError) -> DeliveryError:
    """What an answer of the control plane means for what was sent."""
    status = error.response.status_code
    try:
        text = msgspec.json.decode(error.response.content, type=Problem).line()
    except (msgspec.MsgspecError, httpx.StreamError):
        text = why(error)
    if status in _AWAY:
        return NobodyThere(text)
    return DeliveryError(text) if status in _SOON_OTHER else Undeliverable(text)


def whole(path: str, size_bytes: int) -> str:
    """The path of a file of this size. Raises `SourceChanged` where it is another, or gone."""
    try:
        if os.stat(path).st_size == size_bytes:
            return path
    except FileNotFoundError:
        pass
    raise SourceChanged(f"{os.path.basename(path)} is not what the cell left")

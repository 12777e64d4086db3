"""Blobs on their way to and from the control plane, over breaks of the connection and restarts."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

from gpulayer.client.asks import AWAY, Away, refusal
from gpulayer.client.errors import ControlPlaneError, RequestRefused
from gpulayer.client.tls import httpx_options, tls_context
from gpulayer.protocol.endpoint import Endpoint
from gpulayer.protocol.pin import proxied
from gpulayer.source import iter_pack, plain_pack_bytes, worth_compressing
from gpulayer.source.pack import InMemory

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")
Tell = Callable[[str], None]

PAUSES_S = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0)
"""Before each further try of a transfer that broke: a control plane starts again within a second or two."""

_CHUNK_BYTES = 256 * 1024
_TOLD_EVERY_S = 0.5
_BAR_LETTERS = 8


class Damaged(Exception):
    """What came is not what its digest says."""


class Tie(Protocol):
    """What a transfer needs of the connection."""

    @property
    def endpoint(self) -> Endpoint | None: ...


def open_client(endpoint: Endpoint) -> httpx.Client:
    """A client of the control plane, for what may take long."""
    import httpx  # not at import: most cells send nothing

    from gpulayer.source.direct import Direct

    options = httpx_options(endpoint)
    transport = None if proxied(endpoint.url) else Direct(endpoint.url, tls_context(endpoint))
    return httpx.Client(timeout=httpx.Timeout(30.0, read=300.0, write=300.0), transport=transport, **options)


def check(answer: httpx.Response) -> None:
    """Raise for an answer that is none: `Away`, `RequestRefused`, `ControlPlaneError`. Its body has been read."""
    if answer.status_code in AWAY:
        raise Away(f"{answer.status_code} {answer.reason_phrase}")
    if answer.status_code >= 400:
        raise refusal(f"{answer.status_code} {answer.reason_phrase}", answer.content, "the files were ")


def persist(tie: Tie, act: Callable[[httpx.Client], T], tell: Tell, doing: str, then: str) -> T:
    """What `act` returns, tried again after a break.

    Args:
        tie: knows where the control plane is now.
        act: what to do; done again, it goes on where it was.
        tell: takes the line that says so.
        doing: 'while the values were sent'.
        then: what a person does when it stays away: 'run the cell again'.

    Raises:
        ControlPlaneError: it stays away. `RequestRefused`, and whatever else `act` raises.
    """
    import httpx

    for number, pause_s in enumerate((*PAUSES_S, None), 2):
        endpoint = tie.endpoint
        text = f"the control plane went away {doing}"
        try:
            if endpoint is not None:
                with open_client(endpoint) as client:
                    return act(client)
        except (httpx.HTTPError, Away, Damaged) as error:
            text = f"{text} ({error})"
        except RequestRefused as error:
            # After a break it may be started again, with another token, which the connection does not know yet.
            if error.problem.status != 401 or pause_s is None:
                raise
        if pause_s is None:
            break
        tell(f"◌ {text}; trying again in {pause_s:g} s, try {number} of {len(PAUSES_S) + 1}")
        time.sleep(pause_s)  # a connection has no news of who comes back
    raise ControlPlaneError(f"{text}; {then}")


# ---------------------------------------------------------------- one blob


def upload(
    client: httpx.Client, digest: str, size_bytes: int, pieces: Iterator[memoryview], tell: Tell, line: str
) -> None:
    """Send one blob; `line` says what it is, for who waits."""
    compress = worth_compressing(size_bytes, str(client.base_url))
    source = InMemory(size_bytes, cast("Iterator[bytes]", pieces))
    pack = iter_pack([(digest, source)], compress=compress, verify=False)  # whoever takes it checks it
    headers = {} if compress else {"Content-Length": str(plain_pack_bytes([size_bytes]))}
    check(client.post("/v1/blobs", content=told(pack, size_bytes, tell, line), headers=headers))


class Body:
    """The body of an answer as a file without a buffer, whose digest is taken while it is read."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = memoryview(b"")
        self._sha256 = hashlib.sha256()

    def readinto(self, target: memoryview) -> int:
        """Fill some of `target`; how much, 0 at the end."""
        if not self._rest:
            chunk = next(self._chunks, b"")
            self._sha256.update(chunk)
            self._rest = memoryview(chunk)
        size = min(len(target), len(self._rest))
        target[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size

    def check(self, digest: str) -> None:
        """Raise `Damaged` where what was read is not all, or not what the digest says."""
        if self._rest or next(self._chunks, b"") or self._sha256.hexdigest() != digest:
            raise Damaged(f"blob {digest[:12]}… came damaged")


def download(client: httpx.Client, digest: str, read: Callable[[Body, int], T], tell: Tell, line: str) -> T:
    """What `read` makes of one blob and its size (bytes); it is what its digest says."""
    with client.stream("GET", f"/v1/blobs/{digest}") as answer:
        if answer.status_code >= 400:
            answer.read()
        check(answer)
        size = int(answer.headers.get("Content-Length", "0"))
        body = Body(told(answer.iter_bytes(_CHUNK_BYTES), size, tell, line))
        made = read(body, size)
        body.check(digest)
    return made


def megabytes(passed_bytes: int, total_bytes: int) -> str:
    """'3 of 12 MB'."""
    return f"{min(passed_bytes, total_bytes) / 1e6:.0f} of {total_bytes / 1e6:.0f} MB"


def bar(sent_bytes: int, total_bytes: int) -> str:
    """How far an upload is, in bytes that travel: fewer than the files', where they are compressed."""
    full = min(_BAR_LETTERS, _BAR_LETTERS * sent_bytes // max(1, total_bytes))
    drawn = "▓" * full + "░" * (_BAR_LETTERS - full)
    return f"{drawn} {sent_bytes / 1e6:.0f} of at most {total_bytes / 1e6:.0f} MB"


class HowFar(str):
    """A line that says how far a transfer is, for whoever draws that otherwise: what it is, bytes so far and in all."""

    what: str
    passed_bytes: int
    total_bytes: int

    @staticmethod
    def of(what: str, passed_bytes: int, total_bytes: int, shown: Callable[[int, int], str]) -> HowFar:
        """`what` and what `shown` makes of the bytes."""
        line = HowFar(f"{what} · {shown(passed_bytes, total_bytes)}")
        line.what, line.passed_bytes, line.total_bytes = what, passed_bytes, total_bytes
        return line


def told(
    pieces: Iterator[bytes], total_bytes: int, tell: Tell, line: str, shown: Callable[[int, int], str] = megabytes
) -> Iterator[bytes]:
    """The pieces; while they go, people see how far it is: the line, and what `shown` makes of bytes so far, in all."""
    passed_bytes = 0
    next_s = time.monotonic() + _TOLD_EVERY_S
    for piece in pieces:
        yield piece
        passed_bytes += len(piece)
        if time.monotonic() >= next_s:
            next_s = time.monotonic() + _TOLD_EVERY_S
            tell(HowFar.of(line, passed_bytes, total_bytes, shown))

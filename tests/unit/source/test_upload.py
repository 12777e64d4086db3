"""Large blobs on their way: what breaks goes on. With a control plane: tests/unit/server/http/test_uploads.py."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from gpulayer.source import again
from gpulayer.source.again import CHUNK_BYTES
from gpulayer.source.upload import send_blob

DATA = os.urandom(1 << 20) * 20
DIGEST = hashlib.sha256(DATA).hexdigest()

Breaks = list[Callable[[], httpx.Response]]


class Host:
    """Takes one blob; `breaks` are what comes instead of an answer, after the bytes were taken."""

    def __init__(self, breaks: Breaks | None = None):
        self.data = b""
        self.chunks: list[int] = []
        self._breaks = breaks or []

    def client(self) -> httpx.Client:
        return httpx.Client(base_url="http://127.0.0.1:9", transport=httpx.MockTransport(self._answer))

    def _answer(self, request: httpx.Request) -> httpx.Response:
        assert request.url.params["size"] == str(len(DATA))
        assert request.url.path == f"/v1/uploads/{DIGEST}"
        if request.method == "PATCH":
            chunk = request.read()
            assert request.headers["Upload-Checksum"] == hashlib.sha256(chunk).hexdigest()
            self.chunks.append(len(chunk))
            if int(request.headers["Upload-Offset"]) != len(self.data):
                return httpx.Response(409, headers={"Upload-Offset": str(len(self.data))})
            self.data += chunk
            if self._breaks:
                return self._breaks.pop(0)()
        return httpx.Response(200, headers={"Upload-Offset": str(len(self.data))})


def refused(status: int) -> Callable[[], httpx.Response]:
    return lambda: httpx.Response(status)


def lost() -> httpx.Response:
    raise httpx.ReadError("the answer was lost")


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(again, "PAUSES_S", (0.0,) * 3)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "file").write_bytes(DATA)
    return tmp_path / "file"


def test_chunks_grow_on_a_quick_way_and_are_never_too_large(file: Path) -> None:
    host = Host()
    with host.client() as client:
        send_blob(client, DIGEST, file, len(DATA))
    assert host.data == DATA
    assert host.chunks == [1 << 20, 2 << 20, 4 << 20, CHUNK_BYTES, 5 << 20]


@pytest.mark.parametrize("answer", [lost, refused(503), refused(502), refused(460), refused(429)])
def test_after_a_break_it_asks_and_goes_on(file: Path, answer: Callable[[], httpx.Response]) -> None:
    host = Host([answer, answer, answer])
    with host.client() as client:
        send_blob(client, DIGEST, file, len(DATA))
    assert host.data == DATA
    assert sum(host.chunks) == len(DATA)  # nothing was sent twice


def test_who_never_answers_is_left_after_some_tries_and_nothing_is_lost(file: Path) -> None:
    away = httpx.MockTransport(lambda request: (_ for _ in ()).throw(httpx.ConnectError("refused")))
    with (
        httpx.Client(base_url="http://127.0.0.1:9", transport=away) as client,
        pytest.raises(httpx.ConnectError, match="refused"),
    ):
        send_blob(client, DIGEST, file, len(DATA))


@pytest.mark.parametrize("status", [400, 401, 403, 404, 507])
def test_a_refusal_is_told_at_once(file: Path, status: int) -> None:
    host = Host([refused(status)])
    with host.client() as client, pytest.raises(httpx.HTTPStatusError, match=str(status)):
        send_blob(client, DIGEST, file, len(DATA))
    assert len(host.chunks) == 1


def test_one_that_is_refused_as_damaged_twice_is_given_up(file: Path) -> None:
    host = Host([refused(422), refused(422)])
    with host.client() as client, pytest.raises(httpx.HTTPStatusError, match="422"):
        send_blob(client, DIGEST, file, len(DATA))


def test_an_answer_without_an_offset_is_none(file: Path) -> None:
    with (
        httpx.Client(
            base_url="http://127.0.0.1:9", transport=httpx.MockTransport(lambda request: httpx.Response(200))
        ) as client,
        pytest.raises(httpx.RemoteProtocolError, match="without Upload-Offset"),
    ):
        send_blob(client, DIGEST, file, len(DATA))

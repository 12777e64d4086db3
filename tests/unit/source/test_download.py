"""Large blobs on their way back: what breaks goes on."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from gpulayer.source import BlobError, again
from gpulayer.source.again import TransferStopped
from gpulayer.source.download import fetch_blob

DATA = os.urandom(1_000_000)
DIGEST = hashlib.sha256(DATA).hexdigest()


class Host:
    """Gives a blob, and breaks off after so many bytes as long as there are such numbers."""

    def __init__(self, *breaks: int, ranges: bool = True, data: bytes = DATA):
        self.breaks = list(breaks)
        self.asked: list[str] = []
        self._ranges = ranges
        self._data = data

    def client(self) -> httpx.Client:
        return httpx.Client(base_url="http://127.0.0.1:9", transport=httpx.MockTransport(self._answer))

    def _answer(self, request: httpx.Request) -> httpx.Response:
        asked = request.headers["Range"]
        self.asked.append(asked)
        first = int(asked.removeprefix("bytes=").removesuffix("-")) if self._ranges else 0
        headers = {"Content-Range": f"bytes {first}-{len(self._data) - 1}/{len(self._data)}"} if self._ranges else {}
        return httpx.Response(206 if self._ranges else 200, headers=headers, content=self._bytes(first))

    def _bytes(self, first: int) -> Iterator[bytes]:
        data = self._data[first:]
        if self.breaks:
            yield data[: self.breaks.pop(0)]
            raise httpx.ReadError("broken")
        yield data


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(again, "PAUSES_S", (0.0,) * 3)


def test_it_goes_on_where_it_broke(tmp_path: Path) -> None:
    host = Host(300_000, 200_000)
    told: list[int] = []
    with host.client() as client:
        fetch_blob(client, DIGEST, tmp_path / "file", len(DATA), told.append)
    assert host.asked == ["bytes=0-", "bytes=300000-", "bytes=500000-"]
    assert (tmp_path / "file").read_bytes() == DATA
    assert told[-1] == len(DATA)
    assert os.listdir(tmp_path) == ["file"]


def test_a_later_call_goes_on_too(tmp_path: Path) -> None:
    host = Host(300_000, 0, 0, 0, 0)
    with host.client() as client:
        with pytest.raises(httpx.ReadError):
            fetch_blob(client, DIGEST, tmp_path / "file", len(DATA))
        assert not (tmp_path / "file").exists()
        fetch_blob(client, DIGEST, tmp_path / "file", len(DATA))
    assert host.asked[-1] == "bytes=300000-"
    assert (tmp_path / "file").read_bytes() == DATA


def test_who_knows_no_ranges_sends_all_and_only_the_rest_is_taken(tmp_path: Path) -> None:
    host = Host(300_000, ranges=False)
    with host.client() as client:
        fetch_blob(client, DIGEST, tmp_path / "file", len(DATA))
    assert (tmp_path / "file").read_bytes() == DATA


@pytest.mark.parametrize("data", [bytes(len(DATA)), DATA + b"more", DATA[:-1]], ids=["other", "longer", "shorter"])
def test_other_bytes_are_no_file(tmp_path: Path, data: bytes) -> None:
    host = Host(data=data)
    with host.client() as client:
        if data.startswith(DATA):  # no more than its size is taken
            fetch_blob(client, DIGEST, tmp_path / "file", len(DATA))
            return
        with pytest.raises((BlobError, httpx.HTTPError)):
            fetch_blob(client, DIGEST, tmp_path / "file", len(DATA))
    assert not (tmp_path / "file").exists()


def test_a_part_of_something_else_is_thrown_away(tmp_path: Path) -> None:
    part = tmp_path / f".file.{DIGEST[:16]}.part"
    part.write_bytes(bytes(len(DATA) + 5))
    with Host().client() as client:
        fetch_blob(client, DIGEST, tmp_path / "file", len(DATA))
        part.write_bytes(b"wrong")
        with pytest.raises(BlobError):
            fetch_blob(client, DIGEST, tmp_path / "file", len(DATA))
        assert not part.exists()
        fetch_blob(client, DIGEST, tmp_path / "file", len(DATA))
    assert (tmp_path / "file").read_bytes() == DATA


def test_an_empty_one_is_asked_for_by_nobody(tmp_path: Path) -> None:
    host = Host(data=b"")
    with host.client() as client:
        fetch_blob(client, hashlib.sha256(b"").hexdigest(), tmp_path / "file", 0)
    assert (tmp_path / "file").read_bytes() == b""
    assert host.asked == []


def test_once_stopped_it_ends(tmp_path: Path) -> None:
    stop = threading.Event()
    stop.set()
    with Host().client() as client, pytest.raises(TransferStopped):
        fetch_blob(client, DIGEST, tmp_path / "file", len(DATA), stop=stop)


def test_one_that_is_not_there_is_told_at_once(tmp_path: Path) -> None:
    transport = httpx.MockTransport(lambda request: httpx.Response(404))
    with (
        httpx.Client(base_url="http://127.0.0.1:9", transport=transport) as client,
        pytest.raises(httpx.HTTPStatusError, match="404"),
    ):
        fetch_blob(client, DIGEST, tmp_path / "file", len(DATA))

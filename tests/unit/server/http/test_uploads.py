"""Uploads in checked chunks, and blobs in parts."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from gpulayer.source import SourceChanged, iter_pack, partial
from gpulayer.source.again import CHUNK_BYTES
from gpulayer.source.download import fetch_blob
from gpulayer.source.pack import InMemory
from gpulayer.source.upload import TransferStopped, send_blob
from gpulayer_server.http import uploads
from tests.support.processes import until


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def client(plane: Any) -> httpx.Client:
    headers = {"Authorization": f"Bearer {plane.endpoint.token}"}
    return httpx.Client(base_url=plane.endpoint.url, headers=headers, trust_env=False, timeout=30)


def head(plane: Any, data: bytes) -> int:
    answer = plane.request("HEAD", f"/v1/uploads/{digest(data)}?size={len(data)}")
    assert answer.status_code == 200
    return int(answer.headers["Upload-Offset"])


def patch(plane: Any, data: bytes, first: int, last: int, **headers: str) -> httpx.Response:
    chunk = data[first:last]
    given = {"Upload-Offset": str(first), "Upload-Checksum": digest(chunk)} | headers
    return plane.request("PATCH", f"/v1/uploads/{digest(data)}?size={len(data)}", content=chunk, headers=given)


DATA = os.urandom(300_000)


def test_a_blob_comes_in_chunks_and_is_there_with_the_last(plane: Any) -> None:
    assert head(plane, DATA) == 0
    first = patch(plane, DATA, 0, 100_000)
    assert (first.status_code, first.headers["Upload-Offset"], first.json()) == (200, "100000", {"offset": 100_000})
    assert head(plane, DATA) == 100_000
    assert plane.request("GET", f"/v1/blobs/{digest(DATA)}").status_code == 404
    assert patch(plane, DATA, 100_000, 300_000).headers["Upload-Offset"] == "300000"
    assert head(plane, DATA) == 300_000
    assert plane.request("GET", f"/v1/blobs/{digest(DATA)}").content == DATA
    assert list((plane.service.shell.blobs.folder / "partial").iterdir()) == []


def test_a_chunk_from_elsewhere_is_told_where_to_go_on(plane: Any) -> None:
    patch(plane, DATA, 0, 1000)
    for first, last in ((0, 1000), (5000, 6000)):
        answer = patch(plane, DATA, first, last)
        assert (answer.status_code, answer.headers["Upload-Offset"]) == (409, "1000")
        assert answer.json()["code"] == "offset"
    assert head(plane, DATA) == 1000


def test_a_damaged_chunk_does_not_count(plane: Any) -> None:
    answer = patch(plane, DATA, 0, 1000, **{"Upload-Checksum": "ab" * 32})
    assert (answer.status_code, answer.json()["code"]) == (460, "checksum")
    assert head(plane, DATA) == 0


def test_a_blob_that_is_not_its_digest_is_dropped_whole(plane: Any) -> None:
    url = f"/v1/uploads/{'ab' * 32}?size=1000"
    chunk = DATA[:1000]
    headers = {"Upload-Offset": "0", "Upload-Checksum": digest(chunk)}
    answer = plane.request("PATCH", url, content=chunk, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (422, "digest")
    assert plane.request("HEAD", url).headers["Upload-Offset"] == "0"
    assert [path for path in plane.service.shell.blobs.folder.rglob("*") if path.is_file()] == []


def test_an_empty_blob_is_there_once_it_was_asked_for(plane: Any) -> None:
    assert head(plane, b"") == 0
    assert plane.request("GET", f"/v1/blobs/{digest(b'')}").status_code == 200
    assert plane.request("HEAD", f"/v1/uploads/{'ab' * 32}?size=0").status_code == 422


@pytest.mark.parametrize(
    ("query", "headers", "words"),
    [
        ("", {}, "size must be a whole number, not ''"),
        ("?size=x", {}, "size must be a whole number, not 'x'"),
        ("?size=-1", {}, "size can't be -1"),
        ("?size=10", {"Upload-Offset": "no"}, "the request needs the header Upload-Offset, a number of bytes"),
    ],
)
def test_requests_that_are_none_are_told_what_lacks(plane: Any, query: str, headers: Any, words: str) -> None:
    url = f"/v1/uploads/{'ab' * 32}{query}"
    answer = plane.request("PATCH", url, content=b"x", headers={"Upload-Offset": "0"} | headers)
    assert (answer.status_code, answer.json()["title"]) == (400, words)


def test_a_chunk_that_is_too_large_is_refused_unread(plane: Any) -> None:
    data = bytes(CHUNK_BYTES + 1)
    try:
        answer = patch(plane, data, 0, len(data))
    except httpx.TransportError:
        pass  # the connection was closed while the body was on its way
    else:
        assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
    assert head(plane, data) == 0


def test_more_than_its_size_is_refused(plane: Any) -> None:
    answer = plane.request(
        "PATCH",
        f"/v1/uploads/{'ab' * 32}?size=10",
        content=DATA[:100],
        headers={"Upload-Offset": "0", "Upload-Checksum": digest(DATA[:100])},
    )
    assert answer.status_code == 422
    assert "are more than the 10 that it is said to have" in answer.json()["detail"]


def test_a_full_disk_is_one_line_and_nothing_of_the_chunk_stays(plane: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    patch(plane, DATA, 0, 1000)

    def full(descriptor: int, data: bytes) -> None:
        os.write(descriptor, data[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(partial, "write_all", full)
        answer = patch(plane, DATA, 1000, 2000)
    assert (answer.status_code, answer.json()["code"]) == (507, "disk")
    assert "make room in" in answer.json()["detail"]
    assert head(plane, DATA) == 1000
    patch(plane, DATA, 1000, 300_000)
    assert plane.request("GET", f"/v1/blobs/{digest(DATA)}").content == DATA


def test_bytes_wait_outside_while_there_is_no_room_for_them(plane: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    small = uploads.Uploads(partial.Partials(plane.service.shell.blobs))
    small.room = uploads._Room(1000)
    plane.do(lambda: plane.service._server.request_callback.settings.update(uploads=small))
    contents = [os.urandom(900) for _ in range(6)]
    threads = [threading.Thread(target=patch, args=(plane, data, 0, 900)) for data in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [head(plane, data) for data in contents] == [900] * 6
    assert small.room._free_bytes == 1000


# ---------------------------------------------------------------- both ends


def test_a_file_arrives_whole_and_is_sent_once(plane: Any, tmp_path: Path) -> None:
    data = os.urandom(1 << 20) * 21
    (tmp_path / "file").write_bytes(data)
    told: list[int] = []
    with client(plane) as http:
        send_blob(http, digest(data), tmp_path / "file", len(data), tell=told.append)
        assert told[-1] == len(data)
        assert told == sorted(told)
        told.clear()
        send_blob(http, digest(data), tmp_path / "file", len(data), tell=told.append)
        assert told == [len(data)]
        fetch_blob(http, digest(data), tmp_path / "back", len(data))
    assert (tmp_path / "back").read_bytes() == data


def test_two_who_send_the_same_do_not_harm_each_other(plane: Any, tmp_path: Path) -> None:
    data = os.urandom(1 << 20) * 30
    (tmp_path / "file").write_bytes(data)
    failures: list[Exception] = []

    def send() -> None:
        try:
            with client(plane) as http:
                send_blob(http, digest(data), tmp_path / "file", len(data))
        except Exception as error:  # noqa: BLE001 - looked at below
            failures.append(error)

    threads = [threading.Thread(target=send) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert plane.request("GET", f"/v1/blobs/{digest(data)}").content == data


def test_what_somebody_else_sent_wrong_does_not_stay_in_the_way(plane: Any, tmp_path: Path) -> None:
    wrong = b"wrong" * 200
    url = f"/v1/uploads/{digest(DATA)}?size={len(DATA)}"
    plane.request("PATCH", url, content=wrong, headers={"Upload-Offset": "0", "Upload-Checksum": digest(wrong)})
    assert head(plane, DATA) == 1000
    (tmp_path / "file").write_bytes(DATA)
    with client(plane) as http:
        send_blob(http, digest(DATA), tmp_path / "file", len(DATA))
    assert plane.request("GET", f"/v1/blobs/{digest(DATA)}").content == DATA


def test_a_file_that_changed_is_told(plane: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(DATA)
    with client(plane) as http:
        with pytest.raises(SourceChanged, match="file changed while it was sent"):
            send_blob(http, "ab" * 32, tmp_path / "file", len(DATA))
        with pytest.raises(SourceChanged):
            send_blob(http, digest(DATA), tmp_path / "file", len(DATA) + 1)
        with pytest.raises(SourceChanged):
            send_blob(http, digest(DATA), tmp_path / "gone", len(DATA))


def test_once_stopped_nothing_more_is_sent_and_what_came_stays(plane: Any, tmp_path: Path) -> None:
    data = os.urandom(1 << 20) * 21
    (tmp_path / "file").write_bytes(data)
    stop = threading.Event()

    def tell(sent_bytes: int) -> None:
        if sent_bytes:
            stop.set()

    with client(plane) as http, pytest.raises(TransferStopped):
        send_blob(http, digest(data), tmp_path / "file", len(data), tell=tell, stop=stop)
    until(lambda: head(plane, data) > 0, "the first chunk")
    assert head(plane, data) < len(data)


# ---------------------------------------------------------------- parts of blobs


@pytest.mark.parametrize(
    ("asked", "status", "shown", "part"),
    [
        ("bytes=0-", 206, "bytes 0-299999/300000", slice(0, None)),
        ("bytes=299999-", 206, "bytes 299999-299999/300000", slice(299_999, None)),
        ("bytes=10-19", 206, "bytes 10-19/300000", slice(10, 20)),
        ("bytes=10-999999999", 206, "bytes 10-299999/300000", slice(10, None)),
        ("bytes=0-1,5-9", 200, None, slice(0, None)),
        ("lines=3-", 200, None, slice(0, None)),
    ],
)
def test_a_part_of_a_blob(plane: Any, asked: str, status: int, shown: str | None, part: slice) -> None:
    patch(plane, DATA, 0, len(DATA))
    answer = plane.request("GET", f"/v1/blobs/{digest(DATA)}", headers={"Range": asked})
    assert (answer.status_code, answer.headers.get("Content-Range")) == (status, shown)
    assert answer.content == DATA[part]


@pytest.mark.parametrize("asked", ["bytes=300000-", "bytes=9-3"])
def test_a_part_that_is_none(plane: Any, asked: str) -> None:
    patch(plane, DATA, 0, len(DATA))
    answer = plane.request("GET", f"/v1/blobs/{digest(DATA)}", headers={"Range": asked})
    assert (answer.status_code, answer.headers["Content-Range"]) == (416, "bytes */300000")
    assert answer.json()["code"] == "range"


@pytest.mark.parametrize(("size", "offset"), [("1", "9" * 5000), ("9" * 5000, "0"), ("9" * 30, "0"), ("-1", "0")])
def test_numbers_that_are_none_are_the_clients_fault(plane: Any, size: str, offset: str) -> None:
    headers = {"Upload-Offset": offset, "Upload-Checksum": digest(b"x")}
    answer = plane.request("PATCH", f"/v1/uploads/{digest(b'x')}?size={size}", content=b"x", headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (400, "bad_request")


def test_files_never_take_the_last_of_a_disk(plane: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control plane's own store lies there too."""
    free_bytes = 256_000_000 + 150_000
    usage = shutil.disk_usage(plane.service.shell.blobs.folder)._replace(total=10**12, free=free_bytes)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    assert patch(plane, DATA, 0, 100_000).status_code == 200
    answer = patch(plane, DATA, 100_000, 300_000)
    assert (answer.status_code, answer.json()["code"]) == (507, "disk")
    assert "No space left on device" in answer.json()["detail"]
    assert head(plane, DATA) == 100_000
    pack = b"".join(iter_pack([(digest(DATA), InMemory(len(DATA), iter([DATA])))], compress=False))
    answer = plane.request("POST", "/v1/blobs", content=pack)
    assert (answer.status_code, answer.json()["code"]) == (507, "disk")

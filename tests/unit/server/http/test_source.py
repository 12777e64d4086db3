"""Bundles and blobs over HTTP."""

from __future__ import annotations

import hashlib
import io
import os
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import httpx
import pytest

from gpulayer.source import FileEntry, Manifest, iter_pack, read_pack, write_pack
from gpulayer.source.blobs import Blobs
from gpulayer_server.http import bodies, source


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def packed(*contents: bytes, compress: bool = False) -> bytes:
    """A pack of blobs, in memory."""
    return b"".join(iter_pack(((digest(each), io.BytesIO(each)) for each in contents), compress=compress))


def until(condition: Callable[[], bool]) -> None:
    """Wait for what another thread does; there is no event for it here."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def uploads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "upload"]


def pack(folder: Path, *contents: bytes) -> bytes:
    """A pack of blobs."""
    out = io.BytesIO()
    blobs = []
    for content in contents:
        path = folder / digest(content)
        path.write_bytes(content)
        blobs.append((digest(content), path))
    write_pack(blobs, out)
    return out.getvalue()


def manifest(*contents: bytes) -> Manifest:
    return Manifest(
        files=tuple(
            FileEntry(path=f"file{n}.py", mode=0o644, size=len(content), sha256=digest(content))
            for n, content in enumerate(contents)
        )
    )


def stored(plane: Any) -> list[Path]:
    return [path for path in plane.service.shell.blobs.folder.rglob("*") if path.is_file()]


def test_a_bundle_is_known_once_all_of_it_is_here(plane: Any, tmp_path: Path) -> None:
    bundle = manifest(b"one", b"two")
    first = plane.request("POST", "/v1/bundles", content=bundle.to_bytes()).json()
    assert first == {"digest": bundle.digest, "missing": [digest(b"one"), digest(b"two")]}
    assert plane.request("GET", f"/v1/blobs/{bundle.digest}").status_code == 404
    assert plane.request("POST", "/v1/blobs", content=pack(tmp_path, b"one")).json() == {"stored": 1}
    second = plane.request("POST", "/v1/bundles", content=bundle.to_bytes()).json()
    assert second["missing"] == [digest(b"two")]
    plane.request("POST", "/v1/blobs", content=pack(tmp_path, b"two"))
    assert plane.request("POST", "/v1/bundles", content=bundle.to_bytes()).json().get("missing", []) == []
    assert plane.request("GET", f"/v1/blobs/{bundle.digest}").content == bundle.to_bytes()


def test_a_worker_gets_what_it_asks_for_in_one_pack(plane: Any, tmp_path: Path) -> None:
    contents = [b"a", b"b" * 3_000_000, b""]
    plane.request("POST", "/v1/blobs", content=pack(tmp_path, *contents))
    wanted = [digest(content) for content in contents]
    answer = plane.request("POST", "/v1/blobs/fetch", json=wanted + wanted)
    got = {name: b"".join(chunks) for name, _, chunks in read_pack(io.BytesIO(answer.content))}
    assert got == {digest(content): content for content in contents}


def test_one_blob(plane: Any, tmp_path: Path) -> None:
    plane.request("POST", "/v1/blobs", content=pack(tmp_path, b"x" * 1_000_000))
    assert plane.request("GET", f"/v1/blobs/{digest(b'x' * 1_000_000)}").content == b"x" * 1_000_000


@pytest.mark.parametrize("path", ["/v1/blobs/../store.db", "/v1/blobs/ABC", "/v1/blobs/" + "A" * 64])
def test_only_digests_name_blobs(plane: Any, path: str) -> None:
    assert plane.request("GET", path).status_code == 404


def test_unknown_blobs_are_counted(plane: Any) -> None:
    answer = plane.request("POST", "/v1/blobs/fetch", json=["ab" * 32, "cd" * 32])
    assert (answer.status_code, answer.json()["code"]) == (404, "no_such_blob")
    assert "2 of 2 blobs are not here, the first is abab" in answer.json()["detail"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"no pack at all",
        lambda data: b"",
        lambda data: data[:-3],
        lambda data: data + b"more",
        lambda data: data.replace(b"the content", b"THE CONTENT"),
    ],
    ids=["no pack", "empty", "broken off", "too long", "wrong bytes"],
)
def test_a_damaged_pack_is_refused_and_leaves_no_wrong_blob(plane: Any, tmp_path: Path, damage: Any) -> None:
    answer = plane.request("POST", "/v1/blobs", content=damage(pack(tmp_path, b"the content")))
    assert (answer.status_code, answer.json()["code"]) == (400, "bad_source")
    for path in stored(plane):
        assert digest(path.read_bytes()) == path.name


@pytest.mark.parametrize(
    "body",
    [
        b"no manifest",
        b"",
        manifest(b"x").to_bytes().replace(b"file0.py", b"../../up"),
    ],
    ids=["no manifest", "empty", "a path that leaves the folder"],
)
def test_a_manifest_that_is_none_is_refused(plane: Any, body: bytes) -> None:
    answer = plane.request("POST", "/v1/bundles", content=body)
    assert (answer.status_code, answer.json()["code"]) == (400, "bad_source")
    assert stored(plane) == []


@pytest.mark.parametrize("body", [b"[1]", b'["x"]', b"{}", b"["])
def test_a_list_of_blobs_that_is_none_is_the_askers_fault(plane: Any, body: bytes) -> None:
    assert plane.request("POST", "/v1/blobs/fetch", content=body).status_code == 400


def test_a_large_upload_arrives(plane: Any, tmp_path: Path) -> None:
    content = os.urandom(1 << 20) * 20
    assert plane.request("POST", "/v1/blobs", content=pack(tmp_path, content)).json() == {"stored": 1}
    assert [path.name for path in stored(plane)] == [digest(content)]


def test_blobs_are_the_owners_alone(plane: Any, tmp_path: Path) -> None:
    plane.request("POST", "/v1/blobs", content=pack(tmp_path, b"one"))
    [path] = stored(plane)
    assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0


# ---------------------------------------------------------------- a bundle in one request


def test_a_pack_with_its_manifest_brings_a_bundle_at_once(plane: Any) -> None:
    bundle = manifest(b"one", b"two")
    body = packed(b"one", b"two", bundle.to_bytes(), compress=True)
    answer = plane.request("POST", "/v1/blobs", params={"bundle": bundle.digest}, content=body)
    assert answer.json() == {"stored": 2, "missing": []}
    assert plane.request("GET", f"/v1/blobs/{bundle.digest}").content == bundle.to_bytes()


def test_a_bundle_that_still_lacks_something_is_not_known(plane: Any) -> None:
    bundle = manifest(b"one", b"two")
    body = packed(b"one", bundle.to_bytes())
    answer = plane.request("POST", "/v1/blobs", params={"bundle": bundle.digest}, content=body)
    assert answer.json() == {"stored": 1, "missing": [digest(b"two")]}
    assert plane.request("GET", f"/v1/blobs/{bundle.digest}").status_code == 404


@pytest.mark.parametrize("known", [True, False])
def test_the_bundle_before_may_be_named(plane: Any, known: bool) -> None:
    first, second = manifest(b"one", b"two"), manifest(b"one", b"changed")
    if known:
        plane.request("POST", "/v1/blobs", content=packed(b"one", b"two"))
        plane.request("POST", "/v1/bundles", content=first.to_bytes())
    names = {"bundle": second.digest, "near": first.digest}
    answer = plane.request("POST", "/v1/blobs", params=names, content=packed(b"changed", second.to_bytes()))
    assert answer.json()["missing"] == ([] if known else [digest(b"one")])
    assert plane.request("GET", f"/v1/blobs/{second.digest}").status_code == (200 if known else 404)


def test_a_bundle_without_its_manifest_is_refused_and_its_blobs_are_kept(plane: Any) -> None:
    answer = plane.request("POST", "/v1/blobs", params={"bundle": "ab" * 32}, content=packed(b"one"))
    assert (answer.status_code, answer.json()["code"]) == (400, "bad_source")
    assert "its manifest is not in the pack" in answer.json()["detail"]
    assert digest(b"one") in plane.service.shell.blobs


def test_a_manifest_that_is_none_stores_nothing_of_its_name(plane: Any) -> None:
    answer = plane.request(
        "POST", "/v1/blobs", params={"bundle": digest(b"no manifest")}, content=packed(b"no manifest")
    )
    assert (answer.status_code, answer.json()["code"]) == (400, "bad_source")
    assert stored(plane) == []


def test_a_manifest_whose_sizes_are_wrong_is_not_known(plane: Any) -> None:
    plane.request("POST", "/v1/blobs", content=packed(b"one"))
    lying = Manifest([FileEntry(path="a", mode=0o644, size=4, sha256=digest(b"one"))])
    answer = plane.request("POST", "/v1/bundles", content=lying.to_bytes())
    assert answer.json()["missing"] == [digest(b"one")]


def test_few_manifests_are_remembered(tmp_path: Path) -> None:
    manifests = source.Manifests(Blobs(tmp_path))
    for count in (6000, 3000, 2000):
        entries = [FileEntry(path=f"{count}/{n}", mode=0o644, size=0, sha256=digest(b"")) for n in range(count)]
        manifests.keep(Manifest(entries).to_bytes())
    assert [len(each) for each in manifests._last.values()] == [3000, 2000]


def test_a_compressed_answer_is_given_where_it_is_asked_for(plane: Any) -> None:
    content = b"abc" * 100_000
    plane.request("POST", "/v1/blobs", content=packed(content))
    plain = plane.request("POST", "/v1/blobs/fetch", json=[digest(content)])
    short = plane.request("POST", "/v1/blobs/fetch", params={"coding": "zstd"}, json=[digest(content)])
    assert len(short.content) < 2000 < len(content) < len(plain.content) == int(plain.headers["Content-Length"])
    for answer in (plain, short):
        assert [b"".join(chunks) for _, _, chunks in read_pack(io.BytesIO(answer.content))] == [content]


# ---------------------------------------------------------------- limits, and uploads that do not end well


def test_a_bomb_is_refused_in_one_line(plane: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "MAX_UPLOAD_BYTES", 1_000_000)
    bomb = packed(bytes(50_000_000), compress=True)
    assert len(bomb) < 10_000
    answer = plane.request("POST", "/v1/blobs", content=bomb)
    assert (answer.status_code, answer.json()["code"]) == (400, "bad_source")
    assert answer.json()["detail"] == (
        "the pack unpacks to more than 1000000 bytes, which is the limit; send less at a time"
    )
    assert stored(plane) == []


def test_a_full_disk_is_told_to_a_client_that_is_still_sending(plane: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Blobs, blobs: Iterable[object]) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Blobs, "take", full)
    answer = plane.request("POST", "/v1/blobs", content=packed(os.urandom(30_000_000)))
    assert (answer.status_code, answer.json()["code"]) == (507, "disk")
    assert "No space left on device" in answer.json()["detail"]
    until(lambda: not uploads())


def begin_upload(plane: Any, body: bytes, length: int) -> socket.socket:
    """An upload that says it has `length` bytes and sends these."""
    url = httpx.URL(plane.endpoint.url)
    connection = socket.create_connection((url.host, url.port or 0))
    head = f"POST /v1/blobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {plane.endpoint.token}\r\n"
    connection.sendall(f"{head}Content-Length: {length}\r\n\r\n".encode() + body)
    return connection


def test_of_an_upload_that_breaks_off_what_came_whole_is_kept(plane: Any) -> None:
    small = [b"%04d" % number for number in range(40)]
    large = [os.urandom(300_000) for _ in range(3)]
    whole = packed(*small, *large)
    with begin_upload(plane, whole[:-200_000], len(whole)):
        pass
    blobs = plane.service.shell.blobs
    until(lambda: blobs.missing(map(digest, [*small, *large])) == [digest(large[2])])
    until(lambda: not uploads())
    assert list((blobs.folder / "new").iterdir()) == []


def test_an_upload_that_stands_still_holds_up_nobody(plane: Any) -> None:
    whole = packed(b"x" * 1_000_000)
    with begin_upload(plane, whole[:-10], len(whole)) as stalled:
        until(lambda: len(uploads()) == 1)
        assert plane.request("POST", "/v1/blobs", content=packed(b"another")).json() == {"stored": 1}
        stalled.sendall(whole[-10:])
        assert b'{"stored":1}' in stalled.recv(4096)
    until(lambda: not uploads())


def test_an_upload_that_says_nothing_for_long_is_given_up(plane: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "_STALLED_S", 1.0)
    whole = packed(b"x" * 1_000_000)
    with begin_upload(plane, whole[:-10], len(whole)) as stalled:
        until(lambda: len(uploads()) == 1)
        until(lambda: not uploads())
        stalled.sendall(whole[-10:])
        assert b"nothing came for 1 s; send it again" in stalled.recv(4096)


def test_no_thread_is_left(plane: Any) -> None:
    for body in (packed(b"a"), b"", b"no pack", packed(os.urandom(5_000_000))):
        plane.request("POST", "/v1/blobs", content=body)
    until(lambda: not uploads())
    assert digest(b"a") in plane.service.shell.blobs


def test_a_blob_is_asked_for_without_its_bytes(plane: Any, tmp_path: Path) -> None:
    assert plane.request("HEAD", f"/v1/blobs/{digest(b'one')}").status_code == 404
    plane.request("POST", "/v1/blobs", content=pack(tmp_path, b"one"))
    answer = plane.request("HEAD", f"/v1/blobs/{digest(b'one')}")
    assert (answer.status_code, answer.headers["Content-Length"], answer.content) == (200, "3", b"")
    whole = plane.request("GET", f"/v1/blobs/{digest(b'one')}")
    assert (whole.headers["Content-Length"], whole.content) == ("3", b"one")


# ---------------------------------------------------------------- large bodies


def exchanged(plane: Any, *contents: bytes) -> None:
    """Sent there, and read back by both ways, over one connection."""
    blobs = [digest(each) for each in contents]
    with httpx.Client(
        base_url=plane.endpoint.url, headers={"Authorization": f"Bearer {plane.endpoint.token}"}
    ) as client:
        for _ in range(2):
            assert client.post("/v1/blobs", content=packed(*contents)).json() == {"stored": len(contents)}
            back = client.post("/v1/blobs/fetch", json=blobs)
            assert back.content == packed(*contents)
            assert [client.get(f"/v1/blobs/{each}").content for each in blobs] == list(contents)


def test_large_blobs_come_and_go_over_one_connection(plane: Any) -> None:
    exchanged(plane, *(os.urandom(size) for size in (65_536, 524_287, 524_288, 3_000_001)))


def test_where_the_system_can_t_tell_what_is_in_memory_a_thread_reads(
    plane: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "_NOW", 0)
    exchanged(plane, os.urandom(1_200_000), os.urandom(100_000))


def test_a_large_blob_that_came_damaged_is_refused_and_the_others_are_kept(plane: Any) -> None:
    good, bad = os.urandom(1_500_000), os.urandom(1_500_000)
    body = bytearray(packed(good, bad))
    body[-1000] ^= 1
    answer = plane.request("POST", "/v1/blobs", content=bytes(body))
    assert (answer.status_code, answer.json()["code"]) == (400, "bad_source")
    assert "other bytes than its digest says" in answer.json()["detail"]
    assert plane.service.shell.blobs.missing([digest(good), digest(bad)]) == [digest(bad)]
    assert plane.request("POST", "/v1/blobs", content=packed(bad)).json() == {"stored": 1}


def test_a_body_that_is_no_stranger_s_is_refused_before_it_is_read(plane: Any) -> None:
    url = httpx.URL(plane.endpoint.url)
    with socket.create_connection((url.host, url.port or 0)) as connection:
        head = "POST /v1/blobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer wrong\r\nContent-Length: 9000000\r\n\r\n"
        connection.sendall(head.encode())
        assert connection.recv(12) == b"HTTP/1.1 401"
    assert not uploads()


def test_a_body_that_drips_is_stored_as_it_comes(plane: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "_HAND_OVER_S", 0.0)
    content = os.urandom(400_000)
    whole = packed(content)
    with begin_upload(plane, whole[:50], len(whole)) as dripping:
        for at in range(50, len(whole), 9_973):
            dripping.sendall(whole[at : at + 9_973])
        assert b'{"stored":1}' in dripping.recv(4096)
    assert digest(content) in plane.service.shell.blobs


def test_who_reads_slowly_gets_all_of_it_and_holds_up_nobody(plane: Any) -> None:
    content = os.urandom(20_000_000)
    plane.request("POST", "/v1/blobs", content=packed(content))
    url = httpx.URL(plane.endpoint.url)
    with socket.create_connection((url.host, url.port or 0)) as slow:
        head = (
            f"GET /v1/blobs/{digest(content)} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {plane.endpoint.token}\r\n"
        )
        slow.sendall(f"{head}Connection: close\r\n\r\n".encode())
        begin = slow.recv(1000)
        exchanged(plane, b"x" * 700_000)  # meanwhile
        rest = b"".join(iter(lambda: slow.recv(1 << 20), b""))
    assert (begin + rest).partition(b"\r\n\r\n")[2] == content


def test_of_a_blob_whose_file_was_cut_short_the_answer_breaks_off(plane: Any) -> None:
    content = os.urandom(2_000_000)
    plane.request("POST", "/v1/blobs", content=packed(content))
    size, path = len(content), plane.service.shell.blobs.path(digest(content))
    find = plane.service.shell.blobs.find(digest(content))
    assert find is not None
    os.truncate(path, 1_000_000)
    plane.service.shell.blobs.find = lambda _: find
    with pytest.raises(httpx.RemoteProtocolError):
        plane.request("GET", f"/v1/blobs/{digest(content)}")
    assert size == find.size

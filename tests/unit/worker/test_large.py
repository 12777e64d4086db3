"""Large blobs, both ways, and the cache that they lie in."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import httpx
import pytest

from gpulayer.source import FileEntry, Manifest
from gpulayer.source.blobs import Blobs
from gpulayer_worker import delivery
from gpulayer_worker.delivery import Parcel, Undeliverable, deliver
from gpulayer_worker.workspace import FetchError, Workspaces
from tests.support.blobhost import BlobHost, digest, problem
from tests.support.bundles import ENDPOINT, Home, contents, quiet, sha

LARGE = os.urandom(1 << 20) * 9


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> BlobHost:
    return BlobHost().serve(monkeypatch, "gpulayer_worker.delivery")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    return Home(tmp_path / "home", monkeypatch)


def parcel(folder: Path, *files: bytes) -> Parcel:
    paths = {digest(data): str(folder / f"f{number}") for number, data in enumerate(files)}
    for data in files:
        Path(paths[digest(data)]).write_bytes(data)
    entries = [
        FileEntry(path=Path(path).name, mode=0o644, size=os.stat(path).st_size, sha256=name)
        for name, path in paths.items()
    ]
    return Parcel(paths=paths, sizes={each.sha256: each.size for each in entries}, manifest=Manifest(files=entries))


def send(host: BlobHost, what: Parcel) -> list[str]:
    told: list[str] = []
    deliver(what, lambda: host.tie.endpoint, told.append, threading.Event())
    return told


# ---------------------------------------------------------------- back


def test_a_large_file_goes_in_chunks_and_small_ones_together(
    host: BlobHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "_TOLD_EVERY_S", 0.0)
    told = send(host, parcel(tmp_path, LARGE, b"small", b"too"))
    assert {host.blobs[digest(data)] for data in (LARGE, b"small", b"too")} == {LARGE, b"small", b"too"}
    assert host.asked.count("POST /v1/blobs") == 1
    assert host.asked.count(f"PATCH /v1/uploads/{digest(LARGE)}") == 4
    assert told[-1] == "sending results back · 9 of 9 MB"


def test_a_try_that_broke_is_gone_on_with_by_the_next(host: BlobHost, tmp_path: Path) -> None:
    host.partial[digest(LARGE)] = LARGE[: 5 << 20]
    send(host, parcel(tmp_path, LARGE))
    assert host.asked.count(f"PATCH /v1/uploads/{digest(LARGE)}") == 3
    assert host.blobs[digest(LARGE)] == LARGE


def test_a_refusal_has_its_kind(host: BlobHost, tmp_path: Path) -> None:
    what = parcel(tmp_path, LARGE)
    host.break_next = [httpx.Response(200, json={"missing": list(what.sizes)}), problem(413, "too_large")]
    with pytest.raises(Undeliverable, match="too_large"):
        send(host, what)


# ---------------------------------------------------------------- there


def test_a_large_file_comes_by_itself_and_what_came_of_it_before_is_kept(home: Home, tmp_path: Path) -> None:
    bundle = home.write(large=LARGE, small="s")
    blobs = Blobs(tmp_path / "blobs")
    (blobs.folder / "partial" / f"{sha(LARGE)}.{len(LARGE)}").write_bytes(LARGE[:1000])
    told: list[str] = []
    Workspaces(blobs, lambda: ENDPOINT).fresh(bundle, tmp_path / "w", told.append)
    assert contents(tmp_path / "w", Path.read_bytes) == {"large.py": LARGE, "small.py": b"s"}
    assert home.asked == ["manifest", "1 blobs", "manifest"]
    assert told[-1].startswith("fetching large files · ")
    assert list((blobs.folder / "partial").iterdir()) == []


def test_many_that_want_the_same_large_file_fetch_it_once(home: Home, tmp_path: Path) -> None:
    bundle = home.write(large=LARGE)
    workspaces = Workspaces(Blobs(tmp_path / "blobs"), lambda: ENDPOINT)
    threads = [
        threading.Thread(target=workspaces.fresh, args=(bundle, tmp_path / f"w{number}", quiet)) for number in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(contents(tmp_path / f"w{number}", Path.read_bytes) == {"large.py": LARGE} for number in range(4))
    assert home.asked.count("manifest") <= 5  # the manifest for each at most, and the file once


def wait_for_trim() -> None:
    for thread in [each for each in threading.enumerate() if each.name == "blob-cache"]:
        thread.join()


def test_the_cache_stays_below_its_limit_and_workspaces_whole(home: Home, tmp_path: Path) -> None:
    blobs = Blobs(tmp_path / "blobs")
    workspaces = Workspaces(blobs, lambda: ENDPOINT, cache_bytes=25_000_000)
    for number in range(5):
        data = bytes([number]) * len(LARGE)
        workspaces.fresh(home.write(large=data), tmp_path / f"w{number}", quiet)
        wait_for_trim()
        assert contents(tmp_path / f"w{number}", Path.read_bytes)["large.py"] == data
    assert sum(file.size for file in blobs.files()) <= 25_000_000
    assert sha(bytes([4]) * len(LARGE)) in blobs
    assert sha(bytes([0]) * len(LARGE)) not in blobs


def test_one_that_needs_more_than_the_limit_gets_it(home: Home, tmp_path: Path) -> None:
    workspaces = Workspaces(Blobs(tmp_path / "blobs"), lambda: ENDPOINT, cache_bytes=0)
    bundle = home.write(large=LARGE, other=b"o" * 2_000_000, small="s")
    workspaces.fresh(bundle, tmp_path / "w", quiet)
    assert set(contents(tmp_path / "w", Path.read_bytes)) == {"large.py", "other.py", "small.py"}
    wait_for_trim()
    workspaces.fresh(bundle, tmp_path / "again", quiet)
    assert contents(tmp_path / "again", Path.read_bytes)["large.py"] == LARGE
    wait_for_trim()


def test_a_session_whose_bundle_the_cache_let_go_is_brought_on(home: Home, tmp_path: Path) -> None:
    blobs = Blobs(tmp_path / "blobs")
    target, state = tmp_path / "session", tmp_path / "files.json"
    first = home.write(train="A", util="B")
    Workspaces(blobs, lambda: ENDPOINT).update(first, target, state, quiet)
    for file in list(blobs.files()):
        blobs.remove(file)
    second = home.write(train="C")
    Workspaces(blobs, lambda: ENDPOINT).update(second, target, state, quiet)  # an agent after that one
    assert contents(target) == {"train.py": "C", "util.py": "B"}
    for file in list(blobs.files()):
        blobs.remove(file)
    home.blobs.pop(second)
    with pytest.raises(FetchError, match=f"bundle {second[:12]}… could not be fetched"):
        Workspaces(blobs, lambda: ENDPOINT).update(home.write(train="D"), target, state, quiet)

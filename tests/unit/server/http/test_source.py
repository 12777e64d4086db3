"""Bundles and blobs over HTTP."""

from __future__ import annotations

import hashlib
import io
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from gpulayer.source import FileEntry, Manifest, read_pack, write_pack


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


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

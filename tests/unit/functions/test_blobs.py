"""Large parts of values, where the control plane's data folder is this machine's."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
import pytest

from gpulayer.client.errors import ControlPlaneError
from gpulayer.functions import blobs
from gpulayer.functions.blobs import BlobStore
from gpulayer.protocol.endpoint import Endpoint

ENDPOINT = Endpoint(url="http://127.0.0.1:1", token="t", pid=1, version="0")
DATA = bytes(range(256)) * 400


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BlobStore:
    (tmp_path / "endpoint.json").write_bytes(msgspec.json.encode(ENDPOINT))
    monkeypatch.setenv("GPULAYER_DATA", str(tmp_path))
    return BlobStore(lambda: ENDPOINT)


def test_a_blob_lies_where_the_control_plane_looks_for_it(store: BlobStore, tmp_path: Path) -> None:
    digest = store.put(memoryview(DATA))
    assert digest == hashlib.sha256(DATA).hexdigest()
    path = tmp_path / "blobs" / digest[:2] / digest
    assert path.read_bytes() == DATA
    assert bytes(store.get(digest, len(DATA))) == DATA
    assert not list((tmp_path / "blobs" / "new").iterdir())


def test_pieces_are_one_blob(store: BlobStore, tmp_path: Path) -> None:
    digest, size_bytes = store.put_pieces([b"ab", b"", memoryview(b"cd")])
    assert (digest, size_bytes) == (hashlib.sha256(b"abcd").hexdigest(), 4)
    assert bytes(store.get(digest, 4)) == b"abcd"


def test_what_is_known_to_be_there_is_not_written_again(store: BlobStore, tmp_path: Path) -> None:
    digest = store.put(memoryview(DATA))
    path = tmp_path / "blobs" / digest[:2] / digest
    path.unlink()
    assert store.put(memoryview(DATA)) == digest
    assert not path.exists()
    store.forget()
    assert store.put(memoryview(DATA)) == digest
    assert path.exists()


def test_one_that_is_nowhere_is_asked_for_and_nobody_answers(store: BlobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blobs, "PAUSES_S", ())
    with pytest.raises(ControlPlaneError, match=r"went away while a result was fetched .*call it again"):
        store.get("a" * 64, 10)

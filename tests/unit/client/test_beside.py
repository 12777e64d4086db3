"""A large upload beside the control plane: what is stored, and what is not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpulayer.client.beside import WORTH_BYTES, store_beside
from gpulayer.client.errors import RequestRefused
from gpulayer.source import Bundle, SourceChanged, scan
from gpulayer.source.blobs import Blobs


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    """Sixty small files and one that is read again when it is stored."""
    home = tmp_path / "home"
    home.mkdir()
    for number in range(60):
        (home / f"{number}.py").write_bytes(bytes([number]) * 1000)
    (home / "data.bin").write_bytes(os.urandom(WORTH_BYTES))
    return scan(home)


def digests(bundle: Bundle) -> list[str]:
    return [entry.sha256 for entry in bundle.manifest.files]


def test_what_lacks_is_stored_and_found_by_others(bundle: Bundle, tmp_path: Path) -> None:
    there = Blobs(tmp_path / "blobs")  # the control plane's own view, from before
    assert there.missing(digests(bundle)) == digests(bundle)
    assert store_beside(tmp_path / "blobs", bundle, digests(bundle))
    assert there.missing(digests(bundle)) == []
    assert there.read(bundle.manifest.by_path["3.py"].sha256) == b"\3" * 1000


def test_a_small_upload_is_left_to_http(bundle: Bundle, tmp_path: Path) -> None:
    small = [bundle.manifest.by_path[f"{number}.py"].sha256 for number in range(60)]
    assert not store_beside(tmp_path / "blobs", bundle, small)
    assert not (tmp_path / "blobs").exists()


def test_a_folder_that_is_not_ours_to_write_is_left_to_http(bundle: Bundle, tmp_path: Path) -> None:
    (tmp_path / "blobs").write_text("no folder")
    assert not store_beside(tmp_path / "blobs", bundle, digests(bundle))


def test_a_file_that_changed_is_named_and_not_stored(bundle: Bundle, tmp_path: Path) -> None:
    (tmp_path / "home" / "data.bin").write_bytes(os.urandom(WORTH_BYTES))
    with pytest.raises(SourceChanged, match=r"data\.bin changed while it was sent; run it again"):
        store_beside(tmp_path / "blobs", bundle, digests(bundle))
    assert bundle.manifest.by_path["data.bin"].sha256 in Blobs(tmp_path / "blobs").missing(digests(bundle))
    assert list((tmp_path / "blobs" / "new").iterdir()) == []


def test_a_full_disk_is_said(bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "writev", full)
    with pytest.raises(RequestRefused, match=r"can.t store the source.*No space left"):
        store_beside(tmp_path / "blobs", bundle, digests(bundle))

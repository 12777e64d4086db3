"""A file's bytes as memory."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest

from gpulayer.source import mapped as module
from gpulayer.source.mapped import MAPPED_BYTES, mapped

DATA = os.urandom(MAPPED_BYTES + 5)


def test_what_is_written_into_it_changes_no_file(tmp_path: Path) -> None:
    path = tmp_path / "blob"
    path.write_bytes(DATA)
    view = mapped(str(path), len(DATA))
    assert view is not None
    assert view == DATA
    view[0] = view[0] ^ 1
    assert path.read_bytes() == DATA
    path.unlink()  # what was mapped stays
    assert view[1:] == DATA[1:]


def test_small_and_short_files_are_to_be_read(tmp_path: Path) -> None:
    path = tmp_path / "blob"
    path.write_bytes(DATA)
    assert mapped(str(path), MAPPED_BYTES - 1) is None
    assert mapped(str(path), len(DATA) + 1) is None
    with pytest.raises(FileNotFoundError):
        mapped(str(tmp_path / "other"), len(DATA))


def test_so_many_are_mapped_at_a_time_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gc.collect()
    before = len(module._live)  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(module, "_most", lambda: before + 2)
    path = tmp_path / "blob"
    path.write_bytes(DATA)
    views = [mapped(str(path), len(DATA)) for _ in range(3)]
    assert [view is not None for view in views] == [True, True, False]
    del views
    gc.collect()
    assert mapped(str(path), len(DATA)) is not None

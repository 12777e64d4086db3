"""Cgroups that serve one group after the other, on folders that are made up."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpulayer_worker.keeper import cgrouppool
from gpulayer_worker.keeper.cgrouppool import CgroupPool


class Hierarchy:
    """A folder whose folders get a cgroup.procs, as in a cgroup2 hierarchy."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.home = root / "cgroup"
        self.home.mkdir()
        (self.home / "cgroup.procs").touch()
        self.base = self.home / "gpulayer-1"
        self.note = root / "cgroups.json"
        self.said: list[str] = []
        real = os.makedirs

        def makedirs(path: str, exist_ok: bool = False) -> None:
            real(path, exist_ok=exist_ok)
            (Path(path) / "cgroup.procs").touch()

        monkeypatch.setattr(cgrouppool.os, "makedirs", makedirs)

    def pool(self) -> CgroupPool:
        return CgroupPool(str(self.base), str(self.note), self.said.append)

    def entered(self, path: str | Path) -> int:
        """How often somebody moved there."""
        return len((Path(path) / "cgroup.procs").read_bytes())


@pytest.fixture
def hierarchy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hierarchy:
    return Hierarchy(tmp_path, monkeypatch)


def test_one_that_was_given_back_is_given_out_again(hierarchy: Hierarchy) -> None:
    pool = hierarchy.pool()
    first, second = pool.take(), pool.take()
    assert first is not None
    assert first != second
    pool.give_back(first)
    assert pool.take() == first
    pool.close()


def test_we_go_there_and_come_back_once(hierarchy: Hierarchy) -> None:
    pool = hierarchy.pool()
    paths = [pool.take(), pool.take()]
    for path in paths:
        assert pool.enter(path) == path
    pool.leave()
    pool.leave()
    assert [hierarchy.entered(path) for path in paths if path] == [1, 1]
    assert hierarchy.entered(hierarchy.home) == 1
    pool.close()


def test_without_any_nothing_is_entered() -> None:
    said: list[str] = []
    pool = CgroupPool(None, "/no/such/note", said.append)
    assert pool.take() is None
    assert pool.enter(None) is None
    pool.leave()
    pool.close()
    assert said == []


def test_one_that_cannot_be_had_is_said(tmp_path: Path) -> None:
    said: list[str] = []
    pool = CgroupPool(str(tmp_path / "none" / "base"), str(tmp_path / "note"), said.append)
    assert pool.take() is None
    assert "held by descent instead" in said[0]


def test_where_one_cannot_be_entered_we_stay_at_home(hierarchy: Hierarchy, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = hierarchy.pool()
    good, bad = pool.take(), pool.take()
    assert good is not None
    assert bad is not None
    assert pool.enter(good) == good
    real = os.write
    door = pool._doors[bad]

    def write(fd: int, data: bytes) -> int:
        if fd == door:
            raise PermissionError(13, "Permission denied")
        return real(fd, data)

    monkeypatch.setattr(cgrouppool.os, "write", write)
    assert pool.enter(bad) is None
    assert hierarchy.entered(hierarchy.home) == 1
    assert "can't be entered" in hierarchy.said[0]
    pool.close()


def test_the_next_keeper_removes_what_a_killed_one_left_empty(hierarchy: Hierarchy) -> None:
    pool = hierarchy.pool()
    paths = [Path(path) for path in (pool.take(), pool.take()) if path]
    for path in paths:
        (path / "cgroup.procs").unlink()  # which a real cgroup's folder needs not to be empty of
    (paths[1] / "held").touch()
    hierarchy.pool()
    assert [path.exists() for path in paths] == [False, True]
    assert hierarchy.base.exists()

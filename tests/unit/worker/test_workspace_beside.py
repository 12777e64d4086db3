"""Workspaces on the control plane's own machine: its blobs are read where they lie."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from gpulayer.source import scan
from gpulayer.source.blobs import Blobs
from gpulayer_worker.workspace import Workspaces
from tests.support.bundles import ENDPOINT, Home, contents, quiet, sha


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    return Home(tmp_path / "home", monkeypatch)


@pytest.fixture
def session(tmp_path: Path) -> Path:
    return tmp_path / "session"


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    """The control plane's folder of blobs."""
    return tmp_path / "plane" / "blobs"


@pytest.fixture
def local(tmp_path: Path, beside: Path) -> Workspaces:
    return Workspaces(Blobs(tmp_path / "blobs"), lambda: ENDPOINT, lambda: beside)


def store(home: Home, beside: Path) -> None:
    """Let the control plane's folder have what the control plane has."""
    blobs = Blobs(beside)
    blobs.take((digest, len(data), [data]) for digest, data in home.blobs.items() if digest not in blobs)


def test_what_lies_beside_is_read_there(home: Home, local: Workspaces, beside: Path, tmp_path: Path) -> None:
    digest = home.write(**{f"file_{number}": f"{number}" for number in range(30)}, large=os.urandom(100_000))
    store(home, beside)
    before = stat_of(beside)
    local.fresh(digest, tmp_path / "w", quiet)
    assert scan(tmp_path / "w").manifest.digest == digest
    assert home.asked == []
    assert stat_of(beside) == before
    kept = [path for path in local._blobs.folder.rglob("*") if path.is_file()]
    assert [path.name for path in kept] == [digest]  # nothing is stored twice, but for the manifest


def test_what_does_not_lie_beside_is_fetched(home: Home, local: Workspaces, beside: Path, tmp_path: Path) -> None:
    home.write(train="A")
    store(home, beside)
    local.fresh(home.write(util="B"), tmp_path / "w", quiet)
    assert home.asked == ["manifest", "1 blobs"]
    assert contents(tmp_path / "w") == {"train.py": "A", "util.py": "B"}


def test_a_folder_that_is_not_there_or_not_to_be_read_is_let_be(
    home: Home, local: Workspaces, beside: Path, tmp_path: Path
) -> None:
    local.fresh(home.write(train="A"), tmp_path / "1", quiet)
    assert not beside.exists()
    assert home.asked == ["manifest", "1 blobs"]


def test_a_session_goes_on_when_that_folder_is_gone(home: Home, local: Workspaces, beside: Path, session: Path) -> None:
    state = session.with_suffix(".json")
    digest = home.write(train="A", util="B")
    store(home, beside)
    local.update(digest, session, state, quiet)
    shutil.rmtree(beside)
    again = Workspaces(local._blobs, lambda: ENDPOINT)
    again.update(home.write(util="C"), session, state, quiet)
    assert contents(session) == {"train.py": "A", "util.py": "C"}
    assert home.asked == ["manifest", "1 blobs"]


def test_what_a_job_does_to_its_files_does_not_reach_the_control_planes_blobs(
    home: Home, local: Workspaces, beside: Path, tmp_path: Path
) -> None:
    large = os.urandom(100_000)
    digest = home.write(train="A", large=large)
    store(home, beside)
    local.fresh(digest, tmp_path / "w", quiet)
    for path in (tmp_path / "w").iterdir():
        with path.open("r+b") as file:
            file.write(b"X")
    assert Blobs(beside).read(sha(large)) == large
    assert Blobs(beside).read(sha(b"A")) == b"A"


def stat_of(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.stat().st_ino, path.stat().st_ctime_ns) for path in folder.rglob("*")}

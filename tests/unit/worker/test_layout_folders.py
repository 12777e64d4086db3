"""The folder that is ready for the next attempt."""

import os
from pathlib import Path

import pytest

from gpulayer.protocol.messages import Assign
from gpulayer.protocol.spool import SpoolReader
from gpulayer.protocol.types import CellSpec, JobSpec
from gpulayer_worker.layout import Layout
from gpulayer_worker.link import Held


def held(name: str) -> Held:
    return Held(assign=Assign(attempt=name, job="k3f9", spec=JobSpec(cell=CellSpec(code="1 + 1"))))


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path / "worker")


def test_an_attempt_takes_the_folder_that_is_ready(layout: Layout) -> None:
    layout.furnish()
    ready = (layout.data / "ready").stat().st_ino
    layout.persist(held("aaaa-1-1"))
    folder = layout.attempt("aaaa-1-1")
    assert folder.stat().st_ino == ready
    assert not (layout.data / "ready").exists()
    assert layout.noted(folder, "kernel") is None
    assert SpoolReader(layout.spool("aaaa-1-1")).end() == 0


def test_without_one_an_attempt_makes_its_own(layout: Layout) -> None:
    layout.persist(held("aaaa-1-1"))
    layout.persist(held("bbbb-1-2"))
    assert [found.assign.attempt for found in layout.load()] == ["aaaa-1-1", "bbbb-1-2"]


def test_one_folder_is_ready_at_a_time(layout: Layout) -> None:
    for name in ("aaaa-1-1", "bbbb-1-2"):
        layout.persist(held(name))
    for name in ("aaaa-1-1", "bbbb-1-2"):
        layout.drop(name)
    layout.furnish()
    assert sorted(os.listdir(layout.data)) == ["attempts", "ready"]
    assert os.listdir(layout.data / "attempts") == []


def test_what_a_killed_agent_was_making_goes(layout: Layout) -> None:
    half = layout.data / "new-0123abcd"
    half.mkdir(parents=True)
    layout.load()
    assert not half.exists()

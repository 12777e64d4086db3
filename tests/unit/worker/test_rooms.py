"""Folders of commands, used again where nothing was left in them."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from gpulayer_worker.layout import Layout
from gpulayer_worker.rooms import Rooms


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path)


def use(layout: Layout, name: str) -> Path:
    """What the start of a program does."""
    folder = layout.attempt(name)
    for file in ("out", "err"):
        (folder / file).touch()
    return folder / "workspace"


def names(layout: Layout) -> list[str]:
    return sorted(path.name for path in layout.data.iterdir())


def test_a_folder_in_which_nothing_was_left_is_used_again(layout: Layout) -> None:
    rooms = Rooms(layout)
    rooms.take("a-1")
    inode = use(layout, "a-1").stat().st_ino
    rooms.give_back("a-1", pristine=True)
    assert not layout.attempt("a-1").exists()
    rooms.take("b-1")
    assert (layout.attempt("b-1") / "workspace").stat().st_ino == inode
    assert os.listdir(layout.attempt("b-1") / "workspace") == []


@pytest.mark.parametrize("change", ["file", "folder", "beside", "mode", "output"])
def test_nothing_of_one_command_is_there_for_the_next(layout: Layout, change: str) -> None:
    async def go() -> None:
        rooms = Rooms(layout)
        rooms.take("a-1")
        workspace = use(layout, "a-1")
        if change == "file":
            (workspace / ".hidden").write_text("secret")
        elif change == "folder":
            (workspace / "sub").mkdir()
        elif change == "beside":
            (workspace.parent / "beside").touch()
        elif change == "mode":
            workspace.chmod(0o755)
        rooms.give_back("a-1", pristine=change != "output")
        rooms.take("b-1")
        new = layout.attempt("b-1") / "workspace"
        assert (os.listdir(new), new.stat().st_mode & 0o777) == ([], 0o700)
        await rooms.close()
        assert names(layout) == ["attempts"]

    asyncio.run(go())


def test_what_an_agent_before_us_left_is_removed(layout: Layout) -> None:
    rooms = Rooms(layout)
    rooms.take("a-1")
    rooms.give_back("a-1", pristine=True)
    (layout.data / "waste-7" / "sub").mkdir(parents=True)
    Rooms(layout).prepare()
    assert names(layout) == ["attempts"]


def test_a_folder_of_the_same_name_goes_first(layout: Layout) -> None:
    rooms = Rooms(layout)
    rooms.take("a-1")
    (use(layout, "a-1") / "old").touch()
    rooms.take("a-1")
    assert os.listdir(layout.attempt("a-1")) == ["workspace"]
    assert os.listdir(layout.attempt("a-1") / "workspace") == []


def test_one_that_is_gone_is_no_error(layout: Layout) -> None:
    rooms = Rooms(layout)
    rooms.give_back("a-1", pristine=True)
    rooms.give_back("a-1", pristine=False)
    assert names(layout) == []


def test_whoever_still_has_a_commands_output_open_does_not_write_into_the_next_ones(layout: Layout) -> None:
    rooms = Rooms(layout)
    rooms.take("a-1")
    use(layout, "a-1")
    with (layout.attempt("a-1") / "out").open("ab", buffering=0) as late:
        rooms.give_back("a-1", pristine=True)
        rooms.take("b-1")
        use(layout, "b-1")
        late.write(b"of another command")
    assert (layout.attempt("b-1") / "out").read_bytes() == b""


def test_what_cannot_be_removed_does_not_stand_in_the_way(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("waste-1", "room-2"):
        (layout.data / name / "sub").mkdir(parents=True)

    async def go() -> None:
        rooms = Rooms(layout)
        with monkeypatch.context() as patched:
            patched.setattr("shutil.rmtree", lambda *_, **__: None)  # such as folders that are read-only
            rooms.prepare()
        for name in ("a-1", "b-1"):
            rooms.take(name)
            (use(layout, name) / "left").touch()
            rooms.give_back(name, pristine=False)
        await rooms.close()
        assert names(layout) == ["attempts", "room-2", "waste-1"]

    asyncio.run(go())

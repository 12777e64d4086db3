"""Telling when files grow, with inotify and without."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from gpulayer_worker.watch import FolderWatch

KINDS = [pytest.param(True, id="portable")]
if sys.platform == "linux":
    KINDS.append(pytest.param(False, id="inotify"))
pytestmark = pytest.mark.parametrize("portable", KINDS)


class News:
    """Counts what a watch tells."""

    def __init__(self) -> None:
        self.count = 0
        self._event = asyncio.Event()

    def __call__(self) -> None:
        self.count += 1
        self._event.set()

    async def more(self) -> None:
        """Wait for another call-back, from now on."""
        self._event.clear()
        await asyncio.wait_for(self._event.wait(), 20)


def watching(portable: bool, body: Callable[[FolderWatch], Awaitable[None]]) -> None:
    """Run `body` with a watch on a loop."""

    async def run() -> None:
        watch = FolderWatch(portable=portable)
        try:
            await body(watch)
        finally:
            watch.close()

    asyncio.run(run())


def test_growth_new_files_and_renames_are_told(portable: bool, tmp_path: Path) -> None:
    async def body(watch: FolderWatch) -> None:
        folder, news = tmp_path / "spool", News()
        folder.mkdir()
        watch.add(folder, news)
        assert news.count >= 1  # for what was written before
        with (folder / "a").open("wb", buffering=0) as file:
            await news.more()
            file.write(b"more")
            await news.more()
        (tmp_path / "b").touch()
        (tmp_path / "b").rename(folder / "b")
        await news.more()

    watching(portable, body)


def test_folders_are_told_apart(portable: bool, tmp_path: Path) -> None:
    async def body(watch: FolderWatch) -> None:
        folders = [tmp_path / "one", tmp_path / "two"]
        news = [News(), News()]
        for folder, each in zip(folders, news, strict=True):
            folder.mkdir()
            watch.add(folder, each)
        (folders[1] / "file").touch()
        await news[1].more()
        if not portable:
            assert news[0].count == 1

    watching(portable, body)


def test_a_removed_folder_is_told_of_no_more_and_the_others_are(portable: bool, tmp_path: Path) -> None:
    async def body(watch: FolderWatch) -> None:
        gone, kept = News(), News()
        for name, news in (("gone", gone), ("kept", kept)):
            (tmp_path / name).mkdir()
            watch.add(tmp_path / name, news)
        watch.remove(tmp_path / "gone")
        watch.remove(tmp_path / "gone")  # no error
        before = gone.count
        (tmp_path / "gone" / "file").touch()
        (tmp_path / "kept" / "file").touch()
        await kept.more()
        assert gone.count == before

    watching(portable, body)


def test_a_callback_may_remove_its_own_folder(portable: bool, tmp_path: Path) -> None:
    async def body(watch: FolderWatch) -> None:
        done = asyncio.Event()

        def once() -> None:
            if (tmp_path / "file").exists():
                watch.remove(tmp_path)
                done.set()

        watch.add(tmp_path, once)
        (tmp_path / "file").touch()
        await asyncio.wait_for(done.wait(), 20)

    watching(portable, body)


def test_after_the_end_nothing_is_told(portable: bool, tmp_path: Path) -> None:
    async def body(watch: FolderWatch) -> None:
        news = News()
        watch.add(tmp_path, news)
        watch.close()
        before = news.count
        (tmp_path / "file").touch()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(news._event.wait() if not news.count else asyncio.Event().wait(), 0.1)
        assert news.count == before

    watching(portable, body)


def test_a_folder_that_is_not_there_is_an_error_of_the_system(portable: bool, tmp_path: Path) -> None:
    async def body(watch: FolderWatch) -> None:
        if portable:
            watch.add(tmp_path / "nowhere", lambda: None)  # it is only looked at
            return
        with pytest.raises(FileNotFoundError, match="nowhere"):
            watch.add(tmp_path / "nowhere", lambda: None)

    watching(portable, body)

"""Telling what a command writes while it writes."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from gpulayer_worker.run import outputwatch
from gpulayer_worker.run.commandspool import CommandSpool
from gpulayer_worker.run.outputwatch import OutputWatch


class Stage:
    """A folder, whose watch is played by hand."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.spool = CommandSpool(folder)
        self.told: list[int] = []
        self.news = asyncio.Event()
        self.changed: Callable[[], None] = lambda: None
        self.watching = False
        self.refuses = False
        watch: Any = self
        self.output = OutputWatch(watch, folder, self.spool, self._grew)

    def add(self, folder: Path, callback: Callable[[], None]) -> None:
        if self.refuses:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.changed, self.watching = callback, True
        callback()

    def remove(self, folder: Path) -> None:
        self.watching = False

    def _grew(self) -> None:
        self.told.append(self.spool.end)
        self.news.set()

    def write(self, data: bytes) -> None:
        with (self.folder / "out").open("ab") as file:
            file.write(data)
        self.changed()

    async def next(self) -> None:
        await asyncio.wait_for(self.news.wait(), 20)
        self.news.clear()


def run(folder: Path, test: Callable[[Stage], Coroutine[Any, Any, None]]) -> None:
    async def inside() -> None:
        stage = Stage(folder)
        try:
            await test(stage)
        finally:
            stage.output.stop()
            stage.spool.close()

    asyncio.run(inside())


def test_what_was_there_before_is_told_at_once(tmp_path: Path) -> None:
    async def test(stage: Stage) -> None:
        stage.write(b"early")
        assert stage.told == []
        stage.output.start()
        assert stage.told == [14]

    run(tmp_path, test)


def test_the_first_goes_at_once_and_what_follows_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputwatch, "_EVERY_S", 0.2)

    async def test(stage: Stage) -> None:
        stage.output.start()
        stage.output._next_s = 0.0  # long after the start
        stage.write(b"first")
        assert stage.told == [14]
        stage.news.clear()
        for _ in range(10):
            stage.write(b"more.")
        assert stage.told == [14]
        await stage.next()
        assert stage.told == [14, 14 + 9 + 50]

    run(tmp_path, test)


def test_much_does_not_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputwatch, "_EVERY_S", 3600.0)

    async def test(stage: Stage) -> None:
        stage.output.start()
        stage.write(b"x" * 1000)
        assert stage.told == []
        stage.write(b"x" * 65_536)
        assert len(stage.told) == 1

    run(tmp_path, test)


def test_after_the_stop_nothing_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputwatch, "_EVERY_S", 0.0)

    async def test(stage: Stage) -> None:
        stage.output.start()
        stage.output.stop()
        stage.write(b"late")
        await asyncio.sleep(0)
        assert (stage.told, stage.watching) == ([], False)

    run(tmp_path, test)


def test_where_there_is_no_watch_to_be_had_it_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputwatch, "_POLL_S", 0.001)

    async def test(stage: Stage) -> None:
        stage.refuses = True
        stage.output.start()
        stage.write(b"first")
        await stage.next()
        stage.write(b"second")
        await stage.next()
        assert len(stage.told) == 2

    run(tmp_path, test)


def test_on_a_full_disk_it_is_told_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputwatch, "_EVERY_S", 0.0)

    async def test(stage: Stage) -> None:
        stage.output.start()
        with monkeypatch.context() as full:
            full.setattr(stage.spool, "_append", _no_space)
            stage.write(b"first")
            assert stage.told == []
        stage.write(b"second")
        assert stage.told == [9 + 11]

    run(tmp_path, test)


def _no_space(_: bytes) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")

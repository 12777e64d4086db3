"""Ends are told in groups, and none later than it must."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from gpulayer_worker import link, reports
from gpulayer_worker.link import Gone
from gpulayer_worker.reports import Reports


class Told:
    """What was told, group by group."""

    def __init__(self, *, more: bool, ahead: bool = False) -> None:
        self.groups: list[list[link.Event]] = []
        self.taken: list[link.Event] = []
        self.news = asyncio.Event()
        self.reports = Reports(self._take, self._send, more=lambda: more, ahead=lambda: ahead)

    def _take(self, events: list[link.Event]) -> None:
        self.taken += events

    def _send(self) -> None:
        told = sum(map(len, self.groups))
        self.groups.append(self.taken[told:])
        self.news.set()

    def add(self, number: int) -> None:
        self.reports.add(Gone(attempt=str(number)))

    def sizes(self) -> list[int]:
        return [len(group) for group in self.groups]


async def turn() -> None:
    """One turn of the loop."""
    await asyncio.sleep(0)


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(test())


def test_what_comes_in_one_turn_goes_at_once_and_together() -> None:
    async def test() -> None:
        told = Told(more=True)
        for number in range(3):
            told.add(number)
        await turn()
        assert told.sizes() == [3]

    run(test)


def test_what_follows_waits_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        told = Told(more=True)
        told.add(0)
        await turn()
        told.add(1)
        await turn()
        told.add(2)
        await turn()
        assert told.sizes() == [1]
        assert len(told.taken) == 3  # what waits for a slot started already
        told.news.clear()
        await told.news.wait()
        assert told.sizes() == [1, 2]

    run(test)


def test_where_nothing_else_runs_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "_EVERY_S", 3600.0)

    async def test() -> None:
        told = Told(more=False)
        for number in range(3):
            told.add(number)
            await turn()
        assert told.sizes() == [1, 1, 1]

    run(test)


def test_sixty_four_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "_EVERY_S", 3600.0)

    async def test() -> None:
        told = Told(more=True)
        told.add(0)
        await turn()
        for number in range(65):
            told.add(number)
        await turn()
        assert told.sizes() == [1, 65]

    run(test)

"""Warm kernels come in the first idle moment after the welcome, or once it took too long to come."""

from __future__ import annotations

import asyncio

import pytest

from gpulayer_worker import warming
from gpulayer_worker.warming import Warming


@pytest.fixture(autouse=True)
def moments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which pass at once."""
    monkeypatch.setattr(warming, "_MOMENT_S", 0.0)


def test_an_idle_worker_starts_them_once_it_is_welcome() -> None:
    async def run() -> None:
        started = asyncio.Event()
        wait = Warming(lambda: False, started.set)
        await asyncio.sleep(0)
        assert not started.is_set()
        wait.welcomed()
        await asyncio.wait_for(started.wait(), 30)

    asyncio.run(run())


def test_a_busy_worker_waits_until_it_is_idle_and_starts_them_once() -> None:
    async def run() -> None:
        starts: list[int] = []
        busy, asked, started = [True], asyncio.Event(), asyncio.Event()

        def is_busy() -> bool:
            asked.set()
            return busy[0]

        def start() -> None:
            starts.append(1)
            started.set()

        wait = Warming(is_busy, start)
        for _ in range(2):  # of a second connection too
            wait.welcomed()
        await asyncio.wait_for(asked.wait(), 30)
        assert not starts
        busy[0] = False
        await asyncio.wait_for(started.wait(), 30)
        wait.welcomed()
        await asyncio.sleep(0)
        assert starts == [1]

    asyncio.run(run())


def test_one_that_is_never_idle_starts_them_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warming, "_AT_MOST_S", 0.0)

    async def run() -> None:
        started = asyncio.Event()
        Warming(lambda: True, started.set).welcomed()
        await asyncio.wait_for(started.wait(), 30)

    asyncio.run(run())


def test_one_that_ends_starts_none() -> None:
    async def run() -> None:
        starts: list[int] = []
        wait = Warming(lambda: False, lambda: starts.append(1))
        wait.welcomed()
        wait.close()
        for _ in range(3):
            await asyncio.sleep(0)
        assert not starts

    asyncio.run(run())

"""A loop on a thread of its own."""

from __future__ import annotations

import asyncio
import threading

import pytest

from gpulayer_jupyter.thread import LoopThread, ThreadEnded


async def name_of_thread() -> str:
    return threading.current_thread().name


def test_work_runs_there_and_its_result_comes_back() -> None:
    thread = LoopThread("of-a-test")
    thread.start()
    assert thread.submit(name_of_thread()).result(30) == "of-a-test"
    assert asyncio.run(thread.run(name_of_thread())) == "of-a-test"
    asyncio.run(thread.stop())
    assert "of-a-test" not in [each.name for each in threading.enumerate()]


def test_what_goes_wrong_there_is_raised_here() -> None:
    async def fails() -> None:
        raise LookupError("there")

    thread = LoopThread("of-a-test")
    thread.start()
    with pytest.raises(LookupError, match="there"):
        asyncio.run(thread.run(fails()))
    asyncio.run(thread.stop())


def test_before_its_start_and_after_its_end_it_takes_no_work() -> None:
    thread = LoopThread("of-a-test")
    with pytest.raises(ThreadEnded):
        thread.submit(name_of_thread())
    asyncio.run(thread.stop())  # nothing to end
    thread.start()
    asyncio.run(thread.stop())
    asyncio.run(thread.stop())
    with pytest.raises(ThreadEnded):
        thread.submit(name_of_thread())


def test_its_end_cancels_what_still_runs() -> None:
    ended = threading.Event()
    began = threading.Event()

    async def forever() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    thread = LoopThread("of-a-test")
    thread.start()
    work = thread.submit(forever())
    assert began.wait(30)
    asyncio.run(thread.stop())
    assert ended.is_set()
    assert work.cancelled()

"""What a request makes of the kernel's process."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from gpulayer_worker.kernel.request import Request, Surroundings


@pytest.fixture
def cores() -> Iterator[set[int]]:
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("this system pins no processes")
    before = os.sched_getaffinity(0)
    yield before
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), before)


def request(*cpus: int) -> Request:
    return Request("a", "/spool", "", {}, 0, 0, False, {}, {}, list(cpus))


def test_every_thread_runs_on_the_cores_that_a_cell_is_bound_to_until_one_is_not(cores: set[int]) -> None:
    ended = threading.Event()
    other = threading.Thread(target=ended.wait)
    other.start()
    try:
        surroundings = Surroundings()
        surroundings.apply(request(max(cores)))
        assert other.native_id is not None
        for thread in (0, other.native_id):
            assert os.sched_getaffinity(thread) == {max(cores)}
        surroundings.apply(request())
        for thread in (0, other.native_id):
            assert os.sched_getaffinity(thread) == cores
    finally:
        ended.set()
        other.join()


def test_a_cell_that_is_bound_to_none_leaves_them_as_they_are(cores: set[int]) -> None:
    os.sched_setaffinity(0, {min(cores)})
    Surroundings().apply(request())
    assert os.sched_getaffinity(0) == {min(cores)}

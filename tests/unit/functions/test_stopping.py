"""Ctrl-C while somebody waits."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from gpulayer.functions.stopping import Stop


@pytest.fixture(autouse=True)
def default() -> Iterator[None]:
    """Interrupts raise KeyboardInterrupt, whoever runs the tests."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def stopped(*, before: int, disarmed: bool = False) -> tuple[bool, list[bool]]:
    """So many interrupts within a wait: whether one was noted, and each wake."""
    woken: list[bool] = []
    with Stop(lambda: woken.append(True)) as stop:
        if disarmed:
            stop.disarm()
        for _ in range(before):
            interrupt()
        seen = stop.wanted
        stop.wanted = False
    return seen, woken


def test_the_first_one_is_noted_the_second_is_raised() -> None:
    assert stopped(before=0) == (False, [])
    assert stopped(before=1) == (True, [True])
    with pytest.raises(KeyboardInterrupt):
        stopped(before=2)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_one_that_came_when_the_wait_was_over_is_not_lost() -> None:
    with pytest.raises(KeyboardInterrupt), Stop(lambda: None):
        interrupt()


def test_disarmed_it_is_raised_at_once() -> None:
    with pytest.raises(KeyboardInterrupt):
        stopped(before=1, disarmed=True)
    with pytest.raises(KeyboardInterrupt), Stop(lambda: None) as stop:
        interrupt_and_disarm(stop)


def interrupt_and_disarm(stop: Stop) -> None:
    interrupt()
    stop.disarm()


def test_a_programs_own_answer_stays() -> None:
    came: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    with Stop(lambda: None) as stop:
        interrupt()
        assert (came, stop.wanted) == ([signal.SIGINT], False)


def test_in_other_threads_nothing_changes() -> None:
    seen: list[object] = []

    def look() -> None:
        with Stop(lambda: None):
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]

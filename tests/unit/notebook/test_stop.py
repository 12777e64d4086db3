"""The Stop button: when it is noted and when it is raised."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from gpulayer.client.connection import Subscription
from gpulayer.notebook.stop import Stop


@pytest.fixture(autouse=True)
def handler() -> Iterator[object]:
    """The handler of a kernel while a cell runs; it is back after each test."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


def test_before_there_is_a_job_it_is_raised() -> None:
    with pytest.raises(KeyboardInterrupt), Stop():
        interrupt()


def test_armed_the_first_is_noted_and_the_second_raised() -> None:
    with Stop() as stop:
        stop.arm()
        interrupt()
        assert stop.wanted
        with pytest.raises(KeyboardInterrupt):
            interrupt()


def test_it_wakes_whoever_waits_for_the_job() -> None:
    subscription = Subscription(1, job="k3f9")
    with Stop() as stop:
        stop.arm()
        stop.watch(subscription)
        threading.Timer(0.1, signal.pthread_kill, [threading.main_thread().ident, signal.SIGINT]).start()
        assert subscription.get(60.0) is None
        assert stop.wanted


def test_disarmed_what_was_noted_is_raised() -> None:
    with Stop() as stop:
        stop.arm()
        stop.disarm()
        stop.arm()
        interrupt()
        with pytest.raises(KeyboardInterrupt):
            stop.disarm()


def test_afterwards_all_is_as_before() -> None:
    with Stop() as stop:
        stop.arm()
    with pytest.raises(KeyboardInterrupt):
        interrupt()


def test_in_another_thread_it_changes_nothing() -> None:
    seen: list[object] = []

    def elsewhere() -> None:
        with Stop() as stop:
            stop.arm()
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]

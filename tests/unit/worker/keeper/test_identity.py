"""Exactly that process and no other."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from gpulayer_worker.keeper.eventloop import Loop
from gpulayer_worker.keeper.identity import Watch, alive, boot_id, send_signal
from gpulayer_worker.keeper.procs import process_table

TABLE = process_table()


class Calls:
    """Notes calls and stops the loop at the first."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self.count = 0

    def __call__(self) -> None:
        self.count += 1
        self._loop.stop(0)


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "3600"]) as process:
        yield process
        process.kill()


def start_time(pid: int) -> int | str:
    process = TABLE.one(pid)
    assert process is not None
    return process.start_time


def test_one_boot_has_one_name() -> None:
    assert boot_id() == boot_id()
    assert boot_id() == boot_id().strip()


def test_a_process_is_alive_by_pid_and_start_time(child: subprocess.Popen[bytes]) -> None:
    started = start_time(child.pid)
    assert alive(TABLE, child.pid, started)
    assert not alive(TABLE, child.pid, 1)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not alive(TABLE, child.pid, started)  # a zombie


def test_a_signal_reaches_only_the_process_that_was_meant(child: subprocess.Popen[bytes]) -> None:
    started = start_time(child.pid)
    assert not send_signal(TABLE, child.pid, 1, signal.SIGKILL)
    assert alive(TABLE, child.pid, started)
    assert send_signal(TABLE, child.pid, started, signal.SIGTERM)
    assert child.wait() == -signal.SIGTERM
    assert not send_signal(TABLE, child.pid, started, signal.SIGTERM)


@pytest.mark.parametrize("polling", [False, True])
def test_a_watch_calls_once_when_the_process_ends(child: subprocess.Popen[bytes], polling: bool) -> None:
    loop = Loop()
    calls = Calls(loop)
    Watch(loop, TABLE, child.pid, start_time(child.pid), calls, polling=polling)
    loop.call_later(0, child.kill)
    loop.run()
    assert calls.count == 1
    loop.close()


@pytest.mark.parametrize("polling", [False, True])
def test_a_watch_of_what_is_not_there_calls_too(child: subprocess.Popen[bytes], polling: bool) -> None:
    loop = Loop()
    calls = Calls(loop)
    Watch(loop, TABLE, child.pid, 1, calls, polling=polling)
    loop.run()
    assert calls.count == 1
    loop.close()


def test_a_cancelled_watch_does_not_call(child: subprocess.Popen[bytes]) -> None:
    loop = Loop()
    calls, cancelled = Calls(loop), Calls(loop)
    watch = Watch(loop, TABLE, child.pid, start_time(child.pid), cancelled)
    Watch(loop, TABLE, child.pid, start_time(child.pid), calls)
    watch.cancel()
    watch.cancel()
    child.kill()
    loop.run()
    assert (calls.count, cancelled.count) == (1, 0)
    loop.close()

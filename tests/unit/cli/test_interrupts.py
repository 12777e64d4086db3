"""When an interrupt ends `gpulayer submit`, and when it waits for its turn."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from gpulayer.cli.interrupts import Interrupts


def test_without_a_job_it_ends_at_once() -> None:
    with Interrupts():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(SystemExit) as ended:
            signal.raise_signal(signal.SIGTERM)
    assert ended.value.code == 143


def test_with_a_job_it_is_noted_and_wakes_whoever_waits() -> None:
    woken: list[bool] = []
    with Interrupts() as interrupts:
        interrupts.wake = lambda: woken.append(True)
        interrupts.arm()
        signal.raise_signal(signal.SIGTERM)
        assert (interrupts.take(), interrupts.take(), woken) == (signal.SIGTERM, None, [True])
        with interrupts.disarmed(), pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        assert interrupts.take() is signal.SIGINT
        interrupts.disarm()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_while_a_request_is_on_its_way_the_first_waits_and_the_second_does_not() -> None:
    with Interrupts() as interrupts:
        with interrupts.held():
            signal.raise_signal(signal.SIGINT)
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
        assert interrupts.take() is signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="Windows has no such signal")
@pytest.mark.parametrize(("before", "code"), [("SIG_DFL", 129), ("SIG_IGN", 0)])
def test_a_terminal_that_is_closed_ends_it_in_order_unless_nohup_said_otherwise(before: str, code: int) -> None:
    program = f"""
import signal
from gpulayer.cli.interrupts import Interrupts
signal.signal(signal.SIGHUP, signal.{before})
with Interrupts() as interrupts:
    interrupts.arm()
    try:
        signal.raise_signal(signal.SIGHUP)
    finally:
        print("in order")
"""
    done = subprocess.run([sys.executable, "-c", program], env=os.environ, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (code, "in order\n"), done.stderr

"""How a cell ended, in words."""

from __future__ import annotations

from typing import Any

import pytest

from gpulayer.protocol.types import State
from gpulayer_worker.keeper.client import ExitRecord
from gpulayer_worker.run.outcome import from_death, from_reply, last_line, last_words, timed_out

OK = {"status": "ok", "peak_rss_bytes": 5}
ERROR = {"status": "error", "ename": "ValueError", "evalue": "bad", "peak_rss_bytes": 5}
INTERRUPTED = {"status": "error", "ename": "KeyboardInterrupt", "evalue": ""}

CRASH = """\
an older line
terminate called after throwing an instance of 'std::bad_alloc'
Fatal Python error: Aborted

Thread 0x00007f01 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap

Current thread 0x00007f02 (most recent call first):
  File "/site-packages/torch/nn/module.py", line 7 in forward
  File "/tmp/ipykernel_12/345.py", line 4 in <module>
  File "/site-packages/IPython/core/interactiveshell.py", line 3823 in run_code
  File "/site-packages/ipykernel/kernelapp.py", line 768 in start

Extension modules: numpy (total: 1)
"""


def record(**facts: Any) -> ExitRecord:
    """How a process ended."""
    return ExitRecord(pid=1, start_time=1, boot_id="b", started_at=0.0, ended_at=1.0, **facts)


# ---------------------------------------------------------------- a kernel that answered


@pytest.mark.parametrize(
    ("reply", "wish", "state", "error", "problem"),
    [
        (OK, "", State.SUCCEEDED, "", ""),
        (OK, "cancel", State.SUCCEEDED, "", ""),  # it was done before the interrupt
        (ERROR, "", State.FAILED, "ValueError: bad", ""),
        (INTERRUPTED, "", State.FAILED, "KeyboardInterrupt", ""),  # of its own making
        (INTERRUPTED, "cancel", State.CANCELLED, "KeyboardInterrupt", ""),
        (ERROR, "cancel", State.FAILED, "ValueError: bad", "ended by us"),
        (INTERRUPTED, "timeout", State.FAILED, "KeyboardInterrupt", "ended by us"),
        ({"status": "aborted"}, "", State.FAILED, "Error", "the kernel did not run it"),
    ],
)
def test_a_reply(reply: dict[str, Any], wish: str, state: State, error: str, problem: str) -> None:
    outcome = from_reply(reply, wish=wish, problem="ended by us")
    assert (outcome.state, outcome.error, outcome.problem) == (state, error, problem)
    assert outcome.peak_rss_bytes == reply.get("peak_rss_bytes")
    assert (outcome.exit_code, outcome.signal) == (None, None)  # the kernel lives


# ---------------------------------------------------------------- a kernel that died


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"code": 3}, "the kernel exited with code 3"),
        ({"code": 0}, "the kernel exited with code 0"),
        ({"signal": 11}, "the kernel was ended by signal 11 (SIGSEGV)"),
        ({"signal": 9}, "the kernel was ended by signal 9 (SIGKILL)"),
        ({"signal": 127}, "the kernel was ended by signal 127 (unknown)"),
        (
            {"signal": 9, "oom": True},
            "out of memory: the machine's OOM killer ended the cell's kernel, of 8.0 GB of RAM there; "
            "hold less at a time, or ask for more with --ram SIZE",
        ),
        (
            {"signal": 9, "oom": True, "peak_rss_bytes": 6_200_000_000},
            "out of memory: the machine's OOM killer ended the cell's kernel at a peak of 6.2 GB, "
            "of 8.0 GB of RAM there; hold less at a time, or ask for more with --ram SIZE",
        ),
        (
            {"unknown": True},
            "exit unknown: the keeper had died, and the kernel ended without an answer (keeper-lost)",
        ),
    ],
)
def test_a_death(facts: dict[str, Any], said: str) -> None:
    outcome = from_death(record(**facts), "", wish="", problem="", ram_bytes=8_000_000_000)
    assert (outcome.state, outcome.problem) == (State.FAILED, said)
    assert (outcome.exit_code, outcome.signal) == (facts.get("code"), facts.get("signal"))


def test_a_death_that_was_asked_for_says_what_for() -> None:
    cancelled = from_death(record(signal=9), "", wish="cancel", problem="it did not stop", ram_bytes=8)
    timed_out = from_death(record(signal=9), "", wish="timeout", problem="timed out after 1 s", ram_bytes=8)
    assert (cancelled.state, cancelled.problem) == (State.CANCELLED, "it did not stop")
    assert (timed_out.state, timed_out.problem) == (State.FAILED, "timed out after 1 s")
    assert timed_out.signal == 9  # what the program did is never overwritten


# ---------------------------------------------------------------- its last words


def test_of_a_crash_the_frames_of_the_cell_are_kept_innermost_first() -> None:
    assert last_words(CRASH).splitlines() == [
        "an older line",
        "terminate called after throwing an instance of 'std::bad_alloc'",
        "Fatal Python error: Aborted",
        '  File "/site-packages/torch/nn/module.py", line 7 in forward',
        "  Cell, line 4 in <module>",
    ]


def test_of_other_deaths_the_last_lines_are_kept() -> None:
    assert last_words("".join(f"line {n}\n" for n in range(100))).splitlines() == [f"line {n}" for n in range(88, 100)]
    assert last_words("") == ""


def test_a_crash_report_that_is_cut_off_is_kept_as_far_as_it_goes() -> None:
    assert last_words("Fatal Python error: Segmentation fault\n\nCurr") == "Fatal Python error: Segmentation fault"


def test_the_outcome_carries_them() -> None:
    assert from_death(record(signal=6), CRASH, wish="", problem="", ram_bytes=8).tail == last_words(CRASH)


# ---------------------------------------------------------------- out of time


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", ""),
        ("\n \n", ""),
        ("epoch 1\nepoch 2\n\n", "epoch 2"),
        ("10%\r 20%\r 30%", "30%"),  # a progress bar
        ("\x1b[32mepoch 2\x1b[0m\n\x1b[A", "epoch 2"),
        ("a\tb\x07c", "a b c"),
        ("x" * 200, "x" * 99 + "…"),
    ],
)
def test_the_last_line_that_says_anything(text: str, line: str) -> None:
    assert last_line(text) == line


def test_a_time_limit_says_which_and_the_last_line() -> None:
    assert timed_out(0.5, "epoch 2") == "timed out after 0.5 s, its --timeout; last line: epoch 2"
    assert timed_out(60.0, "") == "timed out after 60 s, its --timeout; it had printed nothing"

"""How a command ended, in words."""

from __future__ import annotations

import errno
import signal
from typing import Any

import pytest

from gpulayer.protocol.types import CommandSpec, Outcome, State
from gpulayer_worker.keeper.client import ExitRecord
from gpulayer_worker.run.commandwords import from_exit, unstarted


def ended(*, wish: str = "", problem: str = "", forced: bool = False, tail: str = "", **record: Any) -> Outcome:
    facts: dict[str, Any] = {"started_at": 10.0, "ended_at": 12.5} | record
    exit_record = ExitRecord(pid=1, start_time=1, boot_id="b", **facts)
    return from_exit(exit_record, tail, wish=wish, problem=problem, forced=forced, ram_bytes=16_000_000_000)


def test_an_exit_code_decides() -> None:
    assert ended(code=0, cpu_s=0.5, peak_rss_bytes=7) == Outcome(
        state=State.SUCCEEDED, exit_code=0, cpu_s=0.5, peak_rss_bytes=7, wall_s=2.5
    )
    assert ended(code=3, tail="a\nb\n") == Outcome(state=State.FAILED, exit_code=3, wall_s=2.5, tail="a\nb")


def test_a_signal_has_a_name_where_there_is_one() -> None:
    assert ended(signal=signal.SIGKILL).problem == "ended by signal 9 (SIGKILL)"
    assert ended(signal=63).problem == "ended by signal 63 (unknown)"


def test_out_of_memory_says_how_much() -> None:
    outcome = ended(signal=9, oom=True, peak_rss_bytes=15_000_000_000)
    assert outcome.problem == (
        "out of memory: the machine's OOM killer ended it at a peak of 15.0 GB, of 16.0 GB of RAM there; "
        "hold less at a time, or ask for more with --ram SIZE"
    )
    assert outcome.signal == 9


def test_out_of_memory_of_a_process_that_a_shell_waited_for() -> None:
    outcome = ended(code=137, oom=True, peak_rss_bytes=15_000_000_000)
    assert outcome.problem.startswith("out of memory: the machine's OOM killer ended a process of it at a peak of 15.0")
    assert (outcome.exit_code, outcome.signal) == (137, None)


def test_nobody_was_told() -> None:
    outcome = ended(unknown=True)
    assert outcome.state is State.FAILED
    assert outcome.problem.startswith("exit unknown")
    assert outcome.wall_s is None


def test_the_wall_time_is_by_the_clock_that_nobody_sets() -> None:
    assert ended(code=0, wall_s=1.25).wall_s == 1.25
    assert ended(code=0, ended_at=9.0).wall_s == 0.0


@pytest.mark.parametrize("how", [{"code": 0}, {"code": 9}, {"signal": 15}])
def test_what_was_cancelled_is_cancelled_however_it_ended(how: dict[str, Any]) -> None:
    outcome = ended(wish="cancel", problem="did not stop", **how)
    assert (outcome.state, outcome.problem) == (State.CANCELLED, "")
    assert (outcome.exit_code, outcome.signal) == (how.get("code"), how.get("signal"))


def test_what_did_not_follow_a_cancel_says_so() -> None:
    outcome = ended(wish="cancel", problem="did not stop", forced=True, signal=9)
    assert (outcome.state, outcome.problem) == (State.CANCELLED, "did not stop")


def test_a_time_limit_is_a_failure_also_of_a_program_that_says_it_went_well() -> None:
    outcome = ended(wish="timeout", problem="timed out after 10 s", code=0)
    assert (outcome.state, outcome.problem, outcome.exit_code) == (State.FAILED, "timed out after 10 s", 0)


@pytest.mark.parametrize(
    ("step", "number", "words"),
    [
        ("find", errno.ENOENT, "'train' is not there on this worker: not found in PATH (/bin:/usr/bin)"),
        ("find", errno.EACCES, "'train' may not be executed on this worker: Permission denied"),
        ("run", errno.EACCES, "'train' may not be executed on this worker: Permission denied"),
        (
            "run",
            errno.ENOENT,
            "'train' is not there on this worker, or the interpreter that its first line names is not",
        ),
        ("run", errno.ENOEXEC, "'train' is no program for this worker: Exec format error"),
        ("run", errno.E2BIG, "'train' could not be started on this worker (run): Argument list too long"),
        ("cwd", errno.ENOENT, "the working folder 'sub' is not there in what was sent: No such file or directory"),
        ("journal", errno.ENOSPC, "no room is left on the worker's disk, in /data: make room there, then run it again"),
        ("stopping", 0, "'train' was not started: the worker is stopping"),
    ],
)
def test_why_it_could_not_be_started(step: str, number: int, words: str) -> None:
    command = CommandSpec(argv=("train", "x"), cwd="sub")
    assert unstarted(step, number, command, "/bin:/usr/bin", "/data").startswith(words)

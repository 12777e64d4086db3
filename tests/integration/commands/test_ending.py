"""Commands that are ended: asked first, then by force, all of what they started."""

from __future__ import annotations

import signal
from pathlib import Path

from gpulayer.protocol.types import State
from tests.support.commands import Bench
from tests.support.processes import until


def test_a_cancel_asks_and_takes_what_the_program_says(bench: Bench, tmp_path: Path) -> None:
    up = tmp_path / "up"
    job = bench.shell(f"trap 'echo asked; exit 9' TERM; touch {up}; while :; do sleep 0.02; done")
    until(up.exists, "the program to be up")
    bench.cancel(job)
    view = bench.done(job)
    assert view.state is State.CANCELLED
    assert view.outcome is not None
    assert (view.outcome.exit_code, view.outcome.problem) == (9, "")
    assert bench.log(job, "stdout") == b"asked\n"


def test_who_does_not_follow_is_ended_with_all_that_it_started(bench: Bench, tmp_path: Path) -> None:
    up = tmp_path / "up"
    line = f"trap '' TERM; sleep 3600 & setsid sleep 3600 & (setsid env -i sleep 3600 &); touch {up}; wait; sleep 3600"
    job = bench.shell(line, grace_s=0.3)
    until(up.exists, "the program to be up")
    bench.cancel(job)
    view = bench.done(job)
    assert view.state is State.CANCELLED
    assert view.outcome is not None
    assert view.outcome.signal == signal.SIGKILL
    assert view.outcome.problem == "it did not stop within 0.3 s of SIGTERM and was ended"
    assert bench.left() == []


def test_a_daemon_does_not_outlive_its_command(bench: Bench) -> None:
    view = bench.run("(setsid sleep 3600 > /dev/null 2>&1 &); (setsid env -i sleep 3600 &); sleep 0.1; exit 0")
    assert view.state is State.SUCCEEDED
    until(lambda: not bench.left(), lambda: f"no process to be left: {bench.left()}")


def test_a_time_limit_ends_it_and_says_so(bench: Bench) -> None:
    view = bench.run("echo begun; exec sleep 3600", timeout_s=1, grace_s=5)
    assert view.state is State.FAILED
    assert view.outcome is not None
    assert (view.outcome.signal, view.outcome.problem) == (
        signal.SIGTERM,
        "timed out after 1 s, its --timeout; last line: begun",
    )
    assert bench.log(view.id) == b"begun\n"


def test_a_time_limit_is_no_exit_code(bench: Bench) -> None:
    line = "trap 'exit 4' TERM; while :; do sleep 0.02; done"
    outcome = bench.run(line, timeout_s=1).outcome
    assert outcome is not None
    assert (outcome.exit_code, outcome.problem) == (4, "timed out after 1 s, its --timeout; it had printed nothing")


def test_a_cancel_before_it_runs_leaves_nothing(bench: Bench, tmp_path: Path) -> None:
    go = tmp_path / "go"
    first = [bench.shell(f"until [ -e {go} ]; do sleep 0.02; done") for _ in range(4)]
    waiting = bench.shell(f"touch {tmp_path}/ran")
    bench.cancel(waiting)
    assert bench.done(waiting).state is State.CANCELLED
    go.touch()
    assert {bench.done(job).state for job in first} == {State.SUCCEEDED}
    assert not (tmp_path / "ran").exists()


def test_many_small_ones_end_one_by_one(bench: Bench) -> None:
    jobs = [bench.shell(f"echo {number}; exit {number % 3}") for number in range(60)]
    views = [bench.done(job) for job in jobs]
    assert [view.outcome.exit_code if view.outcome else None for view in views] == [n % 3 for n in range(60)]
    assert [bench.log(job) for job in jobs] == [b"%d\n" % number for number in range(60)]

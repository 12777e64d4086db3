"""One attempt of calls, with a runner and a control plane that are played by hand."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gpulayer.protocol.calls import OK, RAISED, DropCalls, EndRunner
from gpulayer.protocol.calls import RecallCalls as Recall
from gpulayer.protocol.messages import CancelAttempt
from gpulayer.protocol.types import State
from gpulayer_worker.run import callstelling
from tests.support.callsworld import ATTEMPT, Host, play, spec
from tests.support.fakerunner import record


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No result waits for others here."""
    monkeypatch.setattr(callstelling, "_TELL_S", 0.0)


# ---------------------------------------------------------------- the way of a call


def test_a_call_goes_to_the_runner_and_its_result_back_in_the_same_turn(tmp_path: Path) -> None:
    async def test(host: Host) -> None:
        assert host.begun
        host.call(0)
        assert host.runner.queue == [("m", 0)]
        host.runner.runs()
        assert host.done == {("m", 0): OK}
        host.accept(0)
        assert host.runner.kept == []

    play(tmp_path, test)


def test_the_runner_has_a_few_milliseconds_of_work_and_no_more(tmp_path: Path) -> None:
    async def test(host: Host) -> None:
        host.call(0, 2000)
        assert len(host.runner.queue) == 1
        host.runner.runs()
        assert len(host.runner.queue) == 512  # they take 5 µs
        host.runner.runs(200)
        assert len(host.runner.queue) == 312
        host.runner.runs(60)
        assert len(host.runner.queue) == 512

    play(tmp_path, test)


def test_calls_wait_until_the_function_is_loaded(tmp_path: Path) -> None:
    async def test(host: Host) -> None:
        host.call(0, 3)
        assert host.runner.queue == []
        host.runner.loads()
        assert host.runner.queue == [("m", 0)]

    play(tmp_path, test, loaded=False)


def test_results_wait_a_moment_for_others_while_there_are_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(host: Host) -> None:
        host.call(0, 300)
        host.runner.runs()
        monkeypatch.setattr(callstelling, "_TELL_S", 3600.0)
        host.runner.runs(50)
        assert len(host.done) == 1
        host.runner.runs(80)
        assert len(host.done) == 131  # so many are told at once
        host.runner.runs(10)
        assert len(host.done) == 131
        host.runner.runs(159)
        assert len(host.done) == 300  # and the last

    play(tmp_path, test)


# ---------------------------------------------------------------- what waits goes elsewhere


def test_what_is_recalled_comes_from_here_first_and_then_from_the_runner(tmp_path: Path) -> None:
    async def test(host: Host) -> None:
        host.call(0)
        host.runner.runs()
        host.call(1, 600)
        assert len(host.runner.queue) == 512
        host.runner.begins()
        host.hear(Recall(attempt=ATTEMPT, count=100))
        await host.settle()
        assert host.back() == set(range(501, 601))
        host.hear(Recall(attempt=ATTEMPT, count=1000))
        await host.settle()
        assert host.back() == set(range(2, 601))
        assert host.runner.running == ("m", 1)

    play(tmp_path, test)


def test_behind_a_long_call_nothing_is_left_in_the_runner(tmp_path: Path) -> None:
    async def test(host: Host) -> None:
        host.call(0)
        host.runner.runs()
        host.call(1, 10)
        host.runner.begins()
        assert len(host.runner.queue) == 9
        host.runner.is_busy()
        await host.settle()
        assert host.runner.queue == []
        assert host.back() == set()
        host.runner.ends_call()
        host.runner.flushes()
        host.runner.runs(9)
        assert len(host.done) == 11

    play(tmp_path, test)


def test_what_comes_back_late_is_given_to_a_runner_that_is_idle_by_then(tmp_path: Path) -> None:
    async def test(host: Host) -> None:
        host.call(0)
        host.runner.runs()
        host.call(1, 10)
        host.runner.begins()
        host.runner.answers.clear()
        host.runner.is_busy()
        host.runner.ends_call()
        back, host.runner.queue[:] = list(host.runner.queue), []  # it has answered, and that is on its way
        host.runner.flushes()
        host.runner.queue[:0] = back
        host.runner.answers.set()
        await host.settle()
        host.runner.runs(10)
        assert len(host.done) == 11

    play(tmp_path, test)


def test_a_dropped_map_is_dropped_in_the_runner_too(tmp_path: Path) -> None:
    async def test(host: Host) -> None:
        host.call(0)
        host.runner.runs()
        host.call(1, 3)
        host.call(0, 2, name="n")
        host.runner.begins()
        host.hear(DropCalls(attempt=ATTEMPT, map="m"))
        await host.settle()
        assert host.runner.queue == [("n", 0), ("n", 1)]
        host.runner.ends_call(RAISED)  # it was interrupted
        host.runner.flushes()
        assert host.runner.kept == []  # nobody wants that
        host.runner.runs(2)
        assert set(host.done) == {("m", 0), ("n", 0), ("n", 1)}

    play(tmp_path, test)


# ---------------------------------------------------------------- the end


def test_the_end_waits_for_the_call_and_for_its_result_to_be_accepted(tmp_path: Path) -> None:
    async def test(host: Host) -> None:
        host.call(0, 3)
        host.runner.begins()
        host.hear(EndRunner(attempt=ATTEMPT))
        assert host.back() == {1, 2}
        host.call(7)  # was on its way
        assert host.back() == {1, 2, 7}
        host.runner.ends_call()
        host.runner.flushes()
        assert not host.runner.ending
        host.accept(0)
        assert host.runner.ending
        assert host.end is None
        host.runner.dies(record(0, peak_rss_bytes=7, cpu_s=0.5))
        assert host.end is not None
        assert (host.end.outcome.state, host.end.released) == (State.SUCCEEDED, True)
        assert (host.end.outcome.peak_rss_bytes, host.end.outcome.cpu_s) == (7, 0.5)

    play(tmp_path, test)


def test_a_runner_that_does_not_end_is_ended(tmp_path: Path) -> None:
    async def test(host: Host) -> None:
        host.runner.connected = False  # nothing reaches it
        host.hear(EndRunner(attempt=ATTEMPT))
        await host.settle()
        await asyncio.sleep(0.01)
        await host.settle()
        assert host.runner.killed
        assert host.end is not None
        assert host.end.outcome.state is State.SUCCEEDED

    play(tmp_path, test)


def test_without_a_call_it_ends_after_a_while(tmp_path: Path) -> None:
    async def test(host: Host) -> None:
        await asyncio.sleep(0.02)
        assert host.runner.ending
        host.call(0)
        assert host.back() == {0}

    play(tmp_path, test, spec(idle_timeout_s=0.0))


def test_a_cancel_interrupts_what_runs_and_gives_back_the_rest(tmp_path: Path) -> None:
    async def test(host: Host) -> None:
        host.call(0)
        host.runner.runs()
        host.call(1, 20)
        host.runner.begins()
        host.hear(CancelAttempt(attempt=ATTEMPT, grace_s=3600.0))
        await host.settle()
        assert host.runner.interrupts == [("m", 1)]
        assert host.back() == set(range(2, 21))
        host.runner.ends_call(RAISED)
        host.runner.flushes()
        assert host.runner.ending
        host.runner.dies(record(0))
        assert host.end is not None
        assert host.end.outcome.state is State.CANCELLED

    play(tmp_path, test)


def test_a_cancel_while_it_loads_ends_it(tmp_path: Path) -> None:
    async def test(host: Host) -> None:
        host.call(0)
        host.hear(CancelAttempt(attempt=ATTEMPT, grace_s=3600.0))
        await host.settle()
        assert host.runner.killed == 1
        assert host.back() == {0}
        assert host.end is not None
        assert host.end.outcome.state is State.CANCELLED

    play(tmp_path, test, loaded=False)


def test_a_cancel_before_there_is_a_runner(tmp_path: Path) -> None:
    async def inside() -> None:
        host = Host(tmp_path, spec(), {})
        host.assign()
        host.hear(CancelAttempt(attempt=ATTEMPT, grace_s=1.0))
        await host.settle()
        assert host.machine == {}
        assert host.end is not None
        assert host.end.outcome.state is State.CANCELLED

    asyncio.run(inside())


def test_a_lease_that_is_over_is_ended_at_once(tmp_path: Path) -> None:
    async def test(host: Host) -> None:
        host.call(0, 2)
        host.runner.begins()
        host.connect(go_on=False)
        await host.settle()
        assert host.runner.killed == 1
        assert host.run is not None
        assert host.run.ended.is_set()
        assert host.back(began=True) == set()

    play(tmp_path, test)

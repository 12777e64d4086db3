"""One attempt of calls where something breaks: runners that die, code that does not load, connections that are lost."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gpulayer.protocol.calls import NOT_RUN, OK, RAISED, RUNNER_DIED, TIMED_OUT
from gpulayer.protocol.types import State
from gpulayer.source import SourceError
from gpulayer_worker import link
from gpulayer_worker.run import callsfeed, callstelling
from gpulayer_worker.runner import wire
from tests.support.callsworld import ATTEMPT, Host, play, spec, until
from tests.support.fakerunner import FakeRunner, record


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No result waits for others here."""
    monkeypatch.setattr(callstelling, "_TELL_S", 0.0)


# ---------------------------------------------------------------- runners that die


def test_the_one_call_that_it_had_has_ended_it(tmp_path: Path) -> None:
    async def test(host: Host) -> None:
        host.call(0, 3)
        host.runner.begins()
        host.runner.dies(record(None, signal=11))
        assert host.back(began=True) == {0}
        assert host.back() == {1, 2}
        host.runner.loads()
        host.call(1, 2)
        host.runner.runs()
        host.runner.runs()
        assert host.done == {("m", 1): OK, ("m", 2): OK}

    host = play(tmp_path, test)
    assert [each.forgotten for each in host.machine.values()] == [True, False]


def test_of_several_it_is_found_out_one_by_one(tmp_path: Path) -> None:
    async def test(host: Host) -> None:
        host.call(0)
        host.runner.runs()
        host.call(1, 10)
        host.runner.begins()
        host.runner.ends_call()  # done, and not told
        host.runner.begins()
        host.runner.dies(record(7))
        assert host.back(began=True) == set()
        host.runner.loads()
        assert host.runner.queue == [("m", 1)]
        host.runner.runs()
        assert host.runner.queue == [("m", 2)]
        host.runner.begins()
        host.runner.dies(record(7))
        assert host.back(began=True) == {2}
        assert host.back() == set(range(3, 11))
        host.runner.loads()
        host.call(3, 8)
        for _ in range(8):
            host.runner.runs()
        assert set(host.done) == {("m", n) for n in range(11)} - {("m", 2)}

    play(tmp_path, test)


def test_one_that_is_known_to_be_busy_is_named(tmp_path: Path) -> None:
    async def test(host: Host) -> None:
        host.call(0)
        host.runner.runs()
        host.call(1, 3)
        host.runner.begins()
        host.runner.mute = False
        host.runner.says(wire.Busy("m", 1, 10_000))
        host.runner.dies(record(None, oom=True, signal=9, peak_rss_bytes=10**9))
        await host.settle()
        assert host.back(began=True) == {1}
        assert host.back() == {2, 3}

    host = play(tmp_path, test)
    (reason,) = {getattr(each, "reason", "") for each in host.sent if getattr(each, "began", False)} - {""}
    assert reason.startswith("out of memory: the machine's OOM killer ended the runner at a peak of 1.0 GB")


def test_runners_that_die_without_a_call_are_given_up(tmp_path: Path) -> None:
    async def test(host: Host) -> None:
        for _ in range(3):
            host.runner.loads()
            host.runner.dies(record(1))
        assert len(host.machine) == 3
        host.call(0, 2)
        assert host.done == {("m", 0): RUNNER_DIED, ("m", 1): RUNNER_DIED}
        assert host.failure(1)["text"] == "its runners die: exit code 1"
        host.accept(0, 2)
        assert host.end is not None
        assert host.end.outcome.state is State.FAILED

    play(tmp_path, test)


def test_one_that_dies_while_it_loads_is_tried_once_more(tmp_path: Path) -> None:
    async def test(host: Host) -> None:
        host.call(0)
        host.runner.dies(record(1))
        assert host.done == {}
        host.runner.dies(record(None, unknown=True))
        assert host.done == {("m", 0): RUNNER_DIED}

    host = play(tmp_path, test, loaded=False)
    assert len(host.machine) == 2


def test_an_object_dies_with_its_runner(tmp_path: Path) -> None:
    async def test(host: Host) -> None:
        host.call(0, 3, method="add")
        assert host.runner.methods == ["add"]
        host.runner.begins()
        host.runner.dies(record(5))
        assert host.back(began=True) == {0}
        assert host.back() == {1, 2}
        assert host.end is not None
        assert (host.end.outcome.state, host.end.outcome.problem) == (
            State.FAILED,
            "its runner died: exit code 5",
        )

    host = play(tmp_path, test, spec(stateful=True, instance="x"))
    assert len(host.machine) == 1


# ---------------------------------------------------------------- what can't be loaded, or fetched


def test_a_function_that_can_t_be_loaded_ends_the_attempt_once_a_call_has_failed_with_it(tmp_path: Path) -> None:
    async def test(host: Host) -> None:
        host.runner.loaded = True
        host.runner.says(wire.LoadFailed({"kind": "load", "type": "ImportError", "text": "no x"}))
        assert host.begun
        assert not host.runner.ending  # a call is to hear of it
        host.call(0)
        host.runner.runs(code=RAISED)
        assert not host.runner.ending
        host.accept(0)
        assert host.runner.ending
        host.call(1)
        assert host.back() == {1}
        host.runner.dies(record(0))
        assert host.end is not None
        assert host.end.outcome.problem == "the function could not be loaded: ImportError: no x"

    play(tmp_path, test, loaded=False)


def test_files_that_can_t_be_had_fail_the_calls(tmp_path: Path) -> None:
    async def inside() -> None:
        host = Host(tmp_path, spec(), {})

        def fresh(*_: object) -> None:
            raise SourceError("bundle 123 is not there")

        host.workspaces.fresh = fresh
        host.assign()
        await host.settle()
        host.call(0, 2)
        assert host.done == {("m", 0): NOT_RUN, ("m", 1): NOT_RUN}
        assert host.failure(0)["text"] == "bundle 123 is not there"
        host.accept(0, 2)
        assert host.end is not None
        assert host.end.outcome.state is State.FAILED

    asyncio.run(inside())


def test_a_start_that_fails_fails_the_calls(tmp_path: Path) -> None:
    async def test(host: Host) -> None:
        host.fails.append(OSError(28, "No space left on device"))
        host.runner.dies(record(1))
        host.call(0)
        assert host.done == {("m", 0): NOT_RUN}
        assert "no room is left on the worker's disk" in host.failure(0)["text"]

    play(tmp_path, test)


def test_arguments_are_fetched_while_other_calls_run(tmp_path: Path) -> None:
    async def test(host: Host) -> None:
        host.call(0, blobs=("a" * 64,))
        host.call(1)
        assert host.runner.queue == [("m", 1)]
        host.runner.runs()
        await until(lambda: host.runner.queue)
        assert host.runner.queue == [("m", 0)]

    play(tmp_path, test)


def test_calls_whose_arguments_can_t_be_had_fail(tmp_path: Path) -> None:
    async def test(host: Host) -> None:
        host.fetch["b" * 64] = SourceError("blob bbb is damaged")
        host.call(0, 2, blobs=("b" * 64,))
        await until(lambda: host.done)
        assert host.done == {("m", 0): NOT_RUN, ("m", 1): NOT_RUN}
        assert host.failure(0)["text"] == "its arguments could not be fetched: blob bbb is damaged"

    play(tmp_path, test)


def test_after_a_fault_of_ours_no_other_runner_starts(tmp_path: Path) -> None:
    async def inside() -> None:
        host = Host(tmp_path, spec(), {})
        host.assign()
        await host.settle()
        host.runner.loads()
        assert host.run is not None
        host.run.on_fault(RuntimeError("a fault of ours"))
        await host.settle()
        assert host.runner.killed == 1
        assert len(host.machine) == 1
        assert len(host.faults) == 1
        host.run.close()

    asyncio.run(inside())


# ---------------------------------------------------------------- late, replaced, lost


def test_a_call_that_is_late_is_interrupted_and_its_runner_kept(tmp_path: Path) -> None:
    async def test(host: Host) -> None:
        host.call(0, 1, timeout_s=0.01)
        host.runner.begins()
        host.runner.is_busy()
        await until(lambda: host.runner.interrupts)
        host.runner.ends_call(RAISED)
        host.runner.flushes()
        assert host.done == {("m", 0): TIMED_OUT}
        assert host.failure(0)["text"] == "timed out after 0.01 s, its timeout"
        assert host.runner.alive

    play(tmp_path, test)


def test_a_late_call_that_makes_it_all_the_same_has_a_result(tmp_path: Path) -> None:
    async def test(host: Host) -> None:
        host.call(0, 1, timeout_s=0.01)
        host.runner.begins()
        host.runner.is_busy()
        await until(lambda: host.runner.interrupts)
        host.runner.ends_call(OK)
        host.runner.flushes()
        assert host.done == {("m", 0): OK}

    play(tmp_path, test)


def test_a_late_call_that_goes_on_is_ended_with_its_runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callsfeed, "_STOP_S", 0.01)

    async def test(host: Host) -> None:
        host.call(0, 2, timeout_s=0.01)
        host.runner.begins()
        host.runner.is_busy()
        await until(lambda: len(host.machine) == 2)
        assert host.done == {("m", 0): TIMED_OUT}
        assert host.back(began=True) == set()
        assert host.back() == {1}

    play(tmp_path, test)


def test_what_a_replaced_runner_had_not_begun_goes_to_the_next(tmp_path: Path) -> None:
    async def test(host: Host) -> None:
        host.call(0)
        host.runner.runs()
        host.call(1, 5)
        first = host.runner
        first.begins()
        first.ends_call()
        first.replaces()
        assert first.ending
        host.call(6)
        assert host.back() == set()
        first.dies(record(0))
        host.runner.loads()
        host.runner.runs(9)
        assert set(host.done) == {("m", n) for n in range(7)}

    host = play(tmp_path, test)
    assert len(host.machine) == 2


def test_an_object_whose_runner_grew_too_large_is_gone(tmp_path: Path) -> None:
    async def test(host: Host) -> None:
        host.call(0)
        host.runner.begins()
        host.runner.ends_call()
        host.runner.replaces()
        host.runner.dies(record(0))
        assert host.end is not None
        assert host.end.outcome.problem == "its runner had 1.0 GB of memory, above its limit: its object is gone"

    play(tmp_path, test, spec(stateful=True, instance="x", memory_limit_bytes=1))


def test_calls_that_were_lost_with_the_connection_are_given_again(tmp_path: Path) -> None:
    async def test(host: Host) -> None:
        host.call(0)
        host.runner.runs()
        host.call(1, 5)
        host.runner.begins()
        del host.runner.queue[2:]  # these it had not read
        host.runner.loses_connection()
        await host.settle()
        host.runner.ends_call()
        host.runner.flushes()
        host.runner.runs(9)
        assert set(host.done) == {("m", n) for n in range(6)}
        assert sorted(host.runner.ran) == [("m", n) for n in range(6)]

    play(tmp_path, test)


def test_one_that_does_not_answer_is_ended(tmp_path: Path) -> None:
    async def test(host: Host) -> None:
        host.call(0)
        first = host.runner
        first.begins()
        first.mute = True
        first.loses_connection()
        await host.settle()
        assert first.killed == 1
        assert host.back(began=True) == {0}

    host = play(tmp_path, test)
    assert len(host.machine) == 2


def test_another_agent_goes_on_with_what_the_runner_has(tmp_path: Path) -> None:
    async def test(host: Host) -> None:
        host.call(0)
        host.runner.runs()
        host.call(1, 2)
        host.runner.begins()
        assert host.run is not None
        assign = host.link.held[ATTEMPT].assign
        other = Host(tmp_path, host.spec, host.machine)
        other.link = link.Link(held=[link.Held(assign=assign, began=True)])
        other.begin(assign, resumed=True)
        await other.settle()
        declared = {n for each in _declared(other) for n in range(each.first, each.first + each.count)}
        assert declared == {0, 1, 2}
        other.connect()
        assert other.done == {("m", 0): OK}
        runner: FakeRunner = other.runner
        runner.ends_call()
        runner.flushes()
        runner.runs()
        assert other.done == {("m", n): OK for n in range(3)}
        other.accept(0, 3)
        assert runner.kept == []
        assert other.faults == []
        host.run = other.run

    play(tmp_path, test)


def _declared(host: Host) -> tuple[Any, ...]:
    return host.link.held[ATTEMPT].declared.calls


def test_a_runner_that_died_with_its_agent_is_started_anew(tmp_path: Path) -> None:
    async def test(host: Host) -> None:
        host.runner.alive = False
        assign = host.link.held[ATTEMPT].assign
        other = Host(tmp_path, host.spec, host.machine)
        other.link = link.Link(held=[link.Held(assign=assign, began=True)])
        other.begin(assign, resumed=True)
        await other.settle()
        assert len(other.machine) == 2
        other.connect()
        other.runner.loads()
        other.call(0)
        other.runner.runs()
        assert other.done == {("m", 0): OK}
        host.run = other.run

    play(tmp_path, test)

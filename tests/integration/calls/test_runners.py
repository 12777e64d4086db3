"""A real worker and real runners, and a control plane that is played by hand."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpulayer.protocol.calls import (
    RAISED,
    RUNNER_DIED,
    TIMED_OUT,
    CallRange,
    CallsDone,
    CallsReturned,
    CallsSpec,
    DropCalls,
    EndRunner,
    RecallCalls,
)
from gpulayer.protocol.messages import CancelAttempt, Output
from gpulayer.protocol.types import State
from gpulayer.protocol.values import calls as values
from tests.support.fakeplane import FakePlane, function

_NUMBERS = itertools.count(1)


@pytest.fixture(scope="module")
def plane() -> Iterator[FakePlane]:
    """One worker for all tests here: each has an attempt of its own on it."""
    with FakePlane() as plane:
        plane.start_worker()
        yield plane


@pytest.fixture
def own() -> Iterator[FakePlane]:
    """A worker of the test's own."""
    with FakePlane() as plane:
        plane.start_worker()
        yield plane


class Lease:
    """One attempt on the worker, with a map of its own."""

    def __init__(self, plane: FakePlane, source: str, *, name: str = "f", method: str = "", **spec: Any) -> None:
        job = f"j{next(_NUMBERS)}"
        self.plane = plane
        self.attempt = f"{job}-1"
        self.map = f"{job}.1"
        self.method = method
        kind = "class" if spec.get("stateful") else "function"
        plane.assign(self.attempt, CallsSpec(function=function(source, name, kind=kind), **spec))

    def call(self, first: int, *args: Any, **more: Any) -> None:
        """Calls from an index on, each of one argument."""
        self.plane.call(self.attempt, self.map, first, *[(each,) for each in args], method=self.method, **more)

    def result(self, index: int = 0) -> Any:
        return self.plane.result(self.map, index)

    def failure(self, index: int = 0) -> tuple[int, dict[str, Any]]:
        return self.plane.failure(self.map, index)

    def back(self, *, began: bool) -> set[int]:
        """The indexes that were given back."""
        mine = [each for each in self.plane.returned if each.attempt == self.attempt and each.began is began]
        return {index for each in mine for span in each.ranges for index in range(span.first, span.first + span.count)}

    def returned(self, *, began: bool, count: int) -> list[CallsReturned]:
        """Wait for so many calls that were given back."""
        self.plane.until(lambda: len(self.back(began=began)) >= count, f"{count} calls that come back")
        return [each for each in self.plane.returned if each.attempt == self.attempt and each.began is began]

    def end(self) -> Any:
        """Wait for the attempt's end."""
        return self.plane.until(lambda: self.plane.ends.get(self.attempt), f"the end of {self.attempt}")


def until_file(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} does not come"
        time.sleep(0.01)


# ---------------------------------------------------------------- calls


def test_calls_have_results_and_what_they_wrote_comes_before_them(plane: FakePlane) -> None:
    source = "import sys\ndef f(x):\n    print('out', x)\n    print('err', x, file=sys.stderr)\n    return x * 2\n"
    lease = Lease(plane, source)
    lease.call(0, 1, 2, "a")
    assert [lease.result(index) for index in range(3)] == [2, 4, "aa"]
    text = plane.text(lease.attempt)
    assert text[lease.map, 0] == "out 1\nerr 1\n"
    assert text[lease.map, 2] == "out a\nerr a\n"
    mine = [each for each in plane.heard if isinstance(each, (Output, CallsDone)) and each.attempt == lease.attempt]
    assert isinstance(mine[0], Output)
    assert isinstance(mine[-1], CallsDone)


def test_a_thousand_calls_need_few_messages(plane: FakePlane) -> None:
    lease = Lease(plane, "def f(x):\n    return x\n")
    for first in range(0, 1000, 250):
        lease.call(first, *range(first, first + 250))
    assert [lease.result(index) for index in range(1000)] == list(range(1000))
    done = [each for each in plane.heard if isinstance(each, CallsDone) and each.attempt == lease.attempt]
    assert len(done) < 100
    spent_us = sum(run.spent_us for each in done for run in each.runs)
    assert spent_us >= 0


def test_one_that_raises_is_a_result_and_the_runner_goes_on(plane: FakePlane) -> None:
    lease = Lease(plane, "def f(x):\n    return 1 // x\n")
    lease.call(0, 0, 1)
    code, failure = lease.failure(0)
    assert (code, failure["kind"], failure["type"]) == (RAISED, "raised", "ZeroDivisionError")
    assert failure["worker"] == "alpha"
    assert lease.result(1) == 1


def test_calls_see_their_job_and_what_the_spec_adds(plane: FakePlane) -> None:
    source = "import os\ndef f(name):\n    return os.environ.get(name)\n"
    lease = Lease(plane, source, env={"MINE": "here"})
    lease.call(0, "MINE", "GPULAYER_ATTEMPT", "GPULAYER_JOB", "GPULAYER_TOKEN")
    assert lease.result(0) == "here"
    assert lease.result(1) == lease.attempt
    assert lease.result(2) == lease.attempt.split("-")[0]
    assert lease.result(3) is None


def test_large_values_travel_as_blobs(plane: FakePlane) -> None:
    lease = Lease(plane, "def f(x):\n    return x + x\n")
    lease.call(0, b"a" * 100_000, b"b" * 70_000)
    assert lease.result(0) == b"a" * 200_000
    assert lease.result(1) == b"b" * 140_000
    done = [each for each in plane.heard if isinstance(each, CallsDone) and each.attempt == lease.attempt]
    named = [digest for each in done for run in each.runs for digest in run.blobs]
    assert len(named) == 2
    assert all(digest in plane.blobs for digest in named)


def test_a_generator_s_items_are_in_the_stream(plane: FakePlane) -> None:
    lease = Lease(plane, "def f(n):\n    yield from range(n)\n")
    lease.call(0, 3, stream=True)
    assert lease.result(0) is None
    assert len(plane.texts[lease.attempt]) > 0


# ---------------------------------------------------------------- what can't be loaded


def test_a_function_that_can_t_be_loaded_fails_its_calls_and_the_attempt(plane: FakePlane) -> None:
    lease = Lease(plane, "import no_such_module_here\ndef f(x):\n    return x\n")
    lease.call(0, 1, 2, 3)
    for index in range(3):
        code, failure = lease.failure(index)
        assert (code, failure["kind"], failure["type"]) == (RAISED, "load", "ModuleNotFoundError")
    outcome = lease.end().outcome
    assert outcome.state is State.FAILED
    assert "no_such_module_here" in outcome.problem
    assert lease.end().released


def test_a_runner_that_dies_while_it_loads_fails_the_calls(plane: FakePlane) -> None:
    lease = Lease(plane, "import os\nos._exit(3)\ndef f(x):\n    return x\n")
    lease.call(0, 1, 2)
    for index in range(2):
        code, failure = lease.failure(index)
        assert (code, failure["kind"]) == (RUNNER_DIED, "load")
        assert "the runner died while it loaded the function: exit code 3" in failure["text"]
    assert lease.end().outcome.state is State.FAILED


# ---------------------------------------------------------------- runners that die


def test_the_call_that_ended_its_runner_is_named_and_the_others_come_back(plane: FakePlane, tmp_path: Path) -> None:
    source = f"""
import os, time
def f(x):
    if x == 1:
        open({str(tmp_path / "runs")!r}, "w").close()
        time.sleep(60)
    return x
"""
    lease = Lease(plane, source)
    lease.call(0, 1, 2, 3, 4)
    until_file(tmp_path / "runs")
    pids = [pid for pid, line in plane.processes().items() if "runner/main.py" in line and lease.attempt in line]
    assert len(pids) == 1
    os.kill(pids[0], signal.SIGKILL)
    (first,) = lease.returned(began=True, count=1)
    assert first.ranges == (CallRange(map=lease.map, first=0),)
    assert "signal 9 (SIGKILL)" in first.reason
    lease.returned(began=False, count=3)
    assert lease.back(began=False) == {1, 2, 3}
    lease.call(1, 2, 3, 4)  # here again, or elsewhere
    assert [lease.result(index) for index in (1, 2, 3)] == [2, 3, 4]
    assert lease.attempt not in plane.ends


def test_of_many_short_calls_it_is_found_which_one_ends_the_runner(plane: FakePlane) -> None:
    source = "import os\ndef f(x):\n    if x == 150:\n        os._exit(7)\n    return x\n"
    lease = Lease(plane, source)
    lease.call(0, *range(100))
    lease.result(99)
    lease.call(100, *range(100, 200))
    (told,) = lease.returned(began=True, count=1)
    assert told.ranges == (CallRange(map=lease.map, first=150),)
    assert told.reason == "exit code 7"
    missing = {index for index in range(200) if (lease.map, index) not in plane.results} - {150}
    plane.until(
        lambda: all((lease.map, n) in plane.results or n in lease.back(began=False) for n in missing), "the others"
    )
    assert all((lease.map, index) in plane.results for index in range(150))


def test_an_object_s_calls_end_with_its_runner(plane: FakePlane) -> None:
    source = """
class Model:
    def __init__(self, start):
        self.n = start
    def add(self, x):
        if x < 0:
            import os
            os._exit(5)
        self.n += x
        return self.n
"""
    init = values.pack_call((10,), {})[0]
    lease = Lease(plane, source, name="Model", method="add", stateful=True, init=init)
    lease.call(0, 1)
    lease.call(1, 2, 3)
    assert [lease.result(index) for index in range(3)] == [11, 13, 16]
    lease.call(3, -1, 4)
    (told,) = lease.returned(began=True, count=1)
    assert told.ranges[0].first == 3
    outcome = lease.end().outcome
    assert outcome.state is State.FAILED
    assert outcome.problem == "its runner died: exit code 5"
    assert lease.back(began=False) == {4}


# ---------------------------------------------------------------- timeouts, cancels, recalls


def test_a_call_that_takes_too_long_is_interrupted_and_the_runner_stays(plane: FakePlane) -> None:
    source = "import os, time\ndef f(x):\n    if x:\n        time.sleep(x)\n    return os.getpid()\n"
    lease = Lease(plane, source)
    lease.call(0, 0, 60, timeout_s=0.2)
    code, failure = lease.failure(1)
    assert (code, failure["kind"], failure["text"]) == (TIMED_OUT, "timeout", "timed out after 0.2 s, its timeout")
    lease.call(2, 0)
    assert lease.result(2) == lease.result(0)


def test_one_that_does_not_follow_is_ended_with_its_runner(plane: FakePlane) -> None:
    source = """
import os, time
def f(x):
    deadline = time.monotonic() + x
    while time.monotonic() < deadline:
        try:
            time.sleep(x)
        except KeyboardInterrupt:
            pass
    return os.getpid()
"""
    lease = Lease(plane, source)
    lease.call(0, 0, 60, 0, timeout_s=0.2)
    code, _ = lease.failure(1)
    assert code == TIMED_OUT
    plane.until(lambda: (lease.map, 2) in plane.results or 2 in lease.back(began=False), "the third")
    lease.call(3, 0)
    assert lease.result(3) != lease.result(0)


def test_a_map_that_is_dropped_is_interrupted_and_others_go_on(plane: FakePlane, tmp_path: Path) -> None:
    source = f"""
import time
def f(x):
    if x == 60:
        open({str(tmp_path / "runs")!r}, "w").close()
        time.sleep(60)
    return x
"""
    lease = Lease(plane, source)
    lease.call(0, 60, 1, 2)
    plane.call(lease.attempt, "other.1", 0, (5,))
    until_file(tmp_path / "runs")
    plane.send(DropCalls(attempt=lease.attempt, map=lease.map))
    assert plane.result("other.1") == 5
    assert (lease.map, 1) not in plane.results
    assert (lease.map, 2) not in plane.results


def test_what_waits_behind_a_long_call_can_be_recalled(plane: FakePlane, tmp_path: Path) -> None:
    source = f"""
import time
def f(x):
    if x < 0:
        open({str(tmp_path / "runs")!r}, "w").close()
        while not __import__("os").path.exists({str(tmp_path / "go")!r}):
            time.sleep(0.01)
    return x
"""
    lease = Lease(plane, source)
    lease.call(0, *range(100))
    lease.result(99)  # it is known now that they are short
    lease.call(100, -1, *range(101, 110))
    until_file(tmp_path / "runs")
    plane.send(RecallCalls(attempt=lease.attempt, count=4))
    lease.returned(began=False, count=4)
    assert lease.back(began=False) == {106, 107, 108, 109}
    (tmp_path / "go").touch()
    assert [lease.result(index) for index in range(101, 106)] == [101, 102, 103, 104, 105]
    assert (lease.map, 106) not in plane.results


def test_a_runner_that_is_to_end_finishes_its_call_first(plane: FakePlane, tmp_path: Path) -> None:
    source = f"""
import os, time
def f(x):
    open({str(tmp_path / "runs")!r}, "w").close()
    while not os.path.exists({str(tmp_path / "go")!r}):
        time.sleep(0.01)
    return x
"""
    lease = Lease(plane, source)
    lease.call(0, 1, 2, 3)
    until_file(tmp_path / "runs")
    plane.send(EndRunner(attempt=lease.attempt))
    lease.returned(began=False, count=2)
    lease.call(5, 6)  # was on its way
    lease.returned(began=False, count=3)
    assert lease.back(began=False) == {1, 2, 5}
    (tmp_path / "go").touch()
    assert lease.result(0) == 1
    end = lease.end()
    assert (end.outcome.state, end.released) == (State.SUCCEEDED, True)
    assert end.outcome.peak_rss_bytes > 1_000_000


def test_a_runner_without_calls_ends_by_itself(plane: FakePlane) -> None:
    lease = Lease(plane, "def f(x):\n    return x\n", idle_timeout_s=0.1)
    lease.call(0, 1)
    assert lease.result(0) == 1
    assert lease.end().outcome.state is State.SUCCEEDED


def test_a_cancelled_attempt_ends_with_its_call_interrupted(plane: FakePlane, tmp_path: Path) -> None:
    source = f"""
import time
def f(x):
    open({str(tmp_path / "runs")!r}, "w").close()
    time.sleep(60)
"""
    lease = Lease(plane, source)
    lease.call(0, 1, 2)
    until_file(tmp_path / "runs")
    plane.send(CancelAttempt(attempt=lease.attempt, grace_s=30.0))
    end = lease.end()
    assert (end.outcome.state, end.released) == (State.CANCELLED, True)
    assert lease.back(began=False) == {1}


# ---------------------------------------------------------------- runners that are replaced


def test_each_call_has_a_process_of_its_own_where_it_is_to(plane: FakePlane) -> None:
    lease = Lease(plane, "import os\ndef f(x):\n    return os.getpid()\n", isolate=True)
    lease.call(0, 1, 2, 3)
    assert len({lease.result(index) for index in range(3)}) == 3


def test_a_runner_that_grew_too_large_is_replaced_after_its_call(plane: FakePlane) -> None:
    source = "import os\nkept = []\ndef f(x):\n    kept.append(bytearray(x))\n    return os.getpid()\n"
    lease = Lease(plane, source, memory_limit_bytes=200 << 20)
    lease.call(0, 1, 300 << 20, 1, 1)
    pids = [lease.result(index) for index in range(4)]
    assert pids[0] == pids[1] != pids[2] == pids[3]


# ---------------------------------------------------------------- who dies, who comes back


def test_results_that_were_not_accepted_are_told_again_on_each_connection(own: FakePlane) -> None:
    own.accepts = False
    lease = Lease(own, "def f(x):\n    return x\n")
    lease.call(0, 1, 2)
    assert [lease.result(0), lease.result(1)] == [1, 2]
    told = own.told
    own.drop_connection()
    own.until(lambda: own.told >= told + 2, "the results, again")
    assert own.hellos[-1].attempts[0].calls == (CallRange(map=lease.map, first=0, count=2),)
    own.accepts = True
    own.drop_connection()
    own.until(lambda: own.told >= told + 4, "the results, once more")
    lease.call(2, 3)
    assert lease.result(2) == 3
    own.drop_connection()
    own.until(lambda: len(own.hellos) == 4, "a hello")
    assert own.hellos[-1].attempts[0].calls == ()
    own.refused.add(lease.attempt)
    own.drop_connection()
    own.until(lambda: not [line for line in own.processes().values() if "runner/main.py" in line], "its runner's end")


def test_another_agent_finds_what_runs_what_waits_and_what_was_not_accepted(own: FakePlane, tmp_path: Path) -> None:
    source = f"""
import os, time
def f(x):
    with open({str(tmp_path / "ran")!r}, "a") as file:
        file.write(f"{{x}} ")
    print("ran", x)
    while x < 0 and not os.path.exists({str(tmp_path / "go")!r}):
        time.sleep(0.01)
    return os.getpid()
"""
    own.accepts = False
    lease = Lease(own, source)
    lease.call(0, 1)
    pid = lease.result(0)
    lease.call(1, -2, 3)
    own.until(lambda: "ran -2" in own.text(lease.attempt).get((lease.map, 1), ""), "the second call")
    worker = own.worker
    assert worker is not None
    told = own.told
    worker.kill_agent()
    own.until(lambda: len(own.hellos) == 2, "the next agent")
    declared = {n for span in own.hellos[-1].attempts[0].calls for n in range(span.first, span.first + span.count)}
    assert {0, 1} <= declared <= {0, 1, 2}
    own.until(lambda: own.told > told, "the first result, again")
    own.accepts = True
    own.accept(lease.attempt, lease.map, 0)
    (tmp_path / "go").touch()
    assert lease.result(1) == pid
    # the third was lost with the first agent, or given back by the second, who does not know its arguments
    own.until(lambda: {2} - declared or 2 in lease.back(began=False) or (lease.map, 2) in own.results, "the third call")
    if (lease.map, 2) not in own.results:
        lease.call(2, 3)
    assert lease.result(2) == pid
    assert (tmp_path / "ran").read_text() == "1 -2 3 "
    worker.kill_keeper()
    lease.call(3, 4)
    assert lease.result(3) == pid
    own.send(EndRunner(attempt=lease.attempt))
    assert lease.end().outcome.state is State.SUCCEEDED
    assert own.text(lease.attempt)[lease.map, 3] == "ran 4\n"

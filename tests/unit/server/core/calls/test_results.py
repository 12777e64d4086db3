"""Results: the first of an index counts, fenced ones are refused, failed calls are tried again or end their map."""

from __future__ import annotations

import msgspec
import pytest

from gpulayer.protocol.calls import OK, RAISED, RUNNER_DIED, TIMED_OUT, VALUE_REFUSED, CallFailure, CallsAccepted
from gpulayer.protocol.types import State
from gpulayer_server.core.events import Dispatch, ResultsRow
from tests.unit.server.core.calls.conftest import CallsWorld, DropCalls, calls_spec


def test_the_first_result_counts_and_a_later_one_may_be_let_go_of(world: CallsWorld) -> None:
    conn, attempt, name = world.warm(40)
    world.did(conn, attempt, name, 0)
    assert world.accepted() == [(0, 1)]
    assert [run.first for _, run in world.out.results] == [0]
    world.did(conn, attempt, name, 0, 3)
    assert world.accepted() == [(1, 2)]
    [accepted] = world.sent(CallsAccepted)
    assert [(each.first, each.count) for each in accepted.ranges] == [(0, 3)]
    assert world.map(name).done == 3


def test_results_of_an_attempt_that_is_over_are_refused(world: CallsWorld) -> None:
    conn, attempt, name = world.warm(5)
    world.leave(conn)
    world.wait(66)  # out of reach, lost
    conn = world.join(slots=1)
    world.did(conn, attempt, name, 0)
    assert world.accepted() == []
    assert len(world.sent(CallsAccepted)) == 1
    assert name not in world.plane.maps or world.map(name).done == 0


def test_results_of_another_workers_attempt_are_refused(world: CallsWorld) -> None:
    _, attempt, name = world.warm(5)
    other = world.join("other", slots=1)
    world.did(other, attempt, name, 0)
    assert world.accepted() == []
    assert world.map(name).done == 0


def test_results_of_calls_that_there_are_not_are_refused(world: CallsWorld) -> None:
    conn, attempt, name = world.warm(2)
    world.did(conn, attempt, name, 1, 2)
    world.did(conn, attempt, name, -1, 2)
    world.did(conn, attempt, "nope.1", 0)
    assert world.map(name).done == 0


@pytest.mark.parametrize("code", [RAISED, TIMED_OUT, VALUE_REFUSED])
def test_a_failing_call_stops_its_map(world: CallsWorld, code: int) -> None:
    conn, attempt, name = world.warm(100)
    world.did(conn, attempt, name, 0)
    world.did(conn, attempt, name, 1, codes=bytes([OK, code, OK]))
    view = world.map(name)
    assert (view.state, view.failed_index, view.failed_code, view.failure) == (State.FAILED, 2, code, b"r")
    assert (view.done, view.failed) == (4, 1)
    assert [each.map for each in world.sent(DropCalls)] == [name]
    assert world.sent(Dispatch) == []
    world.did(conn, attempt, name, 10, 5)
    assert world.accepted() == []
    assert world.opened(1)  # the runner is warm still
    assert attempt in world.given()


def test_failing_calls_that_are_returned_stop_nothing(world: CallsWorld) -> None:
    conn, attempt, name = world.warm(3, return_exceptions=True)
    world.did(conn, attempt, name, 0, code=RAISED)
    world.did(conn, attempt, name, 1, 2)
    view = world.map(name)
    assert (view.state, view.done, view.failed) == (State.SUCCEEDED, 3, 1)


def test_a_call_is_tried_again_after_a_while_then_twice_as_long(world: CallsWorld) -> None:
    conn, attempt, name = world.warm(1, retries=2, backoff_s=2.0)
    world.did(conn, attempt, name, 0, code=RAISED)
    assert world.accepted() == []
    assert len(world.sent(CallsAccepted)) == 1  # the runner lets go of it
    world.wait(1)
    assert world.given() == {}
    world.wait(1)
    assert world.given() == {attempt: [(name, 0, 1)]}
    world.did(conn, attempt, name, 0, code=TIMED_OUT)
    world.wait(3)
    assert world.given() == {}
    world.wait(1)
    assert world.given() == {attempt: [(name, 0, 1)]}
    world.did(conn, attempt, name, 0, code=RAISED)
    view = world.map(name)
    assert (view.state, view.failed_code, view.failed_index) == (State.FAILED, RAISED, 0)


def test_what_can_not_travel_is_not_tried_again(world: CallsWorld) -> None:
    conn, attempt, name = world.warm(1, retries=2)
    world.did(conn, attempt, name, 0, code=VALUE_REFUSED)
    assert world.map(name).state is State.FAILED


def test_the_others_of_a_run_are_accepted_when_one_is_tried_again(world: CallsWorld) -> None:
    conn, attempt, name = world.warm(7, retries=1)
    world.did(conn, attempt, name, 0, us=10)
    codes = bytes([OK, RAISED, OK, OK, RAISED, OK])
    world.did(conn, attempt, name, 1, codes=codes, us=10)
    assert world.accepted() == [(1, 1), (3, 2), (6, 1)]
    world.did(conn, attempt, name, 1, codes=codes, us=10)  # told again, it counts no more
    assert world.accepted() == []
    assert (world.map(name).done, len(world.live(name).put_off)) == (5, 2)
    world.wait(1)
    assert world.given() == {attempt: [(name, 2, 1), (name, 5, 1)]}
    world.did(conn, attempt, name, 1, codes=codes, us=10)


def test_a_call_whose_runner_dies_runs_once_more_and_then_has_failed(world: CallsWorld) -> None:
    conn, attempt, name = world.warm(1)
    world.gave_back(conn, attempt, name, 0, began=True)
    assert world.given() == {attempt: [(name, 0, 1)]}
    world.gave_back(conn, attempt, name, 0, began=True)
    view = world.map(name)
    assert (view.state, view.failed_code) == (State.FAILED, RUNNER_DIED)
    failure = msgspec.json.decode(view.failure, type=CallFailure)
    assert (failure.kind, failure.worker) == ("died", "box")
    assert failure.text == "its runner died 2 times while it ran it: signal 9"
    assert [row.run.codes for row in world.out.rows.values() if isinstance(row, ResultsRow)] == [bytes([RUNNER_DIED])]


def test_only_calls_without_a_result_run_again_when_a_runner_dies(world: CallsWorld) -> None:
    conn, attempt, name = world.warm(20)
    world.did(conn, attempt, name, 0)
    [(_, first, count)] = world.given()[attempt]
    world.did(conn, attempt, name, first, 5)
    world.gave_back(conn, attempt, name, first + 5, began=True)
    world.gave_back(conn, attempt, name, first + 6, count - 6)
    assert world.live(name).waiting.count + world.live(name).held == 20 - 6
    given = {index for of, low, size in world.given().get(attempt, []) for index in range(low, low + size) if of}
    assert given.isdisjoint(range(first + 5))


def test_a_lost_worker_is_held_against_the_call_that_was_first(world: CallsWorld) -> None:
    conns = [world.join(f"box{number}", slots=1) for number in range(3)]
    name = world.opened(3, spec=calls_spec(max_runners=1), return_exceptions=True)
    job = world.plane.jobs[name.split(".")[0]]
    for number in range(2):
        attempt = job.tasks[-1].attempt
        assert attempt is not None
        conn = conns[int(attempt.worker[-1])]
        world.start(conn, attempt.id)
        assert world.given() == {attempt.id: [(name, 0, 1)]}
        assert world.live(name).deaths == ({0: 1} if number else {})
        world.leave(conn)
        world.wait(60)
    view = world.map(name)
    assert (view.done, view.failed, world.live(name).waiting.first) == (1, 1, 1)
    [(_, run)] = world.out.results
    assert (run.first, run.codes) == (0, bytes([RUNNER_DIED]))


def test_the_last_result_ends_the_map_and_the_runner_is_idle(world: CallsWorld) -> None:
    conn, attempt, name = world.warm(1, single=True)
    world.did(conn, attempt, name, 0)
    view = world.map(name)
    assert (view.state, view.done, view.ended_at) == (State.SUCCEEDED, 1, world.now)
    assert world.plane.idle()
    count = world.pool(name).count()
    assert (count.maps, count.calls, count.done, count.runners) == (1, 1, 1, 1)
    assert count.idle_since == world.now

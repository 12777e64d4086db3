"""Runners: how many there are, how they end, and what becomes of their calls."""

from __future__ import annotations

from gpulayer.protocol.calls import CallRange
from gpulayer.protocol.messages import Assign, CancelAttempt, Finished, Released
from gpulayer.protocol.types import Outcome, Problem, State
from gpulayer_server.core.calls.views import waiting_map_view
from gpulayer_server.core.events import JobView
from tests.unit.server.core.calls.conftest import CallsWorld, DropCalls, EndRunner, calls_spec


def states(world: CallsWorld, name: str) -> list[State]:
    """The states of a job's leases."""
    return [task.state for task in world.plane.jobs[name.split(".")[0]].tasks]


def test_calls_of_unknown_length_get_every_free_slot_from_the_start(world: CallsWorld) -> None:
    world.join("a", slots=2)
    world.join("b", slots=1)
    name = world.opened(50)
    assert states(world, name) == [State.ASSIGNED] * 3 + [State.QUEUED]
    assert len(world.sent(Assign)) == 3


def test_there_are_never_more_runners_than_calls_or_than_the_bound(world: CallsWorld) -> None:
    world.join(slots=8)
    assert states(world, world.opened(3)) == [State.ASSIGNED] * 3
    assert states(world, world.opened(9, name="g", spec=calls_spec("g", max_runners=2))) == [State.ASSIGNED] * 2


def test_a_runner_that_waits_and_is_not_needed_ends_quietly(world: CallsWorld) -> None:
    conn, attempt, name = world.warm(3)
    assert states(world, name) == [State.RUNNING, State.QUEUED]
    world.did(conn, attempt, name, 0, us=10)
    assert states(world, name) == [State.RUNNING, State.CANCELLED]
    world.did(conn, attempt, name, 1, 2)
    end = Finished(attempt=attempt, end_offset=0, outcome=Outcome(state=State.SUCCEEDED), released=True)
    job = world.plane.jobs[name.split(".")[0]]
    world.say(conn, end)
    assert job.state is State.SUCCEEDED
    assert world.plane.jobs == {}
    assert world.plane.calls.by_job == {}


def test_an_idle_timeout_ends_the_job_and_the_next_call_makes_another(world: CallsWorld) -> None:
    conn, attempt, name = world.warm(1)
    world.did(conn, attempt, name, 0)
    world.finish(conn, attempt)
    world.release(conn, attempt)
    again = world.opened(1)
    assert again.split(".")[0] != name.split(".")[0]


def test_a_map_whose_next_arguments_are_late_holds_no_runner_meanwhile(world: CallsWorld) -> None:
    conn, attempt, name = world.warm(2, last=False)
    world.did(conn, attempt, name, 0)
    world.did(conn, attempt, name, 1)
    world.finish(conn, attempt)
    world.release(conn, attempt)
    world.wait(600)
    assert states(world, name)[-1] is State.QUEUED
    assert world.pool(name).leases == {}
    assert world.sent(Assign) == []
    world.bring(name, 2, 1, last=True)
    [assign] = world.sent(Assign)
    world.start(conn, assign.attempt)
    assert world.given() == {assign.attempt: [(name, 2, 1)]}
    world.did(conn, assign.attempt, name, 2)
    assert world.map(name).state is State.SUCCEEDED


def test_a_call_that_crosses_the_end_of_a_runner_gets_another(world: CallsWorld) -> None:
    conn, attempt, first = world.warm(1)
    world.did(conn, attempt, first, 0)
    second = world.opened(1)
    assert world.given() == {attempt: [(second, 0, 1)]}
    end = Finished(attempt=attempt, end_offset=0, outcome=Outcome(state=State.SUCCEEDED), released=True)
    world.say(conn, end)
    [assign] = world.sent(Assign)
    world.start(conn, assign.attempt)
    assert world.given() == {assign.attempt: [(second, 0, 1)]}
    assert world.live(second).deaths == {}


def test_runners_that_can_not_be_had_end_the_maps_after_the_third(world: CallsWorld) -> None:
    conn = world.join(slots=1)
    name = world.opened(2, spec=calls_spec(max_runners=1))
    for number in range(3):
        job = world.plane.jobs[name.split(".")[0]]
        attempt = job.tasks[-1].attempt
        assert attempt is not None
        outcome = Outcome(state=State.FAILED, problem="no Python 3.13 here")
        world.say(conn, Finished(attempt=attempt.id, end_offset=0, outcome=outcome, released=True))
        if number < 2:
            assert job.tasks[-1].state is State.QUEUED
            world.wait(2**number)
            assert job.tasks[-1].state is State.ASSIGNED
    view = world.map(name)
    assert view.state is State.FAILED
    assert view.problem == "3 runners could not be had, one after the other; the last: no Python 3.13 here"
    assert world.plane.jobs == {}


def test_what_no_worker_could_run_is_rejected_with_reasons(world: CallsWorld) -> None:
    world.join(slots=1)
    view = world.open(3, spec=calls_spec(gpus=1))
    assert view.state is State.REJECTED
    assert [reason.code for reason in view.reasons]
    assert view.nearest
    assert world.plane.jobs == {}


def test_a_map_that_waits_says_why(world: CallsWorld) -> None:
    world.running()
    world.running()
    world.plane.workers["id-box"].slots = 1
    view = world.open(1)
    assert (view.state, view.reasons) == (State.QUEUED, ())  # who brings many calls is answered often
    read = waiting_map_view(world.plane, view)
    assert [reason.code for reason in read.reasons] == ["slots"]
    assert waiting_map_view(world.plane, read) == read


def test_a_map_that_runs_has_nothing_to_say_of_why_it_waits(world: CallsWorld) -> None:
    *_, name = world.warm(2)
    view = world.map(name)
    assert waiting_map_view(world.plane, view) is view


def test_cancelling_the_job_cancels_its_maps_and_runners(world: CallsWorld) -> None:
    conn, attempt, name = world.warm(50)
    other = world.opened(1)
    view = world.cancel(name.split(".")[0])
    assert isinstance(view, JobView)
    assert [world.map(each).state for each in (name, other)] == [State.CANCELLED] * 2
    assert [each.attempt for each in world.sent(CancelAttempt)] == [attempt]
    new = world.opened(1)  # in a job of its own
    assert new.split(".")[0] != name.split(".")[0]
    job = world.plane.jobs[name.split(".")[0]]
    world.finish(conn, attempt, State.CANCELLED)
    assert job.state is State.CANCELLED


def test_cancelling_a_map_leaves_the_runner_warm(world: CallsWorld) -> None:
    conn, attempt, name = world.warm(50)
    view = world.cancel_map(name)
    assert view.state is State.CANCELLED
    assert [(each.attempt, each.map) for each in world.sent(DropCalls)] == [(attempt, name)]
    world.did(conn, attempt, name, 0)
    assert world.accepted() == []
    assert world.cancel_map(name).state is State.CANCELLED
    missing = world.cancel_map("nope.3")
    assert isinstance(missing, Problem)
    assert missing.status == 404
    assert world.given() == {}
    second = world.opened(1)
    assert world.given() == {attempt: [(second, 0, 1)]}


def test_an_end_that_is_wanted_waits_for_the_calls(world: CallsWorld) -> None:
    conn, attempt, name = world.warm(1)
    job = name.split(".")[0]
    view = world.end_calls(job)
    assert view.id == job
    assert world.sent(EndRunner) == []
    assert world.opened(1).split(".")[0] != job
    world.did(conn, attempt, name, 0)
    assert [each.attempt for each in world.sent(EndRunner)] == [attempt]
    gone = world.end_calls("nope")
    assert isinstance(gone, Problem)


def test_an_end_that_is_wanted_is_known_after_a_restart(world: CallsWorld) -> None:
    _, attempt, name = world.warm(1)
    job = name.split(".")[0]
    world.end_calls(job)
    world.reborn_with_maps()
    conn = world.back([(attempt, [CallRange(map=name, first=0)])])
    assert world.opened(1).split(".")[0] != job
    world.did(conn, attempt, name, 0)
    assert [each.attempt for each in world.sent(EndRunner)] == [attempt]


# ---------------------------------------------------------------- objects


def an_object(world: CallsWorld, count: int = 3) -> tuple[int, str, str]:
    """An object in its runner, with calls."""
    conn = world.join(slots=4)
    name = world.opened(count, spec=calls_spec(stateful=True, instance="m1"))
    attempt = world.lease(name.split(".")[0])
    world.start(conn, attempt)
    return conn, attempt, name


def test_an_object_has_one_runner_and_its_calls_run_in_order(world: CallsWorld) -> None:
    conn, attempt, first = an_object(world)
    second = world.opened(2, spec=calls_spec(stateful=True, instance="m1"))
    assert states(world, first) == [State.RUNNING]
    order: list[tuple[str, int]] = [(first, 0)]
    world.did(conn, attempt, first, 0)
    for _ in range(6):
        for of, low, size in world.given().get(attempt, []):
            order += [(of, index) for index in range(low, low + size)]
        if len(order) == 5:
            break
        of, index = order[-1]
        world.did(conn, attempt, of, index)
    assert order == [(first, 0), (first, 1), (first, 2), (second, 0), (second, 1)]


def test_calls_of_an_object_that_died_fail_and_so_do_later_ones(world: CallsWorld) -> None:
    conn, attempt, name = an_object(world)
    outcome = Outcome(state=State.FAILED, signal=9, problem="its runner died: signal 9")
    world.say(conn, Finished(attempt=attempt, end_offset=0, outcome=outcome), Released(attempt=attempt))
    view = world.map(name)
    assert (view.state, view.failed_index) == (State.FAILED, 0)
    assert "signal 9" in view.problem
    later = world.open(1, spec=calls_spec(stateful=True, instance="m1"))
    assert isinstance(later, Problem)
    assert (later.code, later.title) == ("object_gone", "the object is gone: its runner died: signal 9")
    assert world.sent(Assign) == []


def test_an_object_is_never_moved(world: CallsWorld) -> None:
    conn, _, name = an_object(world)
    world.leave(conn)
    world.wait(100)
    assert world.map(name).state is State.RUNNING
    assert states(world, name) == [State.UNREACHABLE]


def test_an_object_that_the_store_knows_to_be_gone_is_not_made_anew(world: CallsWorld) -> None:
    world.join()
    spec = calls_spec(stateful=True, instance="m1")
    view = world.open(1, spec=spec, gone="nobody called it for 300 s")
    assert isinstance(view, Problem)
    assert "nobody called it" in view.title

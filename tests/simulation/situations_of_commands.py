"""Situations around commands: arrays, jobs that run after others, ends that are told with the release."""

from __future__ import annotations

from gpulayer.protocol.messages import Finished, Heartbeat
from gpulayer.protocol.types import JobView, Outcome, Problem, State
from gpulayer_server.core.events import Answer, Submission, SubmittedBatch, WorkerSaid
from gpulayer_server.core.views import waiting_view
from tests.simulation.clients import spec
from tests.simulation.staging import Make, attempt_of, ended, only_task, said, staged
from tests.simulation.world import World


def name_of(world: World, key: str) -> str:
    """The job under a key."""
    return world.clients[0].wanted[key].job or ""


def looked_at(world: World, key: str) -> JobView:
    """A live job as somebody sees it who looks now."""
    plane = world.control_plane
    return waiting_view(plane.plane, plane.plane.jobs[name_of(world, key)], plane.host.clock())


def state_of(world: World, key: str) -> State:
    """What was told last of the job under a key."""
    return world.truth.views[name_of(world, key)].state


# ---------------------------------------------------------------- arrays


@staged()
def an_array_runs_once_for_each_index_and_is_over_with_the_last(make: Make) -> None:
    world = make(workers=((2, 0), (1, 0)))
    world.clients[0].submit("key", spec(1.0, command=True, array=((2, 4), (9, 10))))
    world.run(2.0)
    assert state_of(world, "key") is State.RUNNING
    view = world.truth.views[name_of(world, "key")]
    assert sum(view.tasks.values()) == 5
    ended(world)
    assert sorted(program.index for program in world.truth.programs.values()) == [2, 3, 4, 9, 10]
    assert world.truth.views[name_of(world, "key")].tasks == {"succeeded": 5}


@staged()
def one_task_of_an_array_that_fails_fails_the_array_and_no_other_task(make: Make) -> None:
    world = make(workers=((3, 0),))
    world.clients[0].submit("key", spec(20.0, command=True, array=((0, 2),)))
    world.run(2.0)
    program = next(each for each in world.truth.programs.values() if each.index == 1)
    program.kernel.die()
    ended(world)
    view = world.truth.views[name_of(world, "key")]
    assert (view.state, view.tasks) == (State.FAILED, {"failed": 1, "succeeded": 2})
    assert (view.attempt, view.outcome and view.outcome.signal) == (program.attempt, 9)


@staged()
def an_array_is_cancelled_as_a_whole(make: Make) -> None:
    world = make(workers=((1, 0),))
    world.clients[0].submit("key", spec(1.0, command=True, array=((0, 3),)))
    world.run(0.3)
    world.clients[0].cancel("key")
    ended(world)
    assert world.truth.views[name_of(world, "key")].tasks.get("cancelled", 0) >= 3
    assert len(world.truth.programs) <= 1


@staged()
def of_an_array_whose_machine_dies_only_its_tasks_there_are_tried_again(make: Make) -> None:
    world = make(workers=((2, 0), (2, 0)))
    world.clients[0].submit("key", spec(100.0, command=True, retries=1, array=((0, 3),)))
    world.run(3.0)
    dead = world.agents[0]
    lost = {each.index for each in world.truth.programs.values() if each.kernel.machine is dead.machine}
    assert len(lost) == 2
    world.kill_machine(dead)
    ended(world)
    job = world.control_plane.store.job(name_of(world, "key"))
    assert job is not None
    assert {task.index: task.attempts for task in job.tasks} == {n: 2 if n in lost else 1 for n in range(4)}


# ---------------------------------------------------------------- one after the other


@staged(restart=[False, True])
def a_job_runs_after_those_it_names_also_if_the_control_plane_began_anew(make: Make, restart: bool) -> None:
    world = make(workers=((3, 0),))
    client = world.clients[0]
    client.submit("first", spec(100.0, command=True))
    client.submit("second", spec(100.0, command=True))
    world.run(1.0)
    client.submit("last", spec(0.1, command=True, after=(name_of(world, "first"), name_of(world, "second"))))
    world.run(1.0)
    assert state_of(world, "last") is State.QUEUED
    while all(not world.truth.views[name_of(world, key)].terminal for key in ("first", "second")):
        world.run(1.0)
    world.run(3.0)
    assert {state_of(world, "first"), state_of(world, "second")} == {State.RUNNING, State.SUCCEEDED}
    assert state_of(world, "last") is State.QUEUED
    if restart:
        world.crash_control_plane(1.0)
        world.run(2.0)
        assert state_of(world, "last") is State.QUEUED
    ended(world)
    assert {state_of(world, key) for key in ("first", "second", "last")} == {State.SUCCEEDED}
    starts = [world.truth.views[name_of(world, key)].started_at or 0.0 for key in ("first", "last")]
    ends = [world.truth.views[name_of(world, key)].ended_at or 0.0 for key in ("first", "second")]
    assert starts[1] >= max(ends) - 0.1


@staged(restart=[False, True])
def a_job_after_one_that_fails_is_rejected_and_so_is_what_follows_it(make: Make, restart: bool) -> None:
    world = make(workers=((1, 0),))
    client = world.clients[0]
    client.submit("first", spec(20.0, command=True))
    world.run(2.0)
    client.submit("next", spec(0.1, command=True, array=((0, 1),), after=(name_of(world, "first"),)))
    world.run(1.0)
    client.submit("last", spec(0.1, command=True, after=(name_of(world, "next"),)))
    world.run(1.0)
    if restart:
        world.crash_control_plane(1.0)
        world.run(3.0)
    next(iter(world.truth.programs.values())).kernel.die()
    ended(world)
    assert [state_of(world, key) for key in ("first", "next", "last")] == [
        State.FAILED,
        State.REJECTED,
        State.REJECTED,
    ]
    (reason,) = world.truth.views[name_of(world, "last")].reasons
    assert (reason.code, name_of(world, "next") in reason.text) == ("after", True)
    assert len(world.truth.programs) == 1


@staged()
def a_job_after_one_that_ended_long_ago_runs_at_once(make: Make) -> None:
    world = make(workers=((1, 0),))
    client = world.clients[0]
    client.submit("first", spec(0.1, command=True))
    world.run(20.0)
    assert not world.control_plane.plane.done
    client.submit("last", spec(0.1, command=True, after=(name_of(world, "first"),)))
    world.run(5.0)
    assert state_of(world, "last").value in ("running", "succeeded")
    ended(world)


@staged()
def a_job_that_waits_for_another_can_be_cancelled(make: Make) -> None:
    world = make(workers=((1, 0),))
    client = world.clients[0]
    client.submit("first", spec(20.0, command=True))
    world.run(2.0)
    client.submit("last", spec(0.1, command=True, after=(name_of(world, "first"),)))
    world.run(1.0)
    view = looked_at(world, "last")
    assert ([reason.code for reason in view.reasons], view.ahead) == (["after"], 0)
    client.cancel("last")
    world.run(1.0)
    assert state_of(world, "last") is State.CANCELLED
    assert [view.state for view in ended(world)] == [State.SUCCEEDED, State.CANCELLED]


# ---------------------------------------------------------------- priority, room


@staged()
def a_higher_priority_goes_before_what_waits_longer(make: Make) -> None:
    world = make(workers=((1, 0),))
    client = world.clients[0]
    for key, priority in (("runs", 0), ("low", 0), ("high", 7), ("higher", 9)):
        client.submit(key, spec(2.0, command=True, priority=priority))
        world.run(0.3)
    ended(world)
    order = sorted(("low", "high", "higher"), key=lambda key: world.truth.views[name_of(world, key)].started_at or 0.0)
    assert order == ["higher", "high", "low"]


@staged()
def room_is_given_in_the_order_of_coming_whatever_was_asked_for(make: Make) -> None:
    """Those who ask for the same stand in one line; of many lines that goes on whose first one came first."""
    world = make(workers=((3, 0),))
    world.crash_agent(world.agents[0], 5.0)
    world.run(1.0)
    for key, worker in (("a1", None), ("b1", "w0"), ("a2", None), ("a3", None), ("b2", "w0")):
        world.clients[0].submit(key, spec(50.0, command=True, worker=worker))
        world.run(0.5)
    assert [reason.code for reason in looked_at(world, "a1").reasons] == ["out_of_reach"]
    assert [looked_at(world, key).ahead for key in ("a1", "b1", "a3", "b2")] == [0, 0, 2, 1]
    world.run(5.0)
    waiting = [task for task in world.control_plane.plane.tasks.values() if task.state is State.QUEUED]
    assert {task.job for task in waiting} == {name_of(world, "a3"), name_of(world, "b2")}
    assert {view.state for view in ended(world)} == {State.SUCCEEDED}


@staged()
def a_worker_that_says_it_is_full_takes_nothing_until_it_is_not(make: Make) -> None:
    world = make(workers=((2, 0),))
    world.run(0.2)  # it says how it is once a second
    plane = world.control_plane
    conn = plane.plane.workers["id-w0"].conn or 0
    plane.handle(WorkerSaid(conn=conn, messages=(Heartbeat(full="its disk is full"),)))
    world.clients[0].submit("key", spec(0.1, command=True))
    world.run(0.1)
    assert only_task(world).state is State.QUEUED
    assert [(reason.code, reason.text) for reason in looked_at(world, "key").reasons] == [("disk", "its disk is full")]
    world.run(3.0)  # its next heartbeat says that there is room
    assert [view.state for view in ended(world)] == [State.SUCCEEDED]


# ---------------------------------------------------------------- ends


@staged()
def an_end_with_the_release_is_answered_once_and_frees_the_slot(make: Make) -> None:
    world = make(workers=((1, 0),))
    for number in range(12):
        world.clients[0].submit(f"key{number}", spec(0.05, command=True, quiet=True))
    world.run(30.0)
    assert said(world, "sends", "Finished(", "released=True")
    assert said(world, "cp", "sends", "Forget(", "Assign(")  # what follows goes in the same frame
    assert all(view.terminal for view in ended(world))


@staged(released=[False, True])
def of_a_frame_that_lacks_bytes_nothing_counts_from_there_on(make: Make, released: bool) -> None:
    world = make(workers=((2, 0),), repeated_words=1e-12)
    for key in ("one", "other"):
        world.clients[0].submit(key, spec(100.0, command=True))
    world.run(3.0)
    one, other = [attempt_of(task) for task in world.control_plane.plane.tasks.values()]
    worker = world.control_plane.plane.workers["id-w0"]
    well = Outcome(state=State.SUCCEEDED)
    lacking = Finished(attempt=one.id, end_offset=10**6, outcome=well, released=released)
    whole = Finished(attempt=other.id, end_offset=0, outcome=well, released=released)
    before = worker.conn
    world.control_plane.handle(WorkerSaid(conn=worker.conn or 0, messages=(lacking, whole)))
    assert (one.over, other.over) == (False, False)
    world.run(5.0)
    assert worker.conn not in (None, before)
    assert [view.state for view in ended(world)] == [State.SUCCEEDED, State.SUCCEEDED]


@staged()
def a_job_after_one_that_has_ended_a_moment_ago_is_taken_before_that_is_written(make: Make) -> None:
    world = make(workers=((1, 0),))
    client = world.clients[0]
    client.submit("first", spec(0.1, command=True))
    while not world.truth.programs:
        world.run(0.01)
    world.control_plane.commit_s = 6.0
    while world.control_plane.plane.jobs:
        world.run(0.01)
    assert world.control_plane.store.states([name_of(world, "first")]) == {name_of(world, "first"): None}
    client.submit("last", spec(0.1, command=True, after=(name_of(world, "first"),)))
    world.run(0.1)
    world.control_plane.commit_s = 0.01
    assert [view.state for view in ended(world)] == [State.SUCCEEDED, State.SUCCEEDED]


# ---------------------------------------------------------------- batches


def batch(world: World, *jobs: tuple[str, str], after: tuple[str, ...] = ()) -> list[Answer]:
    """Submits jobs with these keys and payloads in one event; the answers, once there are any."""
    answers: list[Answer] = []
    submissions = tuple(
        Submission(key=key, payload_hash=payload, spec=spec(1.0, command=True, after=after)) for key, payload in jobs
    )
    world.control_plane.request(
        lambda n: SubmittedBatch(request=n, owner="owner0", submissions=submissions),
        answers.append,
    )
    return answers


@staged()
def a_batch_is_taken_as_a_whole_or_not_at_all(make: Make) -> None:
    world = make(workers=((1, 0),))
    plane = world.control_plane
    first = batch(world, ("a", "1"), ("b", "1"), ("a", "1"))
    world.run(0.3)
    [(a, b, again)] = [answer for answer in first if isinstance(answer, tuple)]
    assert (a, a != b) == (again, True)
    assert plane.plane.last_job_n == 2
    for refused in (batch(world, ("c", "1"), ("b", "2")), batch(world, ("c", "1"), ("d", "1"), ("c", "2"))):
        world.run(0.3)
        assert [answer.code for answer in refused if isinstance(answer, Problem)] == ["key_conflict"]
    unknown = batch(world, ("c", "1"), after=("none",))
    world.run(0.3)
    assert [answer.code for answer in unknown if isinstance(answer, Problem)] == ["no_such_job"]
    assert plane.plane.last_job_n == 2
    last = batch(world, ("b", "1"), ("c", "1"))
    world.run(0.3)
    assert [answer[0] for answer in last if isinstance(answer, tuple)] == [b]
    ended(world)
    assert len(world.truth.programs) == 3

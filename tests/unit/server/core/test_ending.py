"""Jobs with many tasks, and jobs that run after others."""

from __future__ import annotations

from typing import Any

from gpulayer.protocol.messages import Assign, CancelAttempt, HeldAttempt
from gpulayer.protocol.types import CommandSpec, JobSpec, State
from gpulayer_server.core.events import Tick
from gpulayer_server.core.state import JobEnd

RUN = CommandSpec(argv=("run",))


def command(**more: Any) -> JobSpec:
    return JobSpec(command=RUN, **more)


def ends(world: Any) -> list[tuple[str, State]]:
    return [(row.id, row.state) for row in world.out.rows.values() if isinstance(row, JobEnd)]


# ---------------------------------------------------------------- arrays


def test_an_array_is_a_task_for_each_index_in_their_order(world: Any) -> None:
    world.join(slots=8)
    view = world.ask(command(array=((2, 3), (7, 7)), after=()))
    assert (view.state, view.tasks) == (State.ASSIGNED, {"assigned": 3})
    assigned = world.sent(Assign)
    assert [(each.job, each.index) for each in assigned] == [(view.id, 2), (view.id, 3), (view.id, 7)]
    assert [each.spec for each in assigned] == [command()] * 3  # what the others do is not a worker's business
    assert [task.id for task in world.plane.jobs[view.id].tasks] == [f"{view.id}/{n}" for n in (2, 3, 7)]


def test_an_array_is_over_with_its_last_task_and_failed_with_any(world: Any) -> None:
    conn = world.join(slots=8)
    job = world.ask(command(array=((0, 2),))).id
    attempts = [task.attempt.id for task in world.plane.jobs[job].tasks]
    for attempt, state in zip(attempts, (State.SUCCEEDED, State.FAILED), strict=False):
        world.start(conn, attempt)
        world.finish(conn, attempt, state)
        world.release(conn, attempt)
        assert ends(world) == []
        assert not world.view(job).terminal
    assert world.view(job).tasks == {"assigned": 1, "failed": 1, "succeeded": 1}
    world.start(conn, attempts[2])
    world.finish(conn, attempts[2])
    assert ends(world) == [(job, State.FAILED)]
    view = world.view(job)
    assert (view.state, view.attempt, view.tasks) == (State.FAILED, attempts[1], {"failed": 1, "succeeded": 2})
    world.release(conn, attempts[2])
    assert world.plane.idle()
    assert world.plane.tasks == {}


def test_the_shown_task_is_the_first_that_goes_on(world: Any) -> None:
    conn = world.join(slots=2)
    job = world.ask(command(array=((0, 3),))).id
    first, second = world.plane.jobs[job].tasks[:2]
    world.start(conn, second.attempt.id)
    assert (world.view(job).state, world.view(job).attempt) == (State.RUNNING, second.attempt.id)
    world.start(conn, first.attempt.id)
    assert world.view(job).attempt == first.attempt.id


def test_cancelling_an_array_ends_what_waits_and_asks_for_the_end_of_the_rest(world: Any) -> None:
    conn = world.join(slots=1)
    job = world.ask(command(array=((0, 3),), grace_s=33.0)).id
    running = world.plane.jobs[job].tasks[0].attempt.id
    view = world.cancel(job)
    assert [(each.attempt, each.grace_s) for each in world.sent(CancelAttempt)] == [(running, 33.0)]
    assert (view.state, view.tasks) == (State.ASSIGNED, {"assigned": 1, "cancelled": 3})
    world.finish(conn, running, State.CANCELLED)
    assert ends(world) == [(job, State.CANCELLED)]


def test_an_arrays_tasks_are_tried_again_each_by_itself(world: Any) -> None:
    conn = world.join("one", slots=1)
    world.join("two", slots=1)
    job = world.ask(command(array=((0, 1),), retries=1)).id
    world.leave(conn)
    world.wait(61)
    tasks = world.plane.jobs[job].tasks
    assert sorted((task.lost, task.attempts) for task in tasks) == [(0, 1), (1, 1)]
    assert sorted(task.state.value for task in tasks) == ["assigned", "queued"]


# ---------------------------------------------------------------- priority


def test_a_higher_priority_is_placed_first_whatever_it_asks_for(world: Any) -> None:
    conn = world.join(slots=1, gpus=1)
    running = world.submit().attempt
    low = world.submit().id
    plain = world.ask(command(priority=1)).id
    high = world.submit(gpus=1).id
    higher = world.ask(command(priority=5)).id
    order: list[str] = []
    for _ in range(4):
        world.start(conn, running)
        world.finish(conn, running)
        world.release(conn, running)
        [assign] = world.sent(Assign)
        order.append(assign.job)
        running = assign.attempt
    assert order == [higher, plain, low, high]


# ---------------------------------------------------------------- one after the other


def finished(world: Any, conn: int, job: str, state: State = State.SUCCEEDED) -> None:
    attempt = world.attempt(job).id
    world.start(conn, attempt)
    world.finish(conn, attempt, state)


def test_a_job_waits_until_all_have_succeeded(world: Any) -> None:
    conn = world.join(slots=4)
    one, other = world.submit().id, world.submit().id
    view = world.ask(command(after=(one, other)))
    assert view.state is State.QUEUED
    assert [reason.text for reason in world.view(view.id).reasons] == [
        f"waits until job {name} has succeeded" for name in (one, other)
    ]
    finished(world, conn, one)
    assert world.assigned() == []
    assert [reason.code for reason in world.view(view.id).reasons] == ["after"]
    finished(world, conn, other)
    assert world.assigned() == [view.id]
    assert view.id in world.out.changed


def test_a_job_after_one_that_failed_is_rejected_with_all_that_follows(world: Any) -> None:
    conn = world.join(slots=4)
    first = world.submit().id
    second = world.ask(command(after=(first,), array=((0, 1),))).id
    third = world.ask(command(after=(second,))).id
    finished(world, conn, first, State.FAILED)
    assert sorted(ends(world)) == sorted([(first, State.FAILED), (second, State.REJECTED), (third, State.REJECTED)])
    job = world.out.jobs[second]
    [reason] = job.tasks[1].reasons
    assert (reason.code, reason.text) == ("after", f"it was to run after {first} had succeeded, which ended as failed")
    assert job.tasks[0].outcome.problem == f"job {first}, which had to succeed first, ended as failed"
    assert third not in world.plane.jobs


def test_a_job_after_one_that_ended_already_runs_or_is_rejected_at_once(world: Any) -> None:
    world.join(slots=4)
    assert world.ask(command(after=("long",)), ended={"long": State.SUCCEEDED}).state is State.ASSIGNED
    assert world.ask(command(after=("long",)), ended={"long": State.CANCELLED}).state is State.REJECTED


def test_a_job_that_has_just_ended_counts_before_the_store_has_it(world: Any) -> None:
    conn = world.join(slots=4)
    job = world.submit().id
    finished(world, conn, job)
    world.release(conn, world.out.jobs[job].tasks[0].attempt.id)
    assert job not in world.plane.jobs
    assert world.ask(command(after=(job,))).state is State.ASSIGNED


def test_a_job_after_one_that_nobody_knows_is_refused(world: Any) -> None:
    problem = world.ask(command(after=("none",)))
    assert (problem.status, problem.code, problem.title) == (
        404,
        "no_such_job",
        "no job none, after which it is to run",
    )
    assert not world.out.rows


def test_what_waits_for_what_is_found_again_after_a_start(world: Any) -> None:
    conn = world.join(slots=1)
    first = world.submit().id
    attempt = world.attempt(first).id
    world.start(conn, attempt)
    second = world.ask(command(after=(first, "long")), ended={"long": State.SUCCEEDED}).id
    world.reborn(succeeded={"long"})
    conn = world.join(slots=1, attempts=(HeldAttempt(attempt=attempt, started=True),))
    assert world.plane.jobs[second].waits_for == {first}
    world.finish(conn, attempt)
    world.release(conn, attempt)
    assert world.assigned() == [second]


def test_a_start_that_finds_no_trace_of_one_that_is_named_says_so(world: Any) -> None:
    world.join(slots=1)
    first = world.submit().id
    second = world.ask(command(after=(first, "long")), ended={"long": State.SUCCEEDED}).id
    world.reborn()
    world.do(Tick())
    [reason] = world.out.jobs[second].tasks[0].reasons
    assert reason.text == "it was to run after long had succeeded, which is not there any more"


def test_jobs_that_live_ones_name_are_known(world: Any) -> None:
    world.join(slots=1)
    first = world.submit().id
    second = world.ask(command(after=(first,))).id
    assert world.plane.named == {first: 1}
    world.cancel(second)
    assert world.plane.named == {}


def test_the_end_of_the_first_ends_a_chain_of_any_length(world: Any) -> None:
    conn = world.join()
    first = last = world.ask(command()).id
    for _ in range(500):
        last = world.ask(command(after=(last,))).id
    world.finish(conn, world.attempt(first).id, State.FAILED)
    assert len(ends(world)) == 501
    assert world.plane.state_of(last) is State.REJECTED

"""Names, idempotent submission, and cancelling."""

from __future__ import annotations

from gpulayer.protocol.messages import CancelAttempt, HeldAttempt
from gpulayer.protocol.types import State
from gpulayer_server.core.jobs import job_name


def test_names_are_distinct_and_short():
    names = [job_name(n) for n in range(50_000)]
    assert len(set(names)) == 50_000
    assert {len(name) for name in names} == {4}


def test_a_name_grows_a_letter_when_four_are_used_up():
    assert len(job_name(31**4 - 1)) == 4
    assert len(job_name(31**4)) == 5


def test_the_same_key_and_payload_make_one_job(world):
    world.join()
    first = world.submit("k")
    again = world.submit("k")
    assert again == first
    assert len(world.plane.jobs) == 1
    assert not world.out.rows


def test_the_same_key_with_another_payload_is_a_conflict(world):
    job = world.submit("k").id
    problem = world.submit("k", payload="other")
    assert (problem.status, problem.code) == (409, "key_conflict")
    assert "'k'" in problem.detail
    assert job in problem.detail


def test_keys_of_different_owners_are_different_keys(world):
    assert world.submit("k", owner="ann").id != world.submit("k", owner="bob").id


def test_a_key_finds_a_job_that_just_ended(world):
    conn, job, attempt = world.running(key="k")
    world.finish(conn, attempt)
    world.release(conn, attempt)
    assert job not in world.plane.jobs
    assert world.submit("k").id == job


def test_a_submission_commits_job_and_task_and_names_the_change(world):
    job = world.submit().id
    kinds = sorted(type(row).__name__ for row in world.out.rows.values())
    assert kinds == ["Job", "JobEnd", "Task"]  # rejected at once: no worker could take it
    assert world.out.changed == {job}


def test_cancel_of_a_queued_job_ends_it_at_once(world):
    world.join(slots=1)
    world.submit()
    waiting = world.submit().id
    view = world.cancel(waiting)
    assert view.state is State.CANCELLED
    assert not world.sent(CancelAttempt)
    assert len(world.plane.queue) == 0


def test_cancel_of_an_assigned_job_waits_for_its_worker(world):
    conn = world.join(slots=1)
    job = world.submit().id
    view = world.cancel(job)
    assert (view.state, view.cancelling) == (State.ASSIGNED, True)
    [order] = world.sent(CancelAttempt)
    assert order.attempt == view.attempt
    world.give_back(conn, view.attempt)
    assert world.out.jobs[job].tasks[0].state is State.CANCELLED


def test_cancel_of_a_running_job_ends_when_its_worker_says_so(world):
    conn, job, attempt = world.running()
    assert world.cancel(job).state is State.RUNNING
    [order] = world.sent(CancelAttempt)
    assert (order.attempt, order.grace_s) == (attempt, 5.0)
    world.finish(conn, attempt, State.CANCELLED)
    assert world.state(job) is State.CANCELLED


def test_a_program_that_succeeds_in_spite_of_a_cancel_has_succeeded(world):
    conn, job, attempt = world.running()
    world.cancel(job)
    world.finish(conn, attempt)
    assert world.state(job) is State.SUCCEEDED


def test_a_cancel_wish_outlives_a_connection(world):
    conn, job, attempt = world.running()
    world.leave(conn)
    world.cancel(job)
    assert not world.sent(CancelAttempt)
    world.join(attempts=(HeldAttempt(attempt=attempt, started=True),))
    assert world.verdict().go_on
    assert [order.attempt for order in world.sent(CancelAttempt)] == [attempt]


def test_cancel_of_a_job_that_is_not_live_is_an_error(world):
    problem = world.cancel("none")
    assert (problem.status, problem.code) == (404, "no_such_job")
    assert "none" in problem.title


def test_giving_up_an_unreachable_job_fails_it_and_truncates_its_stream(world):
    conn, job, attempt = world.running(retries=3)
    world.leave(conn)
    world.wait(6)
    assert world.state(job) is State.UNREACHABLE
    view = world.cancel(job, give_up=True)
    assert view.state is State.FAILED
    assert "given up" in view.outcome.problem
    assert [name for name, _ in world.out.marks] == [attempt]
    assert view.end_offset is None


def test_a_job_given_up_holds_its_slot_until_its_worker_returns(world):
    conn, job, attempt = world.running()
    worker = world.plane.workers["id-box"]
    world.leave(conn)
    world.wait(6)
    world.cancel(job, give_up=True)
    assert list(worker.holders) == [attempt]
    conn = world.join(attempts=(HeldAttempt(attempt=attempt, started=True),))
    verdict = world.verdict()
    assert (verdict.go_on, verdict.recorded) == (False, False)
    assert list(worker.holders) == [attempt]
    world.release(conn, attempt)
    assert not worker.holders
    assert world.plane.idle()


def test_a_plain_cancel_of_an_unreachable_job_waits(world):
    conn, job, _ = world.running()
    world.leave(conn)
    world.wait(6)
    assert world.cancel(job).state is State.UNREACHABLE

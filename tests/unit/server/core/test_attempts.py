"""What workers say of attempts, and what follows."""

from __future__ import annotations

import pytest

from gpulayer.protocol.messages import (
    Assign,
    Finished,
    Forget,
    Heartbeat,
    HeartbeatAck,
    HeldAttempt,
    Progress,
    Recorded,
    Started,
)
from gpulayer.protocol.types import Outcome, State
from gpulayer_server.core.attempts import lose, requeue_unstarted
from gpulayer_server.core.events import Effects
from gpulayer_server.core.state import Attempt


def test_an_attempt_goes_from_assigned_to_its_end(world):
    conn = world.join()
    job = world.submit().id
    attempt = world.attempt(job).id
    assert world.state(job) is State.ASSIGNED
    world.now += 1
    world.start(conn, attempt)
    assert world.state(job) is State.RUNNING
    assert world.attempt(job).started_at == world.now
    world.now += 1
    world.finish(conn, attempt, end=7)
    assert world.out.sends == [(conn, Recorded(attempt=attempt))]
    view = world.view(job)
    assert (view.state, view.end_offset, view.ended_at) == (State.SUCCEEDED, 7, world.now)
    world.release(conn, attempt)
    assert (conn, Forget(attempt=attempt)) in world.out.sends
    assert world.plane.idle()


def test_slot_and_devices_are_held_until_released(world):
    conn = world.join(slots=1, gpus=1)
    first = world.submit(gpus=1).id
    second = world.submit(gpus=1).id
    worker = world.plane.workers["id-box"]
    attempt = world.attempt(first).id
    assert [device.uuid for device in world.attempt(first).devices] == ["box-gpu0"]
    world.start(conn, attempt)
    world.finish(conn, attempt)
    assert (worker.slots_free, worker.devices_free, world.state(second)) == (0, [], State.QUEUED)
    world.release(conn, attempt)
    assert world.assigned() == [second]


def test_finished_with_bytes_missing_closes_the_connection_and_records_nothing(world):
    conn, job, attempt = world.running()
    outcome = Outcome(state=State.SUCCEEDED)
    world.say(conn, Finished(attempt=attempt, end_offset=10, outcome=outcome), acked=9)
    assert [closed for closed, _ in world.out.closes] == [conn]
    assert not world.out.sends
    assert world.state(job) is State.RUNNING


def test_a_repeated_finished_is_answered_and_changes_nothing(world):
    conn, job, attempt = world.running()
    world.finish(conn, attempt)
    world.finish(conn, attempt, State.FAILED)
    assert world.out.sends == [(conn, Recorded(attempt=attempt))]
    assert not world.out.rows
    assert world.state(job) is State.SUCCEEDED


def test_finished_may_come_for_an_attempt_that_never_said_started(world):
    conn = world.join()
    job = world.submit().id
    world.finish(conn, world.attempt(job).id, State.FAILED)
    assert world.state(job) is State.FAILED
    other = world.submit().id
    world.finish(conn, world.attempt(other).id)
    assert world.state(other) is State.SUCCEEDED


def test_words_of_another_worker_change_nothing(world):
    _, job, attempt = world.running()
    other = world.join("other")
    world.finish(other, attempt)
    world.release(other, attempt)
    assert world.state(job) is State.RUNNING
    assert attempt in world.plane.attempts


def test_words_on_a_closed_connection_change_nothing(world):
    conn, job, attempt = world.running()
    world.leave(conn)
    world.finish(conn, attempt)
    assert not world.out.sends
    assert world.state(job) is State.RUNNING


def test_not_started_puts_the_task_back_before_later_ones(world):
    conn = world.join(slots=1)
    first, second = world.submit().id, world.submit().id
    attempt = world.attempt(first).id
    world.give_back(conn, attempt)
    assert (conn, Forget(attempt=attempt)) in world.out.sends
    assert world.assigned() == [first]
    assert world.attempt(first).id != attempt
    assert world.view(first).attempts == 2
    assert world.state(second) is State.QUEUED


def test_not_started_uses_up_no_retry(world):
    conn = world.join()
    job = world.submit(retries=1).id
    world.give_back(conn, world.attempt(job).id)
    assert world.plane.jobs[job].tasks[0].lost == 0


def test_an_attempt_given_back_after_a_loss_of_touch_waits_again(world):
    conn = world.join()
    job = world.submit().id
    attempt = world.attempt(job).id
    world.leave(conn)
    world.wait(5)
    conn = world.join(attempts=(HeldAttempt(attempt=attempt),))
    assert world.state(job) is State.RUNNING
    world.give_back(conn, attempt)
    assert world.assigned() == [job]


def test_an_attempt_that_never_started_and_is_not_wanted_ends_cancelled(world):
    conn = world.join()
    job = world.submit().id
    attempt = world.attempt(job).id
    world.leave(conn)
    world.wait(5)
    world.cancel(job)
    conn = world.join(attempts=(HeldAttempt(attempt=attempt),))
    world.give_back(conn, attempt)
    assert world.out.jobs[job].tasks[0].state is State.CANCELLED
    assert world.plane.idle()


def test_a_lease_that_ends_with_a_retry_left_queues_the_task_again(world):
    conn, job, attempt = world.running(retries=1)
    world.join("full", slots=1)
    world.submit(worker="full")
    world.leave(conn)
    world.wait(59)
    assert world.state(job) is State.UNREACHABLE
    world.wait(1)
    assert [name for name, _ in world.out.marks] == [attempt]
    assert world.state(job) is State.QUEUED
    assert not world.plane.accepts_output(conn, attempt)


def test_the_retry_runs_on_another_worker(world):
    conn, job, attempt = world.running(retries=1)
    other = world.join("other")
    world.leave(conn)
    world.wait(60)
    assert world.assigned() == [job]
    assert world.attempt(job).worker == "id-other"
    retry = world.attempt(job).id
    world.start(other, retry)
    world.finish(other, retry)
    assert (world.state(job), world.view(job).attempts) == (State.SUCCEEDED, 2)
    assert list(world.plane.workers["id-box"].holders) == [attempt]


def test_a_second_loss_without_a_retry_left_fails_the_task(world):
    conn, job, _ = world.running(retries=1)
    other = world.join("other")
    world.leave(conn)
    world.wait(60)
    world.start(other, world.attempt(job).id)
    world.leave(other)
    world.wait(60)
    view = world.view(job)
    assert view.state is State.FAILED
    assert "out of reach for 60 s" in view.outcome.problem


def test_without_retries_nothing_expires(world):
    conn, job, _ = world.running()
    world.leave(conn)
    world.wait(300)
    assert world.state(job) is State.UNREACHABLE
    assert not world.out.marks


def test_a_released_attempt_whose_end_was_never_told_is_lost(world):
    conn, job, attempt = world.running()
    world.release(conn, attempt)
    assert [name for name, _ in world.out.marks] == [attempt]
    assert world.out.jobs[job].tasks[0].state is State.FAILED
    assert world.plane.idle()


def test_output_is_accepted_from_the_holder_while_it_is_not_over(world):
    conn, _, attempt = world.running()
    other = world.join("other")
    accepts = world.plane.accepts_output
    assert accepts(conn, attempt)
    assert not accepts(other, attempt)
    world.finish(conn, attempt)
    assert not accepts(conn, attempt)


def test_progress_is_shown_until_the_program_runs(world):
    conn = world.join()
    job = world.submit().id
    attempt = world.attempt(job).id
    world.say(conn, Progress(attempt=attempt, text="sending 3 of 9 files"))
    assert world.view(job).progress == "sending 3 of 9 files"
    assert world.out.changed == {job}
    assert not world.out.rows
    world.start(conn, attempt)
    assert world.view(job).progress == ""


def test_a_heartbeat_is_answered_and_its_notes_are_kept(world):
    conn = world.join()
    world.say(conn, Heartbeat(notes=("disk is full",)))
    assert world.out.sends == [(conn, HeartbeatAck())]
    assert world.out.fleet_changed
    assert world.plane.workers["id-box"].notes == ("disk is full",)
    world.say(conn, Heartbeat(notes=("disk is full",)))
    assert not world.out.fleet_changed


def test_a_task_without_an_attempt_cannot_be_lost_or_given_back(world):
    world.join(slots=1)
    world.submit()
    task = world.plane.jobs[world.submit().id].tasks[0]
    with pytest.raises(RuntimeError, match="no attempt to lose"):
        lose(world.plane, task, "x", world.now, Effects())
    with pytest.raises(RuntimeError, match="no attempt to give back"):
        requeue_unstarted(world.plane, task, "x", world.now, Effects())


# ---------------------------------------------------------------- frames


def an_end(attempt: str, *, end: int = 0, state: State = State.SUCCEEDED, **more: object) -> Finished:
    return Finished(attempt=attempt, end_offset=end, outcome=Outcome(state=state, wall_s=2.0), **more)  # type: ignore[arg-type]


def test_an_end_with_the_release_frees_slot_and_devices_in_one_unit(world):
    conn = world.join(slots=1, gpus=1)
    first = world.submit(gpus=1).id
    second = world.submit(gpus=1).id
    attempt = world.attempt(first)
    world.now += 10.0
    world.say(conn, an_end(attempt.id, began=True, released=True))
    assert [type(message) for _, message in world.out.sends] == [Forget, Assign]
    assert world.assigned() == [second]
    assert (attempt.started_at, attempt.ended_at) == (world.now - 2.0, world.now)
    assert (attempt.over, attempt.released) == (True, True)
    assert len([row for row in world.out.rows.values() if isinstance(row, Attempt)]) == 2  # its own, and the next one's
    assert first not in world.plane.jobs
    assert world.out.jobs[first].state is State.SUCCEEDED


def test_a_begin_is_never_told_to_be_before_the_assignment(world):
    conn = world.join()
    job = world.submit().id
    attempt = world.attempt(job)
    world.say(conn, an_end(attempt.id, began=True, released=True))
    assert attempt.started_at == attempt.assigned_at


def test_a_begin_that_is_told_with_the_end_counts_also_after_a_parting(world):
    conn = world.join()
    job = world.submit().id
    attempt = world.attempt(job)
    world.leave(conn)
    world.wait(6)
    conn = world.join(attempts=(HeldAttempt(attempt=attempt.id),))
    assert (world.state(job), attempt.started_at) == (State.RUNNING, None)
    world.say(conn, an_end(attempt.id, began=True, released=True))
    assert attempt.started_at == world.now - 2.0


def test_an_end_without_a_begin_is_none_of_a_program(world):
    conn = world.join()
    attempt = world.attempt(world.submit().id)
    world.say(conn, an_end(attempt.id, state=State.FAILED, released=True))
    assert attempt.started_at is None


def test_an_end_with_the_release_is_forgotten_whatever_is_known_of_it(world):
    conn, job, attempt = world.running(retries=1)
    world.say(conn, an_end("never heard of", released=True))
    assert world.sent(Forget) == [Forget(attempt="never heard of")]
    world.join("other")
    world.leave(conn)
    world.wait(61)
    conn = world.join(attempts=(HeldAttempt(attempt=attempt, started=True, ended=True),))
    assert world.plane.attempts[attempt].over
    world.say(conn, an_end(attempt, released=True))
    assert attempt not in world.plane.attempts
    assert world.sent(Forget) == [Forget(attempt=attempt)]
    assert world.plane.jobs[job].tasks[0].lost == 1


def test_all_of_a_frame_is_one_unit_and_is_placed_once(world):
    conn = world.join(slots=2)
    jobs = [world.submit().id for _ in range(4)]
    attempts = [world.attempt(job).id for job in jobs[:2]]
    world.say(conn, *(Started(attempt=name) for name in attempts), *(an_end(name, released=True) for name in attempts))
    assert world.assigned() == jobs[2:]
    assert world.out.changed == set(jobs)
    assert [world.out.jobs[job].state for job in jobs] == [State.SUCCEEDED, State.SUCCEEDED, None, None]


def test_after_missing_bytes_nothing_of_a_frame_counts(world):
    conn = world.join(slots=2)
    one, other = world.attempt(world.submit().id), world.attempt(world.submit().id)
    world.say(conn, Started(attempt=one.id), an_end(one.id, end=10), an_end(other.id, released=True), acked=9)
    assert world.out.closes == [(conn, "bytes are missing")]
    assert (one.started_at is None, one.over, other.over) == (False, False, False)


def test_an_attempt_says_why_it_was_lost_or_given_back(world):
    conn, job, attempt = world.running(retries=1)
    lost = world.plane.attempts[attempt]
    other = world.join("other")
    world.leave(conn)
    world.wait(61)
    assert "was out of reach for" in lost.problem
    given_back = world.attempt(job)
    world.give_back(other, given_back.id)
    assert given_back.problem == "given back: no room"
    assert world.attempt(job).problem == ""


def test_a_worker_that_says_it_is_full_takes_nothing_until_it_says_otherwise(world):
    conn = world.join()
    world.say(conn, Heartbeat(full="its disk has 0.4 GB left"))
    assert world.out.fleet_changed
    job = world.submit().id
    [reason] = world.view(job).reasons
    assert (reason.code, reason.text, reason.temporary) == ("disk", "its disk has 0.4 GB left", True)
    world.say(conn, Heartbeat())
    assert world.assigned() == [job]

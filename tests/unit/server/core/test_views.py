"""What clients see."""

from __future__ import annotations

from gpulayer.protocol.types import CommandSpec, JobSpec, State
from gpulayer_server.core.views import attempt_view, job_view, session_view, stored_view, task_view, worker_view


def test_a_jobs_view_follows_it(world):
    conn = world.join()
    view = world.submit(session="s")
    assert (view.owner, view.session, view.submitted_at) == ("ann", "s", 1000.0)
    assert (view.attempts, view.worker, view.started_at, view.end_offset) == (1, "box", None, None)
    world.now += 3
    world.start(conn, view.attempt)
    assert world.view(view.id).started_at == 1003.0
    world.cancel(view.id)
    assert world.view(view.id).cancelling
    world.finish(conn, view.attempt, State.CANCELLED, end=5)
    view = world.view(view.id)
    assert (view.state, view.cancelling, view.end_offset) == (State.CANCELLED, False, 5)
    assert view.terminal


def test_a_waiting_job_has_reasons_only_when_somebody_reads_them(world):
    world.join(slots=1)
    world.submit()
    job = world.plane.jobs[world.submit().id]
    assert job_view(world.plane, job).reasons == ()
    assert world.view(job.id).reasons != ()


def test_a_stored_view_needs_no_plane_and_falls_back_to_the_workers_id(world):
    _, job, _ = world.running()
    record = world.plane.jobs[job]
    assert stored_view(record, {"id-box": "box"}) == job_view(world.plane, record)
    assert stored_view(record, {}).worker == "id-box"


def test_a_workers_view_tells_what_is_free(world):
    conn = world.join(slots=3, gpus=2)
    world.submit(gpus=1)
    world.submit(session="s")
    worker = world.plane.workers["id-box"]
    view = worker_view(world.plane, worker)
    assert (view.name, view.connected, view.slots, view.slots_free, view.sessions) == ("box", True, 3, 1, 1)
    assert view.devices_free == ("box-gpu1",)
    world.leave(conn)
    assert not worker_view(world.plane, worker).connected


def test_a_sessions_view_names_the_job_in_it(world):
    conn, job, attempt = world.running(session="s", idle_timeout_s=60)
    session = world.plane.session_of[("ann", "s")]
    view = session_view(world.plane, session)
    assert (view.name, view.worker, view.running, view.idle_since) == ("s", "box", job, None)
    world.now += 2
    world.finish(conn, attempt)
    view = session_view(world.plane, session)
    assert (view.running, view.idle_since, view.idle_timeout_s) == (None, 1002.0, 60)
    world.leave(conn)
    assert not session_view(world.plane, session).connected


def test_a_commands_view_tells_what_was_asked_for(world):
    world.join()
    spec = JobSpec(
        command=CommandSpec(argv=("python", "my train.py", "--lr=1")), labels={"a": "b"}, priority=3, after=("old",)
    )
    view = world.ask(spec, ended={"old": State.SUCCEEDED})
    assert (view.kind, view.command) == ("command", "python 'my train.py' --lr=1")
    assert (view.labels, view.priority, view.after, view.tasks) == ({"a": "b"}, 3, ("old",), {})
    assert world.submit().kind == "cell"


def test_one_task_of_many_is_seen_as_a_job_of_one(world):
    conn = world.join(slots=1)
    job = world.ask(JobSpec(command=CommandSpec(argv=("run",)), array=((4, 5),))).id
    record = world.plane.jobs[job]
    attempt = record.tasks[0].attempt.id
    world.start(conn, attempt)
    world.finish(conn, attempt, State.FAILED, end=7)
    first = stored_view(record, {}, 4)
    assert (first.state, first.attempt, first.end_offset, first.tasks) == (State.FAILED, attempt, 7, {})
    second = stored_view(record, {}, 5)
    assert (second.state, second.attempt) == (State.QUEUED, None)
    assert stored_view(record, {}).state is State.QUEUED
    views = [task_view(task, {"id-box": "box"}) for task in record.tasks]
    assert [(view.index, view.state, view.worker, view.end_offset) for view in views] == [
        (4, State.FAILED, "box", 7),
        (5, State.QUEUED, None, None),
    ]


def test_an_attempts_outcome_is_that_which_its_task_ended_with(world):
    conn, job, first = world.running(retries=1)
    task = world.plane.jobs[job].tasks[0]
    lost = world.plane.attempts[first]
    other = world.join("other")
    world.leave(conn)
    world.wait(61)
    last = world.attempt(job)
    world.start(other, last.id)
    assert attempt_view(last, task, {}).outcome is None
    world.finish(other, last.id)
    views = [attempt_view(each, task, {"id-other": "other"}) for each in (lost, last)]
    assert [(view.number, view.worker, view.over, view.end_offset) for view in views] == [
        (1, "id-box", True, None),
        (2, "other", True, 10),
    ]
    assert views[0].outcome is None
    assert "was out of reach" in views[0].problem
    assert (views[1].outcome, views[1].problem) == (task.outcome, "")

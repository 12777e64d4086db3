"""What clients see."""

from __future__ import annotations

from gpulayer.protocol.types import State
from gpulayer_server.core.views import job_view, session_view, stored_view, worker_view


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
    view = worker_view(worker)
    assert (view.name, view.connected, view.slots, view.slots_free, view.sessions) == ("box", True, 3, 1, 1)
    assert view.devices_free == ("box-gpu1",)
    world.leave(conn)
    assert not worker_view(worker).connected


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

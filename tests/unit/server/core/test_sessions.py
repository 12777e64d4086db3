"""Kernels kept between cells."""

from __future__ import annotations

from gpulayer.protocol.messages import Assign, EndSession, Welcome
from gpulayer.protocol.types import State
from gpulayer_server.core.state import ENDED_SESSIONS


def opened(world, **options):
    """A worker, and a session after its first cell: connection and session."""
    conn = world.join(gpus=2)
    job = world.submit(session="s", **options).id
    attempt = world.attempt(job).id
    world.start(conn, attempt)
    world.finish(conn, attempt)
    world.release(conn, attempt)
    return conn, world.plane.session_of[("ann", "s")]


def test_the_first_cell_opens_a_session_and_the_next_one_uses_it(world):
    _, session = opened(world, gpus=1)
    job = world.submit(session="s").id
    [assign] = world.sent(Assign)
    assert (assign.job, assign.session, assign.devices) == (job, session.id, session.devices)
    assert len(world.plane.sessions) == 1


def test_a_session_holds_one_slot_and_its_devices_between_cells(world):
    _, session = opened(world, gpus=1)
    worker = world.plane.workers["id-box"]
    assert worker.holders == {session.id: session.devices}
    assert (worker.slots_free, [device.uuid for device in worker.devices_free]) == (1, ["box-gpu1"])
    world.submit(session="s")
    assert list(worker.holders) == [session.id]


def test_a_busy_session_makes_the_next_cell_wait_and_says_so(world):
    conn, _ = opened(world)
    first, second = world.submit(session="s").id, world.submit(session="s").id
    view = world.view(second)
    assert view.state is State.QUEUED
    [reason] = view.reasons
    assert (reason.code, reason.temporary) == ("session_busy", True)
    assert reason.text == f"session 's' on box is running {first}"
    world.start(conn, world.attempt(first).id)
    world.finish(conn, world.attempt(first).id)
    assert world.assigned() == [second]


def test_a_lost_attempt_keeps_its_session_busy_until_its_processes_are_gone(world):
    conn, job, attempt = world.running(session="s")
    world.leave(conn)
    world.wait(6)
    world.cancel(job, give_up=True)
    assert world.plane.session_of[("ann", "s")].running == attempt


def test_sessions_of_two_owners_are_two(world):
    world.join()
    world.submit(session="s", owner="ann")
    world.submit(session="s", owner="bob")
    assert len(world.plane.sessions) == 2


def test_a_cell_that_asks_for_another_place_is_rejected(world):
    opened(world, gpus=1)
    world.join("other")
    for options, why in (({"worker": "other"}, "is not 'other'"), ({"gpus": 2}, "it holds 1 cuda device(s)")):
        view = world.submit(session="s", **options)
        assert view.state is State.REJECTED
        [reason] = view.reasons
        assert reason.code == "session"
        assert why in reason.text
        assert "release it first" in reason.text


def test_a_release_asks_the_worker_and_frees_when_it_is_gone(world):
    conn, session = opened(world, gpus=1)
    assert world.let_go("s") is None
    assert world.out.sends == [(conn, EndSession(session=session.id))]
    assert session.id in world.plane.workers["id-box"].holders
    world.session_ended(conn, session.id)
    assert world.plane.idle()
    assert not world.plane.workers["id-box"].holders


def test_a_cell_for_a_session_that_is_ending_waits_and_opens_a_new_one(world):
    conn, session = opened(world)
    world.let_go("s")
    job = world.submit(session="s").id
    assert "is ending on box" in world.view(job).reasons[0].text
    world.session_ended(conn, session.id)
    assert world.assigned() == [job]
    assert world.attempt(job).session != session.id


def test_release_of_an_unknown_session_is_an_error(world):
    problem = world.let_go("nope")
    assert (problem.status, problem.code) == (404, "no_such_session")
    assert "'nope'" in problem.title


def test_a_release_out_of_reach_is_told_in_the_welcome(world):
    conn, session = opened(world)
    world.leave(conn)
    world.let_go("s")
    assert not world.out.sends
    world.join(gpus=2, sessions=(session.id,))
    [welcome] = world.sent(Welcome)
    assert welcome.end_sessions == (session.id,)


def test_a_cell_for_a_session_out_of_reach_waits(world):
    conn, session = opened(world)
    world.leave(conn)
    job = world.submit(session="s").id
    assert "which is out of reach" in world.view(job).reasons[0].text
    world.join(gpus=2, sessions=(session.id,))
    assert world.assigned() == [job]


def test_an_unknown_session_is_to_be_ended_by_its_worker(world):
    world.join(sessions=("s-0-1",))
    [welcome] = world.sent(Welcome)
    assert welcome.end_sessions == ("s-0-1",)


def test_an_idle_session_is_ended_and_one_in_use_is_not(world):
    conn, session = opened(world, idle_timeout_s=120)
    world.wait(60)
    job = world.submit(session="s").id
    attempt = world.attempt(job).id
    world.start(conn, attempt)
    world.wait(300)
    assert not session.closing
    world.finish(conn, attempt)
    world.wait(119)
    assert not session.closing
    world.wait(1)
    assert (conn, EndSession(session=session.id)) in world.out.sends
    assert (session.closing, session.reason) == (True, "idle for 2 min")


def note_after(world, conn, session):
    world.session_ended(conn, session.id)
    return world.submit(session="s").notes


def test_the_next_cell_is_told_that_a_session_had_ended(world):
    conn, session = opened(world)
    assert note_after(world, conn, session) == ("session 's' had ended (its kernel died): its state is fresh",)


def test_the_note_is_gone_once_the_new_session_was_used(world):
    conn, session = opened(world)
    note_after(world, conn, session)
    attempt = next(iter(world.plane.attempts))
    world.start(conn, attempt)
    world.finish(conn, attempt)
    assert world.submit(session="s").notes == ()


def test_of_many_ends_the_oldest_is_forgotten(world):
    conn, session = opened(world)
    world.plane.ended_sessions.update({("ann", f"old{n}"): "its kernel died" for n in range(ENDED_SESSIONS)})
    world.session_ended(conn, session.id)
    assert len(world.plane.ended_sessions) == ENDED_SESSIONS
    assert ("ann", "old0") not in world.plane.ended_sessions
    assert list(world.plane.ended_sessions)[-1] == ("ann", "s")


def test_nobody_is_told_of_an_end_that_its_owner_wanted(world):
    conn, session = opened(world)
    world.let_go("s")
    assert note_after(world, conn, session) == ()


def test_a_session_whose_kernel_is_not_there_any_more_has_ended(world):
    conn, session = opened(world)
    world.leave(conn)
    world.join(gpus=2)
    assert session.closed
    assert session.reason == "its kernel is no longer there"
    assert world.plane.idle()


def test_the_end_of_a_session_told_by_another_worker_changes_nothing(world):
    _, session = opened(world)
    other = world.join("other")
    world.session_ended(other, session.id)
    assert not session.closed


def test_nobody_is_told_of_the_end_of_a_session_that_was_never_used(world):
    conn = world.join()
    job = world.submit(session="s").id
    session = world.attempt(job).session
    world.give_back(conn, world.attempt(job).id)
    world.cancel(job)
    world.session_ended(conn, session)
    assert world.submit(session="s").notes == ()


def test_a_rebuilt_plane_counts_a_sessions_idle_time_anew(world):
    _, session = opened(world, idle_timeout_s=60)
    world.wait(59)
    world.reborn()
    world.wait(59)
    assert not world.plane.sessions[session.id].closing
    world.wait(1)
    assert world.plane.sessions[session.id].closing

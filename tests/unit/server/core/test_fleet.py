"""Workers that come, go, sleep and return."""

from __future__ import annotations

from gpulayer.protocol.messages import Assign, HeldAttempt, Refuse, Shutdown, Welcome
from gpulayer.protocol.types import PROTOCOL_VERSION, State
from gpulayer_server.core.events import LocalWorkerExpected, ShutdownWanted, Tick
from gpulayer_server.core.plane import Plane
from gpulayer_server.core.state import Snapshot
from gpulayer_server.core.views import job_view


def test_a_worker_is_welcomed_before_it_gets_work(world):
    world.do(LocalWorkerExpected(until=world.now + 60))
    job = world.submit().id
    world.join()
    assert [type(message) for _, message in world.out.sends] == [Welcome, Assign]
    assert world.sent(Welcome)[0].epoch == 1
    assert world.state(job) is State.ASSIGNED


def test_a_protocol_mismatch_names_who_to_upgrade(world):
    for protocol, who in ((PROTOCOL_VERSION - 1, "the worker"), (PROTOCOL_VERSION + 1, "the control plane")):
        conn = world.join(protocol=protocol)
        [refuse] = world.sent(Refuse)
        assert refuse.code == "protocol"
        assert not refuse.retry
        assert refuse.text.endswith(f"upgrade {who}")
        assert [closed for closed, _ in world.out.closes] == [conn]
    assert not world.plane.workers


def test_the_same_nonce_replaces_its_own_connection(world):
    old = world.join()
    new = world.join()
    assert [closed for closed, _ in world.out.closes] == [old]
    assert world.plane.workers["id-box"].conn == new
    world.leave(old)
    assert world.plane.workers["id-box"].conn == new


def test_another_nonce_is_refused_while_the_old_one_answers(world):
    old = world.join()
    new = world.join(nonce="n2")
    [refuse] = world.sent(Refuse)
    assert (refuse.code, refuse.retry) == ("duplicate_worker", True)
    assert [closed for closed, _ in world.out.closes] == [new]
    assert world.plane.workers["id-box"].conn == old


def test_another_nonce_is_accepted_after_silence(world):
    old = world.join()
    for _ in range(12):  # ticks alone: the worker says nothing
        world.now += 1
        world.do(Tick())
    assert world.plane.workers["id-box"].conn == old
    new = world.join(nonce="n2")
    assert world.sent(Welcome)
    assert world.plane.workers["id-box"].conn == new


def test_another_nonce_is_accepted_after_the_old_one_left(world):
    world.leave(world.join())
    world.join(nonce="n2")
    assert world.sent(Welcome)


def test_a_silent_connection_is_closed(world):
    conn = world.join()
    for _ in range(13):
        world.now += 1
        world.do(Tick())
    assert [closed for closed, _ in world.out.closes] == [conn]
    assert world.plane.workers["id-box"].gone_since == world.now


def test_two_workers_of_one_name_get_different_names(world):
    for worker_id in ("a", "b", "c"):
        world.join(worker_id=worker_id)
    assert [world.plane.workers[w].name for w in "abc"] == ["box", "box-2", "box-3"]


def test_a_name_is_free_again_once_its_worker_left(world):
    world.leave(world.join(worker_id="a"))
    world.join(worker_id="b")
    assert world.plane.workers["b"].name == "box"


def test_a_short_absence_is_not_told(world):
    conn, job, attempt = world.running()
    world.leave(conn)
    world.wait(4)
    assert world.state(job) is State.RUNNING
    world.join(attempts=(HeldAttempt(attempt=attempt, started=True),))
    world.wait(10)
    assert world.state(job) is State.RUNNING


def test_a_longer_absence_makes_a_job_unreachable_until_its_worker_returns(world):
    conn, job, attempt = world.running()
    world.leave(conn)
    world.wait(5)
    assert world.state(job) is State.UNREACHABLE
    world.join(attempts=(HeldAttempt(attempt=attempt, started=True),), acked={attempt: 42})
    verdict = world.verdict()
    assert (verdict.go_on, verdict.acked, verdict.recorded) == (True, 42, False)
    assert world.state(job) is State.RUNNING


def test_after_a_gap_in_the_ticks_nothing_is_lost(world):
    conn, job, attempt = world.running(retries=1)
    world.leave(conn)
    world.wait(4)
    world.now += 8 * 3600
    world.do(Tick())
    assert world.state(job) is State.RUNNING
    world.wait(59)
    assert world.state(job) is State.UNREACHABLE
    world.join(attempts=(HeldAttempt(attempt=attempt, started=True),))
    assert world.state(job) is State.RUNNING


def test_after_a_gap_a_connected_worker_is_not_silent(world):
    conn = world.join()
    world.now += 8 * 3600
    assert not world.do(Tick()).closes
    assert world.plane.workers["id-box"].conn == conn


def test_a_gap_counts_whatever_event_comes_first(world):
    conn, job, _ = world.running(retries=1)
    world.leave(conn)
    world.wait(4)
    world.now += 8 * 3600
    assert world.submit().state is State.QUEUED  # its worker was gone for 4 s, not for 8 h
    assert world.state(job) is State.RUNNING


def test_after_a_gap_an_idle_session_has_its_time_again(world):
    conn, _, attempt = world.running(session="s", idle_timeout_s=60)
    world.finish(conn, attempt)
    world.now += 8 * 3600
    world.do(Tick())
    assert not world.plane.session_of[("ann", "s")].closing


def test_verdict_for_an_attempt_whose_end_is_recorded(world):
    conn, _, attempt = world.running()
    world.finish(conn, attempt)
    world.leave(conn)
    world.join(attempts=(HeldAttempt(attempt=attempt, started=True, ended=True),))
    verdict = world.verdict()
    assert (verdict.go_on, verdict.recorded) == (False, True)
    assert attempt in world.plane.attempts


def test_verdict_for_a_recorded_attempt_that_is_gone_frees_its_slot(world):
    conn, _, attempt = world.running()
    world.finish(conn, attempt)
    world.leave(conn)
    world.join(attempts=(HeldAttempt(attempt=attempt, started=True, ended=True, released=True),))
    assert world.verdict().recorded
    assert world.plane.idle()


def test_verdict_for_an_attempt_that_nobody_knows(world):
    world.join(attempts=(HeldAttempt(attempt="x-0-1", started=True),))
    verdict = world.verdict()
    assert (verdict.go_on, verdict.recorded) == (False, True)


def test_verdict_for_another_workers_attempt(world):
    _, job, attempt = world.running()
    world.join("other", attempts=(HeldAttempt(attempt=attempt, started=True),))
    assert not world.verdict().go_on
    assert world.state(job) is State.RUNNING


def test_verdict_for_an_attempt_that_was_given_back_unheard(world):
    conn = world.join()
    job = world.submit().id
    attempt = world.attempt(job).id
    world.leave(conn)
    world.join(attempts=(HeldAttempt(attempt=attempt, released=True),))
    verdict = world.verdict()
    assert (verdict.go_on, verdict.recorded) == (False, True)
    assert world.assigned() == [job]


def test_verdict_for_an_attempt_that_has_not_begun(world):
    conn = world.join()
    job = world.submit().id
    attempt = world.attempt(job).id
    world.leave(conn)
    world.join(attempts=(HeldAttempt(attempt=attempt),))
    assert world.verdict().go_on
    assert world.state(job) is State.ASSIGNED
    assert not world.assigned()


def test_an_undeclared_attempt_that_never_started_is_assigned_again(world):
    conn = world.join()
    job = world.submit().id
    old = world.attempt(job).id
    world.leave(conn)
    world.join()
    assert world.assigned() == [job]
    assert list(world.plane.attempts) == [world.attempt(job).id]
    assert world.attempt(job).id != old


def test_an_undeclared_attempt_that_started_is_lost(world):
    conn, job, attempt = world.running()
    world.leave(conn)
    world.join()
    assert [name for name, _ in world.out.marks] == [attempt]
    task = world.out.jobs[job].tasks[0]
    assert task.state is State.FAILED
    assert "no longer holds it" in task.outcome.problem
    assert world.plane.idle()


def test_an_undeclared_attempt_with_a_retry_left_runs_again(world):
    conn, job, attempt = world.running(retries=1)
    world.leave(conn)
    world.join()
    assert world.assigned() == [job]
    assert world.attempt(job).id != attempt


def test_an_undeclared_attempt_that_is_over_is_released(world):
    conn, _, attempt = world.running()
    world.finish(conn, attempt)
    world.leave(conn)
    world.join()
    assert world.plane.idle()
    assert not world.out.marks


def test_a_shutdown_reaches_connected_local_workers_only(world):
    local = world.join("here", local=True)
    world.join("there")
    world.do(ShutdownWanted(reason="bye"))
    assert world.out.sends == [(local, Shutdown(reason="bye"))]


def test_a_plane_rebuilt_from_its_rows_knows_the_same(world):
    world.join(slots=3, gpus=2)
    names = [world.submit(session="s", gpus=1).id, world.submit(retries=2).id]
    names += [world.submit(session="s").id]
    world.start(1, world.attempt(names[0]).id)
    world.cancel(names[1])
    before = world.plane
    after = world.reborn()
    assert [job_view(after, after.jobs[name]) for name in names] == [
        job_view(before, before.jobs[name]) for name in names
    ]
    assert after.workers["id-box"].holders == before.workers["id-box"].holders
    assert (list(after.queue), after.keys, after.last_job_n) == (list(before.queue), before.keys, before.last_job_n)
    session, restored = before.session_of[("ann", "s")], after.session_of[("ann", "s")]
    assert (restored.id, restored.running, restored.devices) == (session.id, session.running, session.devices)


def test_a_rebuilt_plane_goes_on_with_the_worker_and_reuses_no_name(world):
    _, job, attempt = world.running()
    world.reborn()
    conn = world.join(attempts=(HeldAttempt(attempt=attempt, started=True),))
    assert world.verdict().go_on
    other = world.submit().id
    assert other != job
    assert world.attempt(other).id.split("-")[1] == "2"
    world.finish(conn, attempt)
    assert world.state(job) is State.SUCCEEDED


def test_a_rebuilt_plane_marks_lost_streams_again_with_its_first_event():
    plane = Plane(epoch=2, now=1.0, snapshot=Snapshot(lost=["a-1-1"]))
    assert [name for name, _ in plane.handle(Tick(), 1.0).marks] == ["a-1-1"]
    assert plane.handle(Tick(), 1.0).marks == []


def test_a_rebuilt_plane_starts_every_lease_anew(world):
    conn, job, _ = world.running(retries=1)
    world.leave(conn)
    world.wait(59)
    world.reborn()
    world.wait(59)
    assert world.state(job) is State.UNREACHABLE
    world.wait(1)
    assert world.out.marks != []

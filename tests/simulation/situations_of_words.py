"""Situations around words that are lost, late, said twice, or said by the wrong one."""

from __future__ import annotations

from gpulayer.protocol.messages import Output
from gpulayer.protocol.types import JobView, State
from gpulayer_server.core.views import waiting_view
from gpulayer_worker import link
from tests.simulation.clients import spec
from tests.simulation.staging import Make, attempt_of, ended, only_task, said, staged
from tests.simulation.world import World


def the_view(world: World, key: str) -> JobView:
    """What was told last of the job under a key."""
    return world.truth.views[world.clients[0].wanted[key].job or ""]


# ---------------------------------------------------------------- connections


@staged()
def a_quiet_connection_lasts(make: Make) -> None:
    world = make()
    worker = world.control_plane.plane.workers["id-w0"]
    conn = worker.conn
    assert conn is not None
    world.run(60.0)
    assert worker.conn == conn
    assert not said(world, "drops connection")
    assert not said(world, "reconnects")


@staged(newer=[False, True])
def a_worker_of_another_version_is_told_which_side_to_upgrade(make: Make, newer: bool) -> None:
    world = make()
    conn = world.control_plane.plane.workers["id-w0"].conn
    for worker_id in ("id-stranger", "id-w0"):
        world.stranger.knock(worker_id, newer=newer)
        world.run(1.0)
    assert world.stranger.refused == 2
    assert list(world.control_plane.plane.workers) == ["id-w0"]
    assert world.control_plane.plane.workers["id-w0"].conn == conn


@staged()
def what_was_acknowledged_unheard_is_let_go_of_at_the_next_welcome(make: Make) -> None:
    world = make(0)
    world.clients[0].submit("key", spec(40.0))
    world.run(3.0)
    attempt = attempt_of(only_task(world)).id
    agent, spool = world.agents[0], world.machines[0].spools[attempt]
    before = spool.trimmed
    assert agent.end is not None
    agent.end.peer.dark = True  # whatever the control plane says is lost from here on
    world.run(11.0)
    while agent.link.welcomed:
        world.run(0.1)
    while not agent.link.welcomed:
        world.run(0.01)
    assert spool.trimmed == agent.link.held[attempt].acked > before
    ended(world)


@staged()
def a_new_agent_ends_what_the_one_before_it_was_told_to_end(make: Make) -> None:
    """That one died between its note and the kill; the new one finds nobody to ask."""
    world = make()
    world.clients[0].submit("key", spec(500.0, retries=1))
    world.run(3.0)
    attempt = attempt_of(only_task(world)).id
    agent = world.agents[0]
    agent.link.held[attempt].recorded = True
    agent.emit(link.Began(attempt=attempt))  # makes a note
    world.crash_agent(agent, 0.5)
    world.network.part("w0", 60.0)
    world.run(4.0)
    assert not world.truth.programs[attempt].live
    assert [view.attempts for view in ended(world)] == [2]


@staged()
def an_end_is_told_after_the_last_byte_of_much_output(make: Make) -> None:
    """More than may be on its way at a time: bytes that wait for an acknowledgement come before the end."""
    world = make(large_output=34.0)
    world.clients[0].submit("key", spec(0.5))
    (view,) = ended(world)
    assert (view.state, (view.end_offset or 0) > link.WINDOW_BYTES) == (State.SUCCEEDED, True)
    assert not said(world, "drops connection")


@staged(seed=[*range(8)])
def an_agent_that_dies_before_the_first_output_has_its_attempt_noted(make: Make, seed: int) -> None:
    world = make(seed)
    world.clients[0].submit("key", spec(5.0))
    while not world.truth.programs:
        world.run(0.001)
    world.crash_agent(world.agents[0], 0.5)
    assert [view.attempts for view in ended(world)] == [1]
    assert len(world.truth.programs) == 1


@staged()
def a_session_that_ends_between_hello_and_welcome_is_told_of(make: Make) -> None:
    world = make(workers=((1, 0),))
    world.clients[0].submit("key", spec(0.1, session="a"))
    world.run(5.0)
    agent, kernel = world.agents[0], world.machines[0].kernels[0]
    world.network.weather.delay_s = 0.5
    world.leave_half_open(agent)
    while agent.end is None:
        world.run(0.001)
    kernel.die()
    world.run(0.05)
    assert not agent.link.welcomed
    world.run(5.0)
    assert world.control_plane.plane.sessions == {}
    ended(world)


@staged()
def a_start_that_nobody_told_of_is_known_with_the_end(make: Make) -> None:
    world = make(forgotten_words=1.0)
    world.clients[0].submit("key", spec(2.0))
    (view,) = ended(world)
    assert view.state is State.SUCCEEDED
    assert view.started_at is not None


# ---------------------------------------------------------------- cancelling


@staged()
def a_cancelled_job_that_is_given_back_is_cancelled(make: Make) -> None:
    world = make(slow_starts=1.0, given_back=1.0)
    world.clients[0].submit("key", spec(5.0))
    world.run(0.2)
    world.clients[0].cancel("key")
    (view,) = ended(world)
    assert (view.state, view.started_at) == (State.CANCELLED, None)


@staged(agent_dies=[False, True])
def a_job_cancelled_out_of_reach_that_had_not_started_failed_and_says_why(make: Make, agent_dies: bool) -> None:
    world = make(workers=((1, 0),), slow_starts=1.0, given_back=1.0)
    world.clients[0].submit("key", spec(5.0))
    world.run(0.2)
    end = world.agents[0].end
    assert end is not None
    world.network.break_off(end, silent=False)
    world.network.part("w0", 20.0)
    world.run(14.0)
    assert only_task(world).state is State.UNREACHABLE
    world.clients[0].cancel("key")
    if agent_dies:
        world.crash_agent(world.agents[0], 0.2)
    (view,) = ended(world)
    assert view.state is State.FAILED
    assert view.outcome is not None
    assert "had not started" in view.outcome.problem


@staged()
def a_cancel_that_was_lost_on_its_way_is_said_again(make: Make) -> None:
    world = make()
    world.clients[0].submit("key", spec(500.0))
    world.run(3.0)
    world.leave_half_open(world.agents[0])
    world.clients[0].cancel("key")
    world.run(30.0)
    (view,) = world.truth.views.values()
    assert view.state in (State.CANCELLED, State.FAILED)
    assert view.ended_at is not None
    ended(world)


@staged()
def a_cancel_after_the_end_says_nothing_to_the_worker(make: Make) -> None:
    world = make()
    world.clients[0].submit("key", spec(1.0))
    world.run(0.5)
    while not only_task(world).terminal:
        world.run(0.01)
    world.agents[0].crash()  # so that it stays between its end and its release
    world.clients[0].cancel("key")
    world.run(0.5)
    assert not only_task(world).cancel_wanted
    assert [view.state for view in ended(world)] == [State.SUCCEEDED]


# ---------------------------------------------------------------- waiting and being rejected


@staged()
def a_job_for_a_worker_that_is_not_there_is_rejected_and_says_who_is(make: Make) -> None:
    world = make(workers=((1, 0), (1, 0)))
    world.clients[0].submit("key", spec(1.0, worker="w9"))
    world.run(1.0)
    view = the_view(world, "key")
    assert view.state is State.REJECTED
    assert [reason.code for reason in view.reasons] == ["worker_unknown", "worker_name", "worker_name"]
    ended(world)


@staged()
def a_worker_without_slots_takes_nothing(make: Make) -> None:
    world = make(workers=((0, 0),))
    world.clients[0].submit("key", spec(1.0))
    world.run(1.0)
    assert [(view.state, view.reasons[0].code) for view in world.truth.views.values()] == [(State.REJECTED, "slots")]
    ended(world)


@staged()
def what_waits_says_why_and_behind_how_many(make: Make) -> None:
    world = make(workers=((1, 1),))
    for number in range(4):
        world.clients[0].submit(f"key{number}", spec(50.0, devices=1))
        world.run(1.0)
    plane = world.control_plane.plane
    now = world.control_plane.host.clock()
    views = [waiting_view(plane, job, now) for job in plane.jobs.values()]
    assert [view.ahead for view in views[1:]] == [0, 1, 2]
    assert {tuple(reason.code for reason in view.reasons) for view in views[1:]} == {("slots", "devices_busy")}
    ended(world)


@staged()
def with_no_worker_at_all_that_is_said(make: Make) -> None:
    world = make(workers=((1, 0),))
    world.network.part("w0", 1000.0)
    world.run(100.0)
    world.clients[0].submit("key", spec(1.0))
    world.run(1.0)
    assert [reason.code for reason in the_view(world, "key").reasons] == ["no_worker"]
    ended(world)


@staged()
def output_of_a_given_up_attempt_that_comes_late_is_not_taken(make: Make) -> None:
    """The stream ends with a mark after its last whole record, though it was given up within one."""
    world = make(large_output=1.0)
    world.network.weather.byte_s = 1e-5  # the first record is some seconds on its way
    world.clients[0].submit("key", spec(300.0))
    spools = world.machines[0].spools
    while not any(spool.data for spool in spools.values()):
        world.run(0.01)
    plane, end = world.control_plane, world.agents[0].end
    attempt = attempt_of(only_task(world)).id
    assert end is not None
    world.network.break_off(end, silent=True)
    world.network.part("w0", 40.0)
    part = Output(attempt=attempt, offset=0, data=bytes(spools[attempt].data[:1000]))
    assert plane.output(plane.plane.workers["id-w0"].conn or 0, part) == 1000  # all that came of a larger record
    world.run(25.0)
    assert only_task(world).state is State.UNREACHABLE
    world.clients[0].cancel("key", give_up=True)
    while plane.plane.workers["id-w0"].conn is None:
        world.run(0.001)
    conn, length = plane.plane.workers["id-w0"].conn or 0, plane.streams.length(attempt)
    assert attempt in plane.plane.attempts
    assert plane.output(conn, Output(attempt=attempt, offset=length, data=b"late")) is None
    world.crash_control_plane(0.5)  # the next one sees what is in the file
    world.run(3.0)
    assert [view.state for view in ended(world)] == [State.FAILED]


# ---------------------------------------------------------------- commits


@staged()
def a_stream_is_not_marked_before_the_loss_is_committed(make: Make) -> None:
    """The control plane dies before the commit: nobody gave the attempt up, its stream has to be whole."""
    world = make(workers=((1, 0),))
    world.clients[0].submit("key", spec(60.0))
    world.run(3.0)
    attempt = attempt_of(only_task(world)).id
    world.network.part("w0", 40.0)
    world.run(25.0)
    assert only_task(world).state is State.UNREACHABLE
    world.control_plane.commit_s = 1000.0
    world.clients[0].cancel("key", give_up=True)
    world.run(0.5)
    world.control_plane.commit_s = 0.01
    world.crash_control_plane(0.5)
    world.run(2.0)
    assert attempt_of(only_task(world)).id == attempt
    assert [view.state for view in ended(world)] == [State.SUCCEEDED]


# ---------------------------------------------------------------- leases, sleep, sessions


@staged()
def a_leased_job_of_a_dead_machine_runs_on_another(make: Make) -> None:
    world = make(workers=((1, 0), (1, 0)))
    world.clients[0].submit("key", spec(20.0, retries=1))
    world.run(3.0)
    dead = next(agent for agent in world.agents if f"id-{agent.name}" == attempt_of(only_task(world)).worker)
    world.kill_machine(dead)
    world.run(90.0)
    assert [view.attempts for view in world.truth.views.values()] == [2]
    ended(world)


@staged(seed=[*range(4)], asleep_s=[50.0, 58.0])
def an_assignment_that_comes_after_its_lease_costs_no_retry(make: Make, seed: int, asleep_s: float) -> None:
    world = make(seed, workers=((1, 0),))
    world.machines[0].sleep(asleep_s)
    world.clients[0].submit("key", spec(1.0, retries=1))
    world.run(asleep_s + 8.0)
    assert said(world, "cp", "sends Assign")
    (view,) = ended(world)
    job = world.control_plane.store.job(view.id)
    assert job is not None
    assert (job.tasks[0].state, job.tasks[0].lost) == (State.SUCCEEDED, 0)


@staged()
def a_session_that_is_let_go_of_ends_the_cell_in_it(make: Make) -> None:
    world = make(workers=((2, 0),))
    world.clients[0].submit("key", spec(500.0, session="a"))
    world.clients[0].submit("other", spec(60.0))
    world.run(5.0)
    world.clients[0].release("a")
    world.run(15.0)
    assert len(world.machines[0].kernels) == 1
    assert not world.control_plane.plane.sessions
    assert the_view(world, "key").state is State.FAILED
    assert the_view(world, "other").state is State.RUNNING
    ended(world)


@staged()
def a_session_does_not_grow_old_while_the_control_plane_sleeps(make: Make) -> None:
    world = make(workers=((1, 0),))
    world.clients[0].submit("first", spec(0.1, session="a"))
    world.run(10.0)
    world.control_plane.host.sleep(3600.0)
    world.run(3660.0)
    world.clients[0].submit("next", spec(0.1, session="a"))
    world.run(10.0)
    assert the_view(world, "next").state is State.SUCCEEDED
    assert the_view(world, "next").notes == ()
    assert len(world.machines[0].kernels) == 1
    ended(world)


@staged()
def the_first_word_in_a_session_is_told_in_the_next(make: Make) -> None:
    """Cells of one session run in one kernel, in the order of their coming."""
    world = make(workers=((2, 0),))
    for number in range(4):
        world.clients[0].submit(f"key{number}", spec(2.0, session="a"))
        world.run(0.1)
    world.run(40.0)
    views = [the_view(world, f"key{number}") for number in range(4)]
    assert [view.state for view in views] == [State.SUCCEEDED] * 4
    starts = [view.started_at or 0.0 for view in views]
    assert starts == sorted(starts)
    assert len({program.kernel.owner for program in world.truth.programs.values()}) == 1
    ended(world)

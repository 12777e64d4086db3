"""Situations that were faults once, or that the design names."""

from __future__ import annotations

from gpulayer.protocol.messages import Heartbeat, Released
from gpulayer.protocol.types import State
from gpulayer_server.core.events import WorkerSaid
from tests.simulation.clients import spec
from tests.simulation.staging import Make, attempt_of, ended, only_task, said, staged

# ---------------------------------------------------------------- connections


@staged()
def a_half_open_socket_is_replaced_by_the_same_agent(make: Make) -> None:
    world = make()
    world.clients[0].submit("key", spec(100.0))
    world.run(3.0)
    worker = world.control_plane.plane.workers["id-w0"]
    before, attempt = worker.conn, attempt_of(only_task(world)).id
    world.leave_half_open(world.agents[0])
    world.run(1.0)
    assert worker.conn not in (None, before)
    assert (only_task(world).state, attempt_of(only_task(world)).id) == (State.RUNNING, attempt)
    assert not said(world, "tells", "unreachable")
    assert [view.attempts for view in ended(world)] == [1]


@staged()
def words_on_a_connection_that_was_replaced_are_not_heard(make: Make) -> None:
    world = make()
    world.clients[0].submit("key", spec(100.0))
    world.run(3.0)
    plane, attempt = world.control_plane, attempt_of(only_task(world))
    old = plane.plane.workers["id-w0"].conn or 0
    world.leave_half_open(world.agents[0])
    world.run(1.0)
    plane.handle(WorkerSaid(conn=old, messages=(Heartbeat(notes=("late",)),)))
    plane.handle(WorkerSaid(conn=old, messages=(Released(attempt=attempt.id),)))
    assert plane.plane.workers["id-w0"].notes == ()
    assert (only_task(world).state, attempt.released) == (State.RUNNING, False)
    assert [view.state for view in ended(world)] == [State.SUCCEEDED]


@staged()
def another_agent_is_refused_while_the_old_one_answers_and_then_taken(make: Make) -> None:
    world = make()
    world.clients[0].submit("key", spec(100.0))
    world.run(3.0)
    worker = world.control_plane.plane.workers["id-w0"]
    before, attempt = worker.conn, attempt_of(only_task(world)).id
    world.crash_agent(world.agents[0], 0.5, silent=True)
    world.run(5.0)
    assert said(world, "Refuse(code=duplicate_worker")
    assert worker.conn == before
    assert not world.agents[0].link.welcomed
    world.run(20.0)
    assert worker.conn not in (None, before)
    assert world.agents[0].link.welcomed
    assert attempt_of(only_task(world)).id == attempt
    assert [view.attempts for view in ended(world)] == [1]


@staged()
def a_reconnect_with_everything_acknowledged_sends_no_byte_again(make: Make) -> None:
    world = make()
    world.clients[0].submit("key", spec(2000.0))  # it writes seldom
    world.run(3.0)
    attempt = attempt_of(only_task(world)).id
    held = world.agents[0].link.held[attempt]
    assert 0 < held.spool_end == held.acked
    outputs = len(said(world, "w0", "Output("))
    world.leave_half_open(world.agents[0])
    world.run(1.0)
    assert world.agents[0].link.welcomed
    assert held.sent == held.acked == held.spool_end
    assert len(said(world, "w0", "Output(")) == outputs
    assert [view.state for view in ended(world)] == [State.SUCCEEDED]


@staged()
def bytes_that_were_under_way_when_the_socket_broke_come_again(make: Make) -> None:
    world = make(large_output=1.0)
    world.network.weather.byte_s = 1e-5
    world.clients[0].submit("key", spec(20.0))
    for _ in range(4):
        world.run(7.0)
        if world.agents[0].end is not None:
            world.network.break_off(world.agents[0].end, silent=True)
        world.run(15.0)
    assert [view.state for view in ended(world)] == [State.SUCCEEDED]
    (view,) = world.truth.views.values()
    assert (view.end_offset or 0) > 1_000_000


@staged()
def a_lost_frame_is_noticed_with_the_next_one(make: Make) -> None:
    world = make()
    world.clients[0].submit("key", spec(1.0))
    while not world.truth.programs:
        world.run(0.01)
    (program,) = world.truth.programs.values()
    world.network.weather.lost = 1.0
    while program.live:
        world.run(0.01)
    world.run(0.01)
    world.network.weather.lost = 0.0
    world.run(8.0)
    assert said(world, "breaks off: frame")
    assert [view.state for view in world.truth.views.values()] == [State.SUCCEEDED]
    ended(world)


# ---------------------------------------------------------------- leases


@staged()
def an_attempt_that_its_worker_ended_with_its_lease_is_lost_and_tried_again(make: Make) -> None:
    """The worker is back before the control plane gave the attempt up: that is no failure of the program."""
    world = make()
    world.clients[0].submit("key", spec(300.0, retries=1))
    world.run(3.0)
    first = attempt_of(only_task(world)).id
    world.network.part("w0", 53.0)
    world.run(70.0)
    task = only_task(world)
    assert said(world, "kills", first, "its lease ended")
    assert (task.state, task.attempts, task.lost) == (State.RUNNING, 2, 1)
    assert [view.attempts for view in ended(world)] == [2]


@staged()
def words_that_were_long_on_their_way_do_not_prolong_a_lease(make: Make) -> None:
    """The worker sleeps with an answer in its socket; another has the job by the time it reads it."""
    world = make(workers=((1, 0), (1, 0)))
    world.clients[0].submit("key", spec(300.0, retries=1))
    world.run(3.0)
    first = attempt_of(only_task(world))
    sleeper = next(machine for machine in world.machines if f"id-{machine.name}" == first.worker)
    sleeper.sleep(90.0)
    world.run(91.0)
    assert not world.truth.programs[first.id].live
    assert attempt_of(only_task(world)).worker != first.worker
    assert [view.attempts for view in ended(world)] == [2]


@staged()
def a_new_agent_that_hears_nothing_ends_the_leases_that_it_found(make: Make) -> None:
    world = make(workers=((1, 0), (1, 0)))
    world.clients[0].submit("key", spec(300.0, retries=1))
    world.run(3.0)
    first = attempt_of(only_task(world))
    agent = next(each for each in world.agents if f"id-{each.name}" == first.worker)
    world.network.part(agent.name, 120.0)
    world.run(40.0)
    world.crash_agent(agent, 1.0)
    world.run(10.0)
    assert not world.truth.programs[first.id].live
    assert [view.attempts for view in ended(world)] == [2]


# ---------------------------------------------------------------- sleep and starts


@staged(awake_first_s=[0.0, 1.0])
def a_job_that_comes_right_after_a_sleep_is_not_rejected(make: Make, awake_first_s: float) -> None:
    """The worker went away before the sleep; whatever event comes first after it, he is not given up by its length."""
    world = make()
    plane = world.control_plane
    world.network.part("w0", 3600.0)
    world.run(20.0)
    plane.host.sleep(1000.0)
    world.run(999.99)
    world.clients[0].submit("key", spec(1.0))
    world.run(0.03 + awake_first_s)
    assert only_task(world).state is State.QUEUED
    assert [view.state for view in ended(world)] == [State.SUCCEEDED]


@staged(seed=[*range(6)])
def the_stream_of_a_given_up_attempt_is_marked_though_the_control_plane_dies(make: Make, seed: int) -> None:
    """It dies between the commit and the mark, or between the mark and the answer."""
    world = make(seed, workers=((1, 0),))
    client = world.clients[0]
    client.submit("key", spec(300.0))
    world.run(3.0)
    world.network.part("w0", 300.0)
    world.run(30.0)
    world.control_plane.crashing_releases = 0.1  # ten times as much where there is a mark to be made
    client.cancel("key", give_up=True)
    world.run(2.0)
    world.control_plane.crashing_releases = 0.0
    world.start_control_plane()
    world.run(5.0)
    assert said(world, "cp", "crashes")
    attempt = next(iter(world.truth.programs))
    streams = world.control_plane.streams
    assert b'{"mark": "truncated"' in streams.read(attempt, 0, streams.length(attempt))
    world.settle()


@staged()
def the_same_key_finds_a_job_that_was_over_before_it_was_committed(make: Make) -> None:
    world = make(2, commit_s=6.0)  # this one takes its time
    world.clients[0].submit("key", spec(1.0, worker="nobody"))
    world.run(1.5)
    assert world.control_plane.store.job_by_key("owner0", "key") is None
    world.clients[0].ask("key")
    world.run(8.0)
    assert len(said(world, "submits key")) >= 2
    assert [view.state for view in ended(world)] == [State.REJECTED]


# ---------------------------------------------------------------- sessions


@staged()
def a_session_let_go_of_while_its_first_cell_starts_leaves_no_kernel(make: Make) -> None:
    world = make(workers=((1, 0),), slow_starts=1.0)
    world.clients[0].submit("key", spec(5.0, session="a"))
    world.run(0.2)
    world.clients[0].release("a")
    world.run(30.0)
    assert world.machines[0].kernels == []
    assert world.control_plane.plane.sessions == {}
    assert all(view.terminal for view in ended(world))


@staged()
def a_session_that_is_ended_twice_is_closed_once(make: Make) -> None:
    world = make(doubled_answers=1.0)
    world.clients[0].submit("key", spec(0.1, session="a"))
    world.run(5.0)
    world.clients[0].release("a")
    world.run(2.0)
    assert len(said(world, "sends", "EndSession(")) == 1
    assert "EndSession(session=s-1-1) EndSession(session=s-1-1)" in said(world, "sends", "EndSession(")[0]
    assert world.machines[0].kernels == []
    ended(world)


@staged()
def a_cell_that_waits_behind_one_that_kills_its_kernel_gets_a_new_session_and_is_told(make: Make) -> None:
    world = make(workers=((1, 0),))
    client = world.clients[0]
    client.submit("first", spec(0.1, session="a"))
    world.run(5.0)
    client.submit("killer", spec(1.0, session="a", dies=True))
    client.submit("next", spec(0.1, session="a"))
    world.run(20.0)
    views = {key: world.truth.views[wanted.job or ""] for key, wanted in client.wanted.items()}
    assert views["killer"].state is State.FAILED
    assert views["next"].terminal
    assert "its state is fresh" in views["next"].notes[0]
    ended(world)


@staged()
def a_sessions_end_is_told_also_after_the_control_plane_began_anew(make: Make) -> None:
    world = make(workers=((1, 0),))
    client = world.clients[0]
    client.submit("first", spec(0.1, session="a"))
    world.run(5.0)
    world.machines[0].kernels[0].die()
    world.run(2.0)
    world.crash_control_plane(1.0)
    world.run(5.0)
    client.submit("next", spec(0.1, session="a"))
    world.run(10.0)
    job = client.wanted["next"].job
    assert job is not None
    assert "its kernel died" in world.truth.views[job].notes[0]
    ended(world)


@staged()
def a_cell_does_not_run_beside_the_end_of_one_that_was_given_up(make: Make) -> None:
    world = make(workers=((1, 0),))
    client = world.clients[0]
    client.submit("first", spec(400.0, session="a"))
    world.run(5.0)
    client.submit("next", spec(0.1, session="a"))
    world.network.part("w0", 60.0)
    world.run(40.0)
    client.cancel("first", give_up=True)
    world.run(60.0)
    views = {key: world.truth.views[wanted.job or ""] for key, wanted in client.wanted.items()}
    assert views["first"].state is State.FAILED
    assert views["next"].outcome is not None
    assert views["next"].outcome.signal is None  # not killed with the kernel of the one before it
    ended(world)


# ---------------------------------------------------------------- giving back


@staged(seed=[*range(6)], agent_dies=[False, True])
def an_attempt_that_is_given_back_around_a_parting_waits_again(make: Make, seed: int, agent_dies: bool) -> None:
    """It was unreachable, came back, counts as running, and had not started: it is no failure, and runs once."""
    world = make(seed, workers=((1, 0),), slow_starts=1.0, given_back=1.0)
    world.clients[0].submit("key", spec(1.0))
    world.run(0.2)
    end = world.agents[0].end
    assert end is not None
    world.network.break_off(end, silent=False)
    world.network.part("w0", 7.0)
    world.run(6.5)
    if agent_dies:
        world.crash_agent(world.agents[0], 0.2)
    world.run(0.5)
    assert only_task(world).state is State.UNREACHABLE
    world.run(20.0)
    assert only_task(world).attempts > 1
    world.plan.given_back = world.plan.slow_starts = 0.0
    (view,) = ended(world)
    assert view.state is State.SUCCEEDED
    assert len(world.truth.of_task[view.id]) == 1

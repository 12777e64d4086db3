"""Situations of placement: many machines at once, shared devices, machines that change, work ahead of slots."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gpulayer.protocol.messages import InventoryChanged, Sampled
from gpulayer.protocol.types import Sample, State
from gpulayer_server.core.events import LimitsSet, WorkerSaid
from gpulayer_server.core.state import Limits, Task
from tests.simulation.clients import spec
from tests.simulation.plans import GB
from tests.simulation.situations_of_commands import looked_at, name_of, state_of
from tests.simulation.staging import Make, attempt_of, ended, staged
from tests.simulation.world import World


def tasks_of(world: World, key: str) -> list[Task]:
    """The tasks of a live job, by index."""
    return world.control_plane.plane.jobs[name_of(world, key)].tasks


def states_of(world: World, key: str) -> list[State]:
    """Theirs."""
    return [task.state for task in tasks_of(world, key)]


def until(world: World, key: str, *states: State) -> None:
    """Run until the tasks of a job are so."""
    while not name_of(world, key) or states_of(world, key) != list(states):
        world.run(0.005)


# ---------------------------------------------------------------- many machines at once


@staged()
def a_gang_waits_until_all_of_it_can_be_placed_and_then_all_of_it_is(make: Make) -> None:
    world = make(workers=((1, 0), (1, 0), (1, 0)))
    client = world.clients[0]
    client.submit("one", spec(20.0, command=True))
    world.run(2.0)
    client.submit("gang", spec(5.0, command=True, nodes=3))
    world.run(2.0)
    assert states_of(world, "gang") == [State.QUEUED] * 3
    assert {reason.code for reason in looked_at(world, "gang").reasons} == {"nodes", "slots"}
    ended(world)
    views = [view for key, view in world.truth.views.items() if key.startswith(f"{name_of(world, 'gang')}/")]
    assert [view.state for view in views] == [State.SUCCEEDED] * 3
    assert len({view.worker for view in views}) == 3


@staged()
def a_gang_that_must_be_in_one_region_waits_for_that(make: Make) -> None:
    world = make(workers=((1, 0), (1, 0), (1, 0), (1, 0)))
    client = world.clients[0]
    for agent, region in zip(world.agents, ("north", "north", "south", "south"), strict=True):
        agent.machine.region = region
        agent.machine_changed()
    world.run(0.5)
    client.submit("north", spec(30.0, command=True, worker="w0"))
    client.submit("south", spec(20.0, command=True, worker="w2"))
    world.run(1.0)
    client.submit("gang", spec(1.0, command=True, nodes=2, locality="require"))
    world.run(1.0)
    assert states_of(world, "gang") == [State.QUEUED] * 2
    ended(world)
    views = [view for key, view in world.truth.views.items() if key.startswith(f"{name_of(world, 'gang')}/")]
    assert [view.state for view in views] == [State.SUCCEEDED] * 2
    assert {view.worker for view in views} in ({"w0", "w1"}, {"w2", "w3"})


@staged(crash=[False, True])
def one_of_a_gang_that_fails_ends_the_others_also_over_a_crash(make: Make, crash: bool) -> None:
    world = make(workers=((1, 0), (1, 0), (1, 0)))
    client = world.clients[0]
    client.submit("gang", spec(300.0, command=True, nodes=3))
    world.run(5.0)
    assert states_of(world, "gang") == [State.RUNNING] * 3
    first = attempt_of(tasks_of(world, "gang")[1]).id
    machine = world.truth.programs[first].kernel.machine
    machine.kernels[0].die()
    if crash:
        world.run(0.05)
        world.crash_control_plane(2.0)
    world.run(40.0)
    views = {view.attempt: view for view in world.truth.views.values() if view.attempt and not view.tasks}
    assert views[first].state is State.FAILED
    assert sorted(view.state.value for view in views.values()) == ["cancelled", "cancelled", "failed"]
    for view in views.values():
        problem = view.outcome.problem if view.outcome else ""
        assert view.attempt == first or problem.startswith(f"node 1 ({machine.name}) failed")
    assert state_of(world, "gang") is State.FAILED
    ended(world)


@staged(crash=[False, True])
def a_gang_of_which_one_cannot_begin_waits_again_as_a_whole(make: Make, crash: bool) -> None:
    """The others are still bringing their files: they are taken back, and all are placed anew."""
    world = make(workers=((1, 0), (1, 0), (1, 0)), slow_starts=1.0)
    unable = world.agents[1]
    unable.plan = replace(world.plan, given_back=1.0, slow_starts=0.0)
    world.clients[0].submit("gang", spec(5.0, command=True, nodes=3))
    until(world, "gang", *[State.ASSIGNED] * 3)
    before = [attempt_of(task).id for task in tasks_of(world, "gang")]
    while State.QUEUED not in states_of(world, "gang"):
        world.run(0.005)
    assert sorted(state.value for state in states_of(world, "gang")) == ["assigned", "assigned", "queued"]
    unable.plan = world.plan
    if crash:
        world.crash_control_plane(1.0)
    world.run(60.0)
    views = ended(world)
    assert len(world.truth.programs) == 3
    assert {view.state for view in views} == {State.SUCCEEDED}
    assert not {*before} & {*world.truth.programs}


@staged(crash=[False, True])
def a_gang_of_which_one_cannot_begin_fails_where_another_has_begun(make: Make, crash: bool) -> None:
    world = make(workers=((1, 0), (1, 0), (1, 0)), slow_starts=0.0)
    unable = world.agents[2]
    unable.plan = replace(world.plan, given_back=1.0, slow_starts=1.0)
    world.clients[0].submit("gang", spec(300.0, command=True, nodes=3))
    until(world, "gang", State.RUNNING, State.RUNNING, State.ASSIGNED)
    if crash:
        world.crash_control_plane(1.0)
    world.run(60.0)
    views = {key: view for key, view in world.truth.views.items() if "/" in key}
    assert [view.state for view in views.values()] == [State.CANCELLED, State.CANCELLED, State.FAILED]
    problem = views[f"{name_of(world, 'gang')}/2"].outcome
    assert problem is not None
    assert "had begun already" in problem.problem
    assert state_of(world, "gang") is State.FAILED
    ended(world)


@staged(forgotten_words=[0.0, 1.0])
def one_of_a_gang_that_had_begun_unheard_is_not_begun_again(make: Make, forgotten_words: float) -> None:
    """Two are so young that nobody has told of them when the third can't begin: they ran, and can't be taken back."""
    world = make(workers=((1, 0), (1, 0), (1, 0)), prepare_s=0.001, forgotten_words=forgotten_words)
    unable = world.agents[2]
    unable.plan = replace(world.plan, given_back=1.0, prepare_s=0.05)
    world.clients[0].submit("gang", spec(300.0, command=True, nodes=3))
    while not name_of(world, "gang") or State.QUEUED not in states_of(world, "gang"):
        world.run(0.001)
    unable.plan = world.plan
    assert states_of(world, "gang") == [State.ASSIGNED, State.ASSIGNED, State.QUEUED]
    assert [program.live for program in world.truth.programs.values()] == [True, True]
    world.run(30.0)
    views = {key: view for key, view in world.truth.views.items() if "/" in key}
    assert [view.state for view in views.values()] == [State.CANCELLED, State.CANCELLED, State.FAILED]
    outcome = views[f"{name_of(world, 'gang')}/2"].outcome
    assert outcome is not None
    assert outcome.problem.endswith("had run before all the others could begin")
    ended(world)
    assert len(world.truth.programs) == 2


@staged()
def one_of_a_gang_that_was_out_of_reach_is_taken_back_when_it_is_there_again(make: Make) -> None:
    world = make(workers=((1, 0), (1, 0), (1, 0)), prepare_s=60.0)
    unable, away = world.agents[2], world.agents[0]
    unable.plan = replace(world.plan, given_back=1.0, prepare_s=0.5)
    world.clients[0].submit("gang", spec(1.0, command=True, nodes=3))
    until(world, "gang", *[State.ASSIGNED] * 3)
    world.run(0.05)  # it is there
    world.network.break_off(away.end, silent=False)  # type: ignore[arg-type]
    world.network.part(away.name, 9.0)
    while State.UNREACHABLE not in states_of(world, "gang"):
        world.run(0.1)
    assert states_of(world, "gang") == [State.UNREACHABLE, State.ASSIGNED, State.QUEUED]
    unable.plan = away.plan = world.plan
    world.plan.prepare_s = 0.1
    assert {view.state for view in ended(world)} == {State.SUCCEEDED}
    assert len(world.truth.programs) == 3


@staged()
def a_gang_is_cancelled_and_given_up_as_a_whole(make: Make) -> None:
    world = make(workers=((1, 0), (1, 0)))
    client = world.clients[0]
    client.submit("gang", spec(300.0, command=True, nodes=2))
    world.run(5.0)
    away = next(agent for agent in world.agents if attempt_of(tasks_of(world, "gang")[0]).worker == f"id-{agent.name}")
    world.kill_machine(away)
    world.run(30.0)
    assert states_of(world, "gang") == [State.UNREACHABLE, State.RUNNING]
    client.cancel("gang", give_up=True)
    world.run(40.0)
    assert state_of(world, "gang") is State.FAILED
    views = [view for key, view in world.truth.views.items() if "/" in key]
    assert [view.state for view in views] == [State.FAILED, State.CANCELLED]


# ---------------------------------------------------------------- devices, memory, cores


@staged()
def small_jobs_share_a_device_and_one_that_wants_it_whole_waits(make: Make) -> None:
    world = make(workers=((4, 1),))
    client = world.clients[0]
    for number in range(3):
        client.submit(f"small{number}", spec(20.0, command=True, vram_share_bytes=8 * GB))
    client.submit("large", spec(1.0, command=True, vram_share_bytes=8 * GB))
    client.submit("whole", spec(1.0, command=True, devices=1))
    world.run(3.0)
    running = [state_of(world, f"small{number}") for number in range(3)]
    assert running == [State.RUNNING] * 3
    assert [state_of(world, key) for key in ("large", "whole")] == [State.QUEUED, State.QUEUED]
    assert [reason.code for reason in looked_at(world, "large").reasons] == ["vram_busy"]
    assert [reason.code for reason in looked_at(world, "whole").reasons] == ["devices_busy"]
    assert {view.state for view in ended(world)} == {State.SUCCEEDED}


@staged()
def declared_memory_and_cores_are_taken_from_what_is_left(make: Make) -> None:
    world = make(workers=((4, 0),))
    client = world.clients[0]
    client.submit("first", spec(20.0, command=True, ram_bytes=40 * GB, cpu_cores=4.0))
    client.submit("ram", spec(1.0, command=True, ram_bytes=30 * GB))
    client.submit("cores", spec(1.0, command=True, cpu_cores=3.0))
    client.submit("both", spec(1.0, command=True, ram_bytes=GB, cpu_cores=1.0))
    world.run(3.0)
    assert [state_of(world, key) for key in ("first", "ram", "cores")] == [State.RUNNING, State.QUEUED, State.QUEUED]
    assert state_of(world, "both") is not State.QUEUED
    assert [reason.code for reason in looked_at(world, "ram").reasons] == ["ram_busy"]
    assert [reason.code for reason in looked_at(world, "cores").reasons] == ["cpu_busy"]
    assert {view.state for view in ended(world)} == {State.SUCCEEDED}


@staged()
def a_device_that_falls_sick_takes_nothing_until_it_is_mended(make: Make) -> None:
    world = make(workers=((3, 2),))
    client, agent = world.clients[0], world.agents[0]
    client.submit("runs", spec(30.0, command=True, devices=2))
    world.run(2.0)
    agent.machine.sick.add("w0-gpu0")
    agent.machine_changed()
    world.run(1.0)
    assert state_of(world, "runs") is State.RUNNING
    client.submit("one", spec(1.0, command=True, devices=1))
    client.submit("two", spec(1.0, command=True, devices=2))
    world.run(1.0)
    assert (state_of(world, "one"), state_of(world, "two")) == (State.QUEUED, State.REJECTED)
    assert world.control_plane.store.load().workers[0].inventory == agent.machine.inventory
    agent.machine.sick.clear()
    agent.machine_changed()
    world.run(1.0)
    client.submit("again", spec(1.0, command=True, devices=2))
    world.run(1.0)
    assert state_of(world, "again") is State.QUEUED
    assert [view.state for view in ended(world)].count(State.SUCCEEDED) == 3


@staged()
def what_a_stranger_has_of_a_device_is_no_room_and_that_it_went_is_seen(make: Make) -> None:
    world = make(workers=((2, 1),), samples=1.0)
    client, agent = world.clients[0], world.agents[0]
    agent.machine.foreign.add("w0-gpu0")
    world.run(2.0)
    client.submit("key", spec(1.0, command=True, devices=1))
    world.run(1.0)
    assert [reason.code for reason in looked_at(world, "key").reasons] == ["foreign"]
    agent.machine.foreign.clear()
    world.run(3.0)
    assert state_of(world, "key") is not State.QUEUED
    assert {view.state for view in ended(world)} == {State.SUCCEEDED}


@staged()
def the_words_about_a_machine_on_a_connection_that_was_replaced_are_not_heard(make: Make) -> None:
    world = make(workers=((2, 1),))
    plane, machine = world.control_plane, world.machines[0]
    old = plane.plane.workers["id-w0"].conn or 0
    world.leave_half_open(world.agents[0])
    world.run(1.0)
    before = plane.plane.workers["id-w0"].inventory
    machine.sick.add("w0-gpu0")
    words = (InventoryChanged(inventory=machine.inventory), Sampled(sample=machine.sample))
    plane.handle(WorkerSaid(conn=old, messages=words))
    worker = plane.plane.workers["id-w0"]
    assert (worker.inventory, worker.sample) == (before, None)


@staged()
def memory_that_was_short_for_less_than_a_tick_is_seen_to_be_there_again(make: Make) -> None:
    world = make(workers=((2, 0),))
    client, plane = world.clients[0], world.control_plane
    conn = plane.plane.workers["id-w0"].conn or 0

    def measured(free_bytes: int) -> None:
        plane.handle(WorkerSaid(conn=conn, messages=(Sampled(sample=Sample(ram_free_bytes=free_bytes)),)))

    measured(11 * GB)
    client.submit("more", spec(1.0, command=True, ram_bytes=50 * GB))
    world.run(1.3)
    measured(9 * GB)
    client.submit("key", spec(1.0, command=True, ram_bytes=10 * GB))
    while not name_of(world, "key"):
        world.run(0.01)
    assert state_of(world, "key") is State.QUEUED
    measured(12 * GB)
    world.run(1.0)
    assert (state_of(world, "key"), state_of(world, "more")) != (State.QUEUED, State.QUEUED)
    measured(64 * GB)
    assert {view.state for view in ended(world)} == {State.SUCCEEDED}


@staged()
def how_a_worker_fares_is_not_known_any_more_when_it_says_nothing_of_it(make: Make) -> None:
    world = make(workers=((2, 1),), samples=1.0)
    world.run(3.0)
    worker = world.control_plane.plane.workers["id-w0"]
    assert worker.sample is not None
    world.plan.samples = 0.0
    world.run(25.0)
    assert worker.sample is not None
    world.run(10.0)
    assert worker.sample is None
    assert worker.conn is not None


# ---------------------------------------------------------------- limits


@staged()
def an_owner_holds_no_more_than_the_limit_and_others_go_on(make: Make) -> None:
    world = make(workers=((4, 0),), owners=2)
    plane = world.control_plane
    plane.handle(LimitsSet(limits={"owner0": Limits(max_running=1)}))
    for number in range(3):
        world.clients[0].submit(f"key{number}", spec(5.0, command=True))
    world.clients[1].submit("other", spec(5.0, command=True))
    for _ in range(60):
        world.run(0.2)
        worker = plane.plane.workers["id-w0"]
        assert sum(claim.owner == "owner0" for claim in worker.claims.values()) <= 1
    assert {view.state for view in ended(world)} == {State.SUCCEEDED}
    assert len(world.truth.programs) == 4


# ---------------------------------------------------------------- ahead of slots


_WAITS_FOR: dict[str, dict[str, Any]] = {
    "a device": {"devices": 1},
    "that worker": {"worker": "w0"},
    "a session": {"session": "s"},
}


@staged(what=[*_WAITS_FOR])
def a_worker_for_whose_slot_somebody_waits_takes_nothing_ahead_of_him(make: Make, what: str) -> None:
    """He stands before many small commands: the next slot is his, though they would be over sooner."""
    world = make(workers=((1, 1),), prepare_s=0.005)
    client, programs = world.clients[0], world.truth.programs
    for number in range(60):
        client.submit(f"small{number}", spec(0.005, command=True, quiet=True))
    worker = world.control_plane.plane.workers["id-w0"]
    while len(worker.claims) < 3 and len(programs) < 30:  # so small that some are there before there is a slot
        world.run(0.005)
    assert len(worker.claims) >= 3
    client.submit("first", spec(0.5, command=what != "a session", priority=5, **_WAITS_FOR[what]))
    while not name_of(world, "first"):
        world.run(0.001)
    most = len(programs) + len(worker.claims) + 1  # those that are there, and himself
    while name_of(world, "first") not in world.truth.of_task and len(programs) <= most:
        world.run(0.001)
    assert len(programs) <= most
    assert {view.state for view in ended(world)} == {State.SUCCEEDED}


@staged()
def one_who_stands_behind_them_keeps_no_small_commands_from_going_ahead(make: Make) -> None:
    world = make(workers=((1, 1),), prepare_s=0.005)
    client, programs = world.clients[0], world.truth.programs
    client.submit("last", spec(0.5, command=True, priority=-5, devices=1))
    world.run(10.0)
    client.submit("last2", spec(0.5, command=True, priority=-5, devices=1))
    for number in range(60):
        client.submit(f"small{number}", spec(0.005, command=True, quiet=True))
    worker = world.control_plane.plane.workers["id-w0"]
    while len(worker.claims) < 3 and len(programs) < 50:
        world.run(0.005)
    assert len(worker.claims) >= 3
    assert {view.state for view in ended(world)} == {State.SUCCEEDED}

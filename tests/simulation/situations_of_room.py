"""Situations of room: what is kept for those who stand before others or wait long, and what limits hold back."""

from __future__ import annotations

from typing import Any

from gpulayer.protocol.messages import Ahead, Heartbeat
from gpulayer.protocol.types import Outcome, State
from gpulayer_server.core.events import Answer, LimitsSet, Submission, SubmittedBatch, WorkerSaid
from gpulayer_server.core.state import Limits, Worker
from tests.simulation.clients import spec
from tests.simulation.situations_of_commands import looked_at, name_of, state_of
from tests.simulation.situations_of_fleets import states_of, until
from tests.simulation.staging import Make, attempt_of, ended, staged
from tests.simulation.world import World

_LONG = 5000.0  # seconds: longer than anybody looks


def worker_of(world: World, number: int = 0) -> Worker:
    """A worker as the plane knows it."""
    return world.control_plane.plane.workers[f"id-w{number}"]


def say_ahead(world: World, count: int, number: int = 0) -> None:
    """A worker lets so many small commands wait for a slot there."""
    conn = worker_of(world, number).conn or 0
    world.control_plane.handle(WorkerSaid(conn=conn, messages=(Ahead(count=count),)))


def submitted(world: World, key: str, seconds: float = _LONG, **asks: Any) -> None:
    """Submit a command that is there a moment later."""
    world.clients[0].submit(key, spec(seconds, command=True, **asks))
    while not name_of(world, key):
        world.run(0.001)


def cancelled(world: World, *keys: str) -> None:
    """Cancel jobs, and let what is left come to its end."""
    for key in keys:
        world.clients[0].cancel(key)
    ended(world)


# ---------------------------------------------------------------- full, and in a session


@staged()
def a_full_worker_takes_nothing_where_a_slot_comes_free(make: Make) -> None:
    world = make(workers=((1, 0),))
    worker = worker_of(world)
    submitted(world, "runs", 3.0)
    submitted(world, "waits", 3.0)
    (waits,) = world.control_plane.plane.jobs[name_of(world, "waits")].tasks
    while worker.claims:
        full = WorkerSaid(conn=worker.conn or 0, messages=(Heartbeat(full="its disk is full"),))
        world.control_plane.handle(full)
        world.run(0.005)
    assert worker.full
    assert waits.state is State.QUEUED
    assert {view.state for view in ended(world)} == {State.SUCCEEDED}


@staged()
def a_cell_that_asks_for_more_than_its_session_holds_is_rejected(make: Make) -> None:
    world = make(workers=((2, 1),))
    client = world.clients[0]
    client.submit("first", spec(0.1, session="a"))
    world.run(5.0)
    client.submit("second", spec(0.1, session="a", devices=1))
    world.run(1.0)
    assert state_of(world, "second") is State.REJECTED
    assert [reason.code for reason in world.truth.views[name_of(world, "second")].reasons] == ["session"]
    ended(world)


@staged()
def a_cell_that_came_while_its_sessions_worker_was_away_runs_when_it_is_back(make: Make) -> None:
    world = make(workers=((2, 0),))
    client = world.clients[0]
    client.submit("first", spec(0.1, session="a"))
    world.run(5.0)
    world.network.part("w0", 20.0)
    world.network.break_off(world.agents[0].end, silent=False)  # type: ignore[arg-type]
    world.run(3.0)
    client.submit("second", spec(0.1, session="a"))
    world.run(1.0)
    assert states_of(world, "second") == [State.QUEUED]
    while worker_of(world).conn is None:
        world.run(0.001)
    assert states_of(world, "second") == [State.ASSIGNED]
    assert {view.state for view in ended(world)} == {State.SUCCEEDED}


# ---------------------------------------------------------------- many machines at once


@staged(how=["exit code 3", "signal 11", "it was too warm"])
def the_others_of_a_gang_say_how_one_of_them_ended(make: Make, how: str) -> None:
    outcome = {
        "exit code 3": Outcome(state=State.FAILED, exit_code=3),
        "signal 11": Outcome(state=State.FAILED, signal=11, exit_code=139),
        "it was too warm": Outcome(state=State.FAILED, signal=9, problem="it was too warm"),
    }[how]
    world = make(workers=((1, 0), (1, 0)))
    submitted(world, "gang", nodes=2)
    until(world, "gang", State.RUNNING, State.RUNNING)
    task = world.control_plane.plane.jobs[name_of(world, "gang")].tasks[1]
    attempt = attempt_of(task)
    agent = next(each for each in world.agents if f"id-{each.name}" == attempt.worker)
    agent.runs[attempt.id].end_as(outcome)
    world.run(30.0)
    other = world.truth.views[f"{name_of(world, 'gang')}/0"]
    assert other.outcome is not None
    assert other.outcome.problem == f"node 1 ({agent.name}) failed: {how}"
    ended(world)


@staged()
def all_gangs_that_there_is_room_for_are_placed_when_the_limit_is_lifted(make: Make) -> None:
    world = make(workers=((1, 0),) * 5)
    world.control_plane.handle(LimitsSet(limits={"owner0": Limits(max_running=1)}))
    for key in ("one", "two", "three"):
        submitted(world, key, 1.0, nodes=2)
    assert [state_of(world, key) for key in ("one", "two", "three")] == [State.QUEUED] * 3
    world.control_plane.handle(LimitsSet(limits={}))
    assert [states_of(world, key) for key in ("one", "two")] == [[State.ASSIGNED] * 2] * 2
    assert states_of(world, "three") == [State.QUEUED] * 2
    assert {view.state for view in ended(world)} == {State.SUCCEEDED}


@staged()
def the_parts_of_a_batch_are_placed_together(make: Make) -> None:
    world = make(workers=((1, 0),))
    answers: list[Answer] = []

    def part(key: str, priority: int, more: bool) -> None:
        new = Submission(key=key, payload_hash="", spec=spec(1.0, command=True, priority=priority))
        batch = {"owner": "owner0", "submissions": (new,), "more": more}
        world.control_plane.request(lambda n: SubmittedBatch(request=n, **batch), answers.append)

    part("low", 0, more=True)
    (low,) = world.control_plane.plane.tasks.values()
    assert low.state is State.QUEUED
    part("high", 5, more=False)
    high = [task for task in world.control_plane.plane.tasks.values() if task is not low]
    assert (low.state, [task.state for task in high]) == (State.QUEUED, [State.ASSIGNED])
    assert {view.state for view in ended(world)} == {State.SUCCEEDED}
    assert len(answers) == 2


# ---------------------------------------------------------------- limits


@staged()
def one_who_had_all_that_he_may_have_gets_room_on_another_worker_when_he_has_less(make: Make) -> None:
    world = make(workers=((1, 0), (1, 0)))
    world.control_plane.handle(LimitsSet(limits={"owner0": Limits(max_running=1)}))
    submitted(world, "one", worker="w0")
    submitted(world, "two", worker="w1")
    world.run(3.0)
    assert (state_of(world, "one"), states_of(world, "two")) == (State.RUNNING, [State.QUEUED])
    world.clients[0].cancel("one")
    while worker_of(world, 0).claims:
        world.run(0.001)
    assert states_of(world, "two") == [State.ASSIGNED]
    cancelled(world, "two")


@staged()
def one_who_may_have_no_more_keeps_no_slot_from_others(make: Make) -> None:
    world = make(workers=((1, 1),), owners=2)
    world.control_plane.handle(LimitsSet(limits={"owner1": Limits(max_devices=0)}))
    submitted(world, "runs")
    say_ahead(world, 4)
    world.clients[1].submit("first", spec(1.0, command=True, devices=1, priority=5))
    world.run(1.0)
    submitted(world, "small", 0.1)
    assert states_of(world, "small") == [State.ASSIGNED]
    world.control_plane.handle(LimitsSet(limits={}))
    cancelled(world, "runs")


# ---------------------------------------------------------------- ahead of slots


_NOT_SMALL: dict[str, dict[str, Any]] = {
    "a device": {"devices": 1, "command": True},
    "memory": {"ram_bytes": 10**9, "command": True},
    "a cell": {},
    "a session": {"session": "s"},
}


@staged(what=[*_NOT_SMALL])
def nothing_but_small_commands_waits_for_a_slot_on_a_worker(make: Make, what: str) -> None:
    world = make(workers=((1, 1),))
    submitted(world, "runs")
    say_ahead(world, 4)
    world.clients[0].submit("large", spec(0.1, **_NOT_SMALL[what]))
    world.run(2.0)
    assert states_of(world, "large") == [State.QUEUED]
    assert len(worker_of(world).claims) == 1
    cancelled(world, "runs")
    assert state_of(world, "large") is State.SUCCEEDED


@staged()
def a_cell_that_waits_for_its_session_keeps_no_slot_from_others(make: Make) -> None:
    """It needs none: its session has one."""
    world = make(workers=((1, 0),))
    client = world.clients[0]
    client.submit("first", spec(_LONG, session="s"))
    world.run(3.0)
    say_ahead(world, 4)
    client.submit("second", spec(0.1, session="s"))
    world.run(1.0)
    submitted(world, "small", 0.1)
    assert states_of(world, "second") == [State.QUEUED]
    assert states_of(world, "small") == [State.ASSIGNED]
    client.release("s")
    ended(world)


@staged()
def small_commands_go_ahead_once_the_one_who_stood_before_them_has_left(make: Make) -> None:
    world = make(workers=((1, 1),))
    submitted(world, "runs")
    say_ahead(world, 4)
    submitted(world, "first", priority=5, devices=1)
    submitted(world, "small", 0.1)
    world.run(2.0)
    assert states_of(world, "small") == [State.QUEUED]
    world.clients[0].cancel("first")
    while state_of(world, "first") is not State.CANCELLED:
        world.run(0.001)
    assert states_of(world, "small") == [State.ASSIGNED]
    cancelled(world, "runs")


@staged(another_waits=[False, True])
def small_commands_go_ahead_once_the_one_who_stood_before_them_goes_elsewhere(make: Make, another_waits: bool) -> None:
    world = make(workers=((1, 1), (1, 1)))
    submitted(world, "runs", worker="w0")
    submitted(world, "other", worker="w1", devices=1)
    if another_waits:
        submitted(world, "another", 0.1, worker="w1", priority=-5)
    say_ahead(world, 4)
    submitted(world, "first", priority=5, devices=1)
    submitted(world, "small", 0.1)
    world.run(2.0)
    assert states_of(world, "small") == [State.QUEUED]
    world.clients[0].cancel("other")
    while states_of(world, "first") == [State.QUEUED]:
        world.run(0.001)
    task = world.control_plane.plane.jobs[name_of(world, "small")].tasks[0]
    assert (task.state, attempt_of(task).worker) == (State.ASSIGNED, "id-w0")
    cancelled(world, "runs", "first")


@staged()
def what_waited_ahead_of_slots_in_vain_waits_in_line_from_then_on(make: Make) -> None:
    """Though the word that more may wait there is an old one, said again, of which its worker does not know."""
    world = make(workers=((1, 1),))
    submitted(world, "runs")
    say_ahead(world, 4)
    for number in range(6):
        submitted(world, f"small{number}", 0.1)
    world.run(20.0)
    views = [looked_at(world, f"small{number}") for number in range(6)]
    assert {view.state for view in views} == {State.QUEUED}
    assert [view.attempts for view in views] == [1, 1, 1, 1, 0, 0]
    cancelled(world, "runs")
    assert state_of(world, "small5") is State.SUCCEEDED


# ---------------------------------------------------------------- what is reserved


def reserved(world: World) -> None:
    """Wait until something is reserved."""
    while not world.control_plane.plane.reservations:
        world.run(0.1)


@staged(what=["devices", "machines"])
def who_waits_long_for_much_gets_it_though_there_is_always_somebody_who_wants_less(make: Make, what: str) -> None:
    """As soon as something is free it is taken by one of the others: they would go on so until none of them is left."""
    workers, one, both = {
        "devices": (((4, 2),), {"devices": 1}, {"devices": 2}),
        "machines": (((1, 0), (1, 0)), {}, {"nodes": 2}),
    }[what]
    world = make(workers=workers)
    for number in range(2):
        submitted(world, f"small{number}", 8.0, quiet=True, **one)
    submitted(world, "large", 1.0, **both)
    for number in range(2, 40):
        submitted(world, f"small{number}", 8.0, quiet=True, **one)
    for _ in range(70):
        world.run(1.0)
    assert state_of(world, "large") is not State.QUEUED
    wait = [key for key in world.clients[0].wanted if state_of(world, key) is State.QUEUED]
    assert len(wait) > 5
    assert {view.state for view in ended(world)} == {State.SUCCEEDED}


@staged(leaves=[False, True])
def what_was_reserved_is_there_for_others_at_once_when_it_is_not_needed(make: Make, leaves: bool) -> None:
    """A slot is kept for one who waits for two devices: until he has them, and a slot, or leaves."""
    world = make(workers=((2, 2),))
    submitted(world, "runs", devices=1)
    submitted(world, "large", devices=2)
    reserved(world)
    submitted(world, "small", 0.1)
    world.run(1.0)
    assert states_of(world, "small") == [State.QUEUED]
    assert [reason.code for reason in looked_at(world, "small").reasons] == ["reserved"]
    world.clients[0].cancel("large" if leaves else "runs")
    while state_of(world, "large") is State.QUEUED:
        world.run(0.001)
    assert states_of(world, "small") == [State.ASSIGNED]
    cancelled(world, "runs", "large")

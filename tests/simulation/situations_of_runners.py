"""Situations of runners: how maps and runners end, who gets their place, and objects that live in one."""

from __future__ import annotations

from gpulayer.protocol.calls import RAISED, RUNNER_DIED, CallsSpec, FunctionSpec
from gpulayer.protocol.types import JobSpec, Requirements, State
from tests.simulation.clients import spec
from tests.simulation.runners import Runner
from tests.simulation.situations_of_calls import call, calls, runners, runs_of, view_of
from tests.simulation.staging import Make, ended, said, staged

_LONG = 5000.0  # seconds: longer than anybody looks


# ---------------------------------------------------------------- ends


@staged()
def a_call_that_raises_is_tried_again_and_stops_its_map_then(make: Make) -> None:
    world = make(workers=((1, 0),))
    call(world, "map", 0.1, 0.1, deed="raise", retries=2, backoff_s=1.0)
    world.run(2.0)
    assert view_of(world, "map").state is State.RUNNING
    world.run(8.0)
    view = view_of(world, "map")
    assert (view.state, view.failed_index, view.failed_code) == (State.FAILED, 1, RAISED)
    assert runs_of(world, "map") == [1, 3]
    call(world, "again", 0.1)
    world.run(2.0)
    assert view_of(world, "again").state is State.SUCCEEDED
    ended(world)


@staged()
def a_map_that_is_cancelled_frees_its_runner_for_the_next(make: Make) -> None:
    world = make(workers=((1, 0),))
    call(world, "map", *[_LONG] * 5)
    world.run(3.0)
    (runner,) = runners(world)
    world.callers[0].cancel("map")
    world.run(2.0)
    assert view_of(world, "map").state is State.CANCELLED
    call(world, "next", 0.1)
    world.run(3.0)
    assert view_of(world, "next").state is State.SUCCEEDED
    assert runners(world) == [runner]
    ended(world)
    assert sum(runs_of(world, "map")) == 1


@staged()
def a_cancel_is_heard_by_a_worker_that_was_away(make: Make) -> None:
    world = make(workers=((1, 0),))
    call(world, "map", _LONG, _LONG)
    world.run(3.0)
    world.network.part("w0", 8.0)
    world.run(1.0)
    agent = world.agents[0]
    if agent.end is not None:
        world.network.break_off(agent.end, silent=False)
    world.run(2.0)
    world.callers[0].cancel("map")
    world.run(10.0)
    call(world, "next", 0.1)
    world.run(8.0)
    assert view_of(world, "next").state is State.SUCCEEDED
    ended(world)


@staged()
def runners_whose_job_is_cancelled_are_gone(make: Make) -> None:
    world = make(workers=((2, 0),))
    call(world, "map", *[_LONG] * 5)
    world.run(5.0)
    assert len(runners(world)) == 2
    world.callers[0].cancel_job(view_of(world, "map").job)
    world.run(10.0)
    assert runners(world) == []
    assert view_of(world, "map").state is State.CANCELLED
    assert world.truth.views[view_of(world, "map").job].state is State.CANCELLED
    ended(world)


@staged()
def an_idle_runner_ends_by_itself(make: Make) -> None:
    world = make(workers=((1, 0),))
    call(world, "map", 0.1, of=calls(idle_timeout_s=5.0))
    world.run(4.0)
    assert len(runners(world)) == 1
    world.run(8.0)
    assert runners(world) == []
    assert world.truth.views[view_of(world, "map").job].state is State.SUCCEEDED
    ended(world)


@staged()
def a_map_that_nobody_could_run_is_rejected_with_reasons(make: Make) -> None:
    world = make(workers=((1, 0),))
    spec_of = JobSpec(
        calls=CallsSpec(function=FunctionSpec(name="g", qualname="g")),
        requirements=Requirements(accelerator="cuda", devices=1),
    )
    call(world, "map", 0.1, of=spec_of)
    world.run(70.0)
    view = view_of(world, "map")
    assert (view.state, bool(view.reasons)) == (State.REJECTED, True)
    ended(world)


# ---------------------------------------------------------------- others


@staged()
def an_idle_runner_makes_room(make: Make) -> None:
    world = make(workers=((1, 0),))
    call(world, "map", 0.1)
    world.run(3.0)
    assert len(runners(world)) == 1
    world.clients[0].submit("job", spec(1.0, command=True))
    world.run(3.0)
    assert runners(world) == []
    ended(world)
    assert [view.state for view in world.truth.views.values() if view.kind == "command"] == [State.SUCCEEDED]


@staged()
def busy_runners_make_room_for_another_owner_and_nothing_runs_twice(make: Make) -> None:
    world = make(workers=((3, 0),), owners=2)
    call(world, "map", *[4.0] * 20)
    world.run(5.0)
    assert len(runners(world)) == 3
    world.clients[1].submit("job", spec(3.0, command=True))
    world.run(12.0)
    assert len(said(world, "cp", "sends", "EndRunner(")) == 1
    programs = [each for each in world.truth.programs.values() if not isinstance(each, Runner)]
    assert len(programs) == 1
    world.run(60.0)
    assert runs_of(world, "map") == [1] * 20
    ended(world)


@staged()
def runners_that_are_let_go_of_end_after_their_last_call(make: Make) -> None:
    world = make(workers=((1, 0),))
    call(world, "map", 3.0, 3.0)
    world.run(3.0)
    job = view_of(world, "map").job
    world.callers[0].let_go(job)
    world.run(1.0)
    assert len(runners(world)) == 1
    world.run(10.0)
    assert runners(world) == []
    assert view_of(world, "map").state is State.SUCCEEDED
    call(world, "next", 0.1)
    world.run(3.0)
    assert view_of(world, "next").job != job
    ended(world)


# ---------------------------------------------------------------- objects


@staged()
def an_object_keeps_its_runner_and_its_order(make: Make) -> None:
    world = make(workers=((2, 0), (2, 0)))
    of = calls(stateful=True, instance="i")
    call(world, "one", *[0.3] * 4, of=of)
    call(world, "two", *[0.3] * 4, of=of)
    world.run(8.0)
    assert len(runners(world)) == 1
    assert [view_of(world, key).state for key in ("one", "two")] == [State.SUCCEEDED] * 2
    order = [line.split("runs call")[1] for line in said(world, "runs call")]
    assert order == sorted(order)
    ended(world)


@staged()
def an_object_whose_runner_dies_fails_its_calls_for_good(make: Make) -> None:
    world = make(workers=((1, 0),))
    of = calls(stateful=True, instance="i")
    call(world, "map", *[2.0] * 4, of=of)
    world.run(4.0)
    (runner,) = runners(world)
    runner.kernel.die()
    world.run(5.0)
    view = view_of(world, "map")
    assert (view.state, view.failed_code) == (State.FAILED, RUNNER_DIED)
    call(world, "later", 0.1, of=of)
    world.run(3.0)
    assert world.callers[0].wishes["later"].refused
    assert runners(world) == []
    ended(world)


@staged()
def an_object_waits_for_its_machine(make: Make) -> None:
    world = make(workers=((1, 0), (1, 0)))
    of = calls(stateful=True, instance="i")
    call(world, "map", *[20.0] * 3, of=of)
    world.run(4.0)
    (runner,) = runners(world)
    world.network.part(runner.kernel.machine.name, 100.0)
    world.run(200.0)
    assert runners(world) == [runner]
    assert view_of(world, "map").state is State.SUCCEEDED
    assert runs_of(world, "map") == [1] * 3
    ended(world)

"""Situations of calls: maps, the runners that take them, and what befalls these in the middle of it."""

from __future__ import annotations

from typing import Any

from gpulayer.protocol.calls import RAISED, RUNNER_DIED, CallsSpec, FunctionSpec, MapSpec, MapView
from gpulayer.protocol.types import JobSpec, Requirements, State
from gpulayer_server.core.calls.pool import Pool
from tests.simulation.clients import spec
from tests.simulation.runners import Runner
from tests.simulation.staging import Make, ended, said, staged
from tests.simulation.world import World

_LONG = 5000.0  # seconds: longer than anybody looks


def calls(name: str = "f", *, priority: int = 0, **options: Any) -> JobSpec:
    """A function."""
    return JobSpec(
        calls=CallsSpec(function=FunctionSpec(name=name, qualname=name), **options),
        requirements=Requirements(),
        priority=priority,
    )


def call(
    world: World, key: str, *seconds: float, deed: str = "ok", of: JobSpec | None = None, owner: int = 0, **options: Any
) -> None:
    """Open a map of calls that take so long each; `deed`: what the last one does."""
    deeds = [*["ok"] * (len(seconds) - 1), deed]
    args = tuple([f"{key}:{n}:{each}:{deeds[n]}".encode() for n, each in enumerate(seconds)])
    world.callers[owner].call(key, of or calls(), MapSpec(**options), args)


def view_of(world: World, key: str, owner: int = 0) -> MapView:
    """What was told last of a map."""
    wish = world.callers[owner].wishes[key]
    assert wish.view is not None
    return world.truth.calls.views[wish.view.id]


def pool_of(world: World, key: str) -> Pool:
    """Its runners, as the plane knows them."""
    return world.control_plane.plane.calls.by_job[view_of(world, key).job]


def runs_of(world: World, key: str) -> list[int]:
    """How often each of its calls ran."""
    view = view_of(world, key)
    return [world.truth.calls.runs[view.id, index] for index in range(view.taken)]


def runners(world: World) -> list[Runner]:
    """Those that are there."""
    return [each.program for machine in world.machines for each in machine.kernels if isinstance(each.program, Runner)]


# ---------------------------------------------------------------- warm


@staged()
def a_warm_call_needs_no_other_runner(make: Make) -> None:
    world = make(workers=((2, 0),))
    call(world, "first", 0.01, single=True)
    world.run(3.0)
    assert view_of(world, "first").state is State.SUCCEEDED
    before = len(said(world, "Assign("))
    for number in range(5):
        call(world, f"warm{number}", 0.01, single=True)
        world.run(0.5)
        assert view_of(world, f"warm{number}").state is State.SUCCEEDED
    assert len(said(world, "Assign(")) == before
    assert len(runners(world)) == 1
    ended(world)


@staged()
def a_map_of_long_calls_gets_all_slots_and_ends_evenly(make: Make) -> None:
    world = make(workers=((2, 0), (2, 0)))
    call(world, "map", *[10.0] * 16)
    world.run(48.0)
    assert view_of(world, "map").state is State.SUCCEEDED
    assert runs_of(world, "map") == [1] * 16
    ended(world)


@staged()
def short_calls_get_no_further_runner(make: Make) -> None:
    world = make(workers=((4, 0),))
    call(world, "first", 0.001)
    world.run(3.0)
    call(world, "map", *[0.001] * 60)
    world.run(3.0)
    assert view_of(world, "map").state is State.SUCCEEDED
    assert len(runners(world)) == 1
    ended(world)


@staged()
def what_waits_behind_a_long_call_is_called_back(make: Make) -> None:
    world = make(workers=((1, 0), (1, 0)))
    call(world, "both", 5.0, 5.0)
    world.run(15.0)
    assert len(runners(world)) == 2
    call(world, "map", *[0.002] * 30, 60.0, *[0.002] * 30)
    world.run(20.0)
    assert view_of(world, "map").done >= 57  # the process with the long one may have others: they are its
    assert said(world, "RecallCalls(")
    ended(world)
    assert runs_of(world, "map") == [1] * 61


# ---------------------------------------------------------------- trouble


@staged(silent=[False, True])
def a_control_plane_that_dies_in_mid_map_loses_no_finished_call(make: Make, silent: bool) -> None:
    world = make(workers=((2, 0),))
    call(world, "map", *[1.0] * 12)
    world.run(5.0)
    assert 0 < view_of(world, "map").done < 12
    world.crash_control_plane(1.0, silent=silent)
    world.run(60.0)
    assert view_of(world, "map").state is State.SUCCEEDED
    assert runs_of(world, "map") == [1] * 12
    ended(world)


@staged()
def nothing_is_given_out_while_it_is_not_known_what_runs(make: Make) -> None:
    world = make(workers=((1, 0), (1, 0)))
    call(world, "map", *[30.0] * 4, of=calls(max_runners=2))
    world.run(5.0)
    assert len(runners(world)) == 2
    world.network.part("w0", 4.0)
    world.crash_control_plane(0.5)
    world.run(3.0)
    assert pool_of(world, "map").unheard
    world.run(150.0)
    assert view_of(world, "map").state is State.SUCCEEDED
    assert runs_of(world, "map") == [1] * 4
    ended(world)


@staged()
def a_runner_that_dies_costs_only_the_call_that_it_ran(make: Make) -> None:
    world = make(workers=((1, 0),))
    call(world, "map", *[0.5] * 10)
    world.run(4.0)
    (runner,) = runners(world)
    assert runner.running is not None
    died = runner.running.key[1]
    runner.kernel.die()
    world.run(20.0)
    assert view_of(world, "map").state is State.SUCCEEDED
    assert runs_of(world, "map") == [2 if index == died else 1 for index in range(10)]
    ended(world)


@staged()
def a_call_that_kills_its_runners_has_failed(make: Make) -> None:
    world = make(workers=((1, 0),))
    call(world, "map", 0.1, 0.1, deed="die", return_exceptions=True)
    world.run(10.0)
    view = view_of(world, "map")
    assert (view.state, view.failed) == (State.SUCCEEDED, 1)
    assert world.truth.calls.results[view.id, 1][0] == RUNNER_DIED
    assert runs_of(world, "map") == [1, 2]
    ended(world)


@staged()
def an_agent_that_dies_leaves_its_runner_at_work(make: Make) -> None:
    world = make(workers=((1, 0),))
    call(world, "map", *[3.0] * 4)
    world.run(4.0)
    (runner,) = runners(world)
    world.crash_agent(world.agents[0], 1.0)
    world.run(20.0)
    assert runners(world) == [runner]
    assert view_of(world, "map").state is State.SUCCEEDED
    assert runs_of(world, "map") == [1] * 4
    ended(world)


@staged()
def results_that_nobody_heard_are_told_again(make: Make) -> None:
    world = make(workers=((1, 0),))
    call(world, "map", 4.0, 4.0, 4.0)
    world.run(3.0)
    world.network.part("w0", 8.0)
    world.run(8.5)
    agent = world.agents[0]
    if agent.end is not None:
        world.network.break_off(agent.end, silent=False)
    world.run(20.0)
    assert view_of(world, "map").state is State.SUCCEEDED
    assert runs_of(world, "map") == [1] * 3
    ended(world)


@staged()
def calls_of_a_lost_worker_move_on_and_what_it_did_stays(make: Make) -> None:
    world = make(workers=((1, 0), (1, 0)))
    call(world, "map", *[4.0] * 10)
    world.run(12.0)
    done = {index for _, index in world.truth.calls.results}
    assert done
    world.kill_machine(world.agents[0])
    world.run(140.0)
    assert view_of(world, "map").state is State.SUCCEEDED
    runs = runs_of(world, "map")
    assert all(runs[index] == 1 for index in done)
    assert sum(runs) <= 12
    ended(world)


@staged()
def what_a_given_up_runner_did_after_all_is_refused(make: Make) -> None:
    world = make(workers=((1, 0), (1, 0)))
    call(world, "map", 40.0, 40.0, 40.0, of=calls(max_runners=1))
    world.run(4.0)
    (runner,) = runners(world)
    at = world.machines.index(runner.kernel.machine)
    world.network.part(f"w{at}", 100.0)
    world.run(150.0)
    ended(world)
    attempts = {data.decode().split()[0] for _, data in world.truth.calls.results.values()}
    assert runner.attempt not in attempts


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

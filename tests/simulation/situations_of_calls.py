"""Situations of calls: maps, the runners that take them, and what befalls these in the middle of it."""

from __future__ import annotations

from typing import Any

from gpulayer.protocol.calls import (
    OK,
    RUNNER_DIED,
    CallRun,
    CallsDone,
    CallsSpec,
    FunctionSpec,
    MapSpec,
    MapView,
)
from gpulayer.protocol.types import JobSpec, Outcome, Requirements, State
from gpulayer_server.core.calls.pool import Pool
from gpulayer_server.core.events import WorkerSaid
from tests.simulation.runners import Runner
from tests.simulation.staging import Make, ended, said, staged
from tests.simulation.world import World


def calls(name: str = "f", *, priority: int = 0, **options: Any) -> JobSpec:
    """A function."""
    return JobSpec(
        calls=CallsSpec(function=FunctionSpec(name=name, qualname=name), **options),
        requirements=Requirements(),
        priority=priority,
    )


def call(
    world: World,
    key: str,
    *seconds: float,
    deed: str = "ok",
    of: JobSpec | None = None,
    owner: int = 0,
    leaving: dict[str, Any] | None = None,
    **options: Any,
) -> None:
    """Open a map of calls that take so long each; `deed`: what the last one does; `leaving`: of its client."""
    deeds = [*["ok"] * (len(seconds) - 1), deed]
    args = tuple([f"{key}:{n}:{each}:{deeds[n]}".encode() for n, each in enumerate(seconds)])
    world.callers[owner].call(key, of or calls(), MapSpec(**options), args, **(leaving or {}))


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
    call(world, "map", 60.0, *[1.0] * 3)
    world.run(8.0)
    (long,) = [each for each in runners(world) if each.running is not None]
    world.network.part(long.kernel.machine.name, 4.0)
    world.crash_control_plane(0.5)
    world.run(3.0)
    assert pool_of(world, "map").unheard
    world.run(100.0)
    assert view_of(world, "map").state is State.SUCCEEDED
    assert runs_of(world, "map") == [1] * 4
    ended(world)


@staged()
def what_runs_while_the_control_plane_is_away_runs_once(make: Make) -> None:
    world = make(workers=((1, 0), (1, 0), (1, 0)))
    call(world, "map", 60.0, 10.0, 10.0)
    world.run(5.0)
    assert len(runners(world)) == 3
    world.crash_control_plane(0.5)
    world.run(80.0)
    assert view_of(world, "map").state is State.SUCCEEDED
    assert runs_of(world, "map") == [1] * 3
    ended(world)


@staged()
def calls_that_never_arrived_are_given_out_again(make: Make) -> None:
    world = make(workers=((1, 0),))
    call(world, "first", 0.1)
    world.run(3.0)
    agent = world.agents[0]
    assert agent.end is not None
    agent.end.peer.dark = True
    call(world, "map", 0.1)
    world.run(1.0)
    assert runs_of(world, "map") == [0]
    world.network.break_off(agent.end, silent=False)
    world.run(8.0)
    assert view_of(world, "map").state is State.SUCCEEDED
    ended(world)


@staged()
def a_result_that_is_told_twice_counts_once(make: Make) -> None:
    world = make(workers=((1, 0),))
    call(world, "map", 0.5, 20.0)
    world.run(4.0)
    (runner,) = runners(world)
    tell_again(world, runner.attempt, view_of(world, "map").id, 0, runner.kernel.machine.name)
    assert view_of(world, "map").done == 1
    world.run(1.0)
    ended(world)
    assert view_of(world, "map").done == 2


def tell_again(world: World, attempt: str, name: str, index: int, worker: str) -> None:
    """A worker says that a call of a runner is done."""
    plane = world.control_plane
    conn = plane.plane.workers[f"id-{worker}"].conn or 0
    run = CallRun(map=name, first=index, codes=bytes([OK]), data=(f"{attempt} {name} {index}".encode(),))
    plane.handle(WorkerSaid(conn=conn, messages=(CallsDone(attempt=attempt, runs=(run,)),)))
    world.run(0.1)
    world.truth.check_plane(plane.plane)


@staged()
def a_result_that_nobody_waits_for_is_let_go_of(make: Make) -> None:
    world = make(workers=((1, 0),))
    call(world, "map", 3.0, deed="deaf")
    world.run(2.0)
    world.callers[0].cancel("map")
    world.run(5.0)
    assert (view_of(world, "map").state, runs_of(world, "map")) == (State.CANCELLED, [1])
    assert [runner.results for runner in runners(world)] == [{}]
    ended(world)


@staged()
def a_result_comes_behind_all_that_its_call_wrote(make: Make) -> None:
    world = make(workers=((1, 0),))
    call(world, "map", 0.1, deed="flood")
    world.run(10.0)
    assert view_of(world, "map").state is State.SUCCEEDED
    ended(world)


@staged()
def a_result_that_another_worker_tells_is_refused(make: Make) -> None:
    world = make(workers=((1, 0), (1, 0)))
    call(world, "map", 300.0, 300.0, 300.0)
    world.run(4.0)
    one, other = runners(world)
    done = one.running.key[1] if one.running is not None else 0
    tell_again(world, one.attempt, view_of(world, "map").id, done, other.kernel.machine.name)
    assert view_of(world, "map").done == 0
    world.callers[0].cancel("map")
    ended(world)


@staged()
def calls_that_are_brought_twice_are_there_once(make: Make) -> None:
    world = make(workers=((1, 0),))
    call(world, "map", *[3.0] * 9)
    world.run(2.0)
    world.callers[0].bring_again("map")
    world.run(2.0)
    assert view_of(world, "map").taken == 9
    ended(world)
    assert runs_of(world, "map") == [1] * 9


@staged()
def a_job_lives_on_when_its_only_runner_fails(make: Make) -> None:
    world = make(workers=((1, 0),))
    call(world, "map", *[1.0] * 6, of=calls(max_runners=1))
    world.run(4.0)
    (runner,) = runners(world)
    world.agents[0].runs[runner.attempt].end_as(Outcome(state=State.FAILED, problem="no space is left"))
    world.run(30.0)
    view = view_of(world, "map")
    assert view.state is State.SUCCEEDED
    assert len(world.control_plane.plane.jobs[view.job].tasks) == 2
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

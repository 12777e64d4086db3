"""Situations of those who call functions: they go away before they have sent all calls of a map, and may come back."""

from __future__ import annotations

from gpulayer.protocol.types import State
from tests.simulation.situations_of_calls import call, calls, runners, runs_of, view_of
from tests.simulation.staging import Make, ended, staged


@staged()
def a_map_whose_client_went_away_keeps_its_results_and_ends(make: Make) -> None:
    world = make(workers=((1, 0),))
    call(world, "map", *[0.1] * 20, leaving={"leaves_at": 10})
    world.run(20.0)
    view = view_of(world, "map")
    assert (view.state, view.done, view.taken) == (State.RUNNING, 10, 10)
    assert view.left_at is not None
    world.run(25.0)
    view = view_of(world, "map")
    assert (view.state, view.done) == (State.CANCELLED, 10)
    assert view.problem.startswith("its client went away after it sent 10")
    assert len([key for key in world.truth.calls.results if key[0] == view.id]) == 10
    ended(world)


@staged()
def a_client_that_comes_back_in_time_goes_on(make: Make) -> None:
    world = make(workers=((1, 0),))
    call(world, "map", *[0.1] * 20, leaving={"leaves_at": 10, "back_after_s": 25.0})
    world.run(40.0)
    assert view_of(world, "map").state is State.SUCCEEDED
    ended(world)
    assert runs_of(world, "map") == [1] * 20


@staged()
def a_client_that_comes_back_too_late_hears_how_its_map_ended(make: Make) -> None:
    world = make(workers=((1, 0),))
    call(world, "map", *[0.1] * 20, leaving={"leaves_at": 10, "back_after_s": 60.0})
    world.run(70.0)
    wish = world.callers[0].wishes["map"]
    assert wish.over
    assert wish.view is not None
    assert wish.view.state is State.CANCELLED
    ended(world)


@staged()
def calls_of_a_client_that_went_away_run_as_long_as_they_take(make: Make) -> None:
    world = make(workers=((1, 0),))
    call(world, "map", 20.0, 20.0, 20.0, leaving={"leaves_at": 2})
    world.run(38.0)
    assert view_of(world, "map").state is State.RUNNING
    world.run(10.0)
    assert (view_of(world, "map").state, view_of(world, "map").done) == (State.CANCELLED, 2)
    ended(world)


@staged()
def a_client_that_is_there_may_take_its_time(make: Make) -> None:
    world = make(workers=((1, 0),))
    call(world, "map", *[0.1] * 20, leaving={"leaves_at": 10, "back_after_s": 100.0, "stays": True})
    world.run(90.0)
    assert (view_of(world, "map").state, view_of(world, "map").left_at) == (State.RUNNING, None)
    world.run(20.0)
    assert view_of(world, "map").state is State.SUCCEEDED
    ended(world)


@staged()
def calls_that_come_late_wake_a_runner(make: Make) -> None:
    world = make(workers=((1, 0),))
    leaving = {"leaves_at": 10, "back_after_s": 60.0, "stays": True}
    call(world, "map", *[0.1] * 20, of=calls(idle_timeout_s=5.0), leaving=leaving)
    world.run(40.0)
    assert runners(world) == []
    world.run(40.0)
    assert view_of(world, "map").state is State.SUCCEEDED
    ended(world)
    assert runs_of(world, "map") == [1] * 20


@staged()
def that_a_client_is_away_is_known_after_a_restart(make: Make) -> None:
    world = make(workers=((1, 0),))
    call(world, "map", *[0.1] * 20, leaving={"leaves_at": 10})
    world.run(20.0)
    view = view_of(world, "map")
    assert view.left_at is not None
    world.crash_control_plane(1.0)
    world.run(4.0)
    assert world.control_plane.plane.maps[view.id].row.left_at == view.left_at
    world.run(40.0)
    assert view_of(world, "map").state is State.CANCELLED
    ended(world)

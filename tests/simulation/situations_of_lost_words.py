"""Situations of calls in which a word of the control plane or of a worker is lost, and comes again."""

from __future__ import annotations

from gpulayer.protocol.types import State
from tests.simulation.situations_of_calls import call, runners, runs_of, view_of
from tests.simulation.staging import Make, ended, staged
from tests.simulation.world import World


def deafen(world: World) -> None:
    """What the control plane says does not reach the first worker any more."""
    end = world.agents[0].end
    assert end is not None
    end.peer.dark = True


def reconnect(world: World) -> None:
    """It notices, and comes back."""
    end = world.agents[0].end
    assert end is not None
    world.network.break_off(end, silent=False)
    world.run(4.0)


@staged()
def a_failure_that_is_told_again_counts_once(make: Make) -> None:
    world = make(workers=((1, 0),))
    call(world, "first", 0.1)
    world.run(3.0)
    call(world, "map", 1.0, deed="raise", retries=1, backoff_s=20.0)
    world.run(0.5)
    deafen(world)
    world.run(1.5)
    name = view_of(world, "map").id
    assert list(world.control_plane.plane.maps[name].put_off) == [0]
    reconnect(world)
    assert list(world.control_plane.plane.maps[name].put_off) == [0]
    world.run(25.0)
    assert (view_of(world, "map").state, runs_of(world, "map")) == (State.FAILED, [2])
    ended(world)


@staged()
def a_runner_that_did_not_hear_that_it_is_to_end_hears_it_again(make: Make) -> None:
    world = make(workers=((1, 0),))
    call(world, "map", 0.1)
    world.run(3.0)
    assert len(runners(world)) == 1
    deafen(world)
    world.callers[0].let_go(view_of(world, "map").job)
    world.run(1.0)
    assert len(runners(world)) == 1
    reconnect(world)
    assert runners(world) == []
    ended(world)


@staged()
def a_result_that_is_on_its_way_again_is_not_made_twice(make: Make) -> None:
    world = make(workers=((1, 0), (1, 0)))
    call(world, "both", 4.0, 4.0)
    world.run(2.0)
    assert [runner.running is not None for runner in runners(world)] == [True, True]
    end = world.agents[0].end
    assert end is not None
    end.dark = True  # its result is lost on the way
    world.run(5.0)
    assert view_of(world, "both").done == 1
    reconnect(world)
    assert view_of(world, "both").state is State.SUCCEEDED
    assert runs_of(world, "both") == [1, 1]
    ended(world)


@staged(long=[8, 12, 16])
def results_before_a_long_call_that_are_told_again_are_not_made_twice(make: Make, long: int) -> None:
    world = make(workers=((1, 0), (1, 0)))
    call(world, "both", 5.0, 5.0)
    world.run(15.0)
    call(world, "map", *[0.002] * long, 60.0, *[0.002] * (60 - long))
    world.run(0.08)
    ends = [agent.end for agent in world.agents]
    for end in ends:
        assert end is not None
        end.dark = True  # what their runners say is lost on the way
    world.run(5.0)
    for end in ends:
        assert end is not None
        world.network.break_off(end, silent=False)
        world.run(3.0)
    ended(world)
    assert runs_of(world, "map") == [1] * 61


@staged()
def a_result_of_a_map_that_was_cancelled_meanwhile_is_told_to_nobody(make: Make) -> None:
    world = make(workers=((1, 0),))
    call(world, "map", 2.0)
    world.run(2.0)
    end = world.agents[0].end
    assert end is not None
    end.dark = True  # its result is lost on the way
    world.run(3.0)
    world.callers[0].cancel("map")
    world.run(0.5)
    reconnect(world)
    assert [runner.results for runner in runners(world)] == [{}]
    assert view_of(world, "map").done == 0
    ended(world)


@staged()
def after_a_restart_nobody_waits_long_for_a_worker_that_is_gone(make: Make) -> None:
    world = make(workers=((1, 0), (1, 0)))
    call(world, "map", *[2.0] * 40)
    world.run(12.0)
    assert len(runners(world)) == 2
    world.crash_control_plane(1.0)
    world.kill_machine(world.agents[1])
    world.run(5.0)
    before = view_of(world, "map").done
    world.run(20.0)
    assert view_of(world, "map").done >= before + 6
    ended(world)

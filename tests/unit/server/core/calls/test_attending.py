"""Clients that went away before they had sent all calls of a map: what came is done, and then the map says so."""

from __future__ import annotations

import pytest

from gpulayer_server.core.events import Tick
from gpulayer_server.core.state import Settings
from tests.unit.server.core.calls.conftest import CallsWorld, State


def pass_time(world: CallsWorld, seconds: float, *attended: str) -> set[str]:
    """Half a second a tick; the maps of which a view is another now."""
    changed: set[str] = set()
    for _ in range(round(2 * seconds)):
        world.now += 0.5
        for worker in world.plane.workers.values():
            worker.last_seen_at = world.now
        changed |= world.do(Tick(attended=frozenset(attended))).maps
    return changed


@pytest.fixture
def away(world: CallsWorld) -> tuple[int, str, str]:
    """A runner that has done two calls of a map of which more were to come: connection, attempt, map."""
    conn, attempt, name = world.warm(2, last=False)
    pass_time(world, 1.0, name)
    world.did(conn, attempt, name, 0, 2)
    return conn, attempt, name


def test_a_map_whose_client_is_there_waits_as_long_as_it_takes(world: CallsWorld, away: tuple[int, str, str]) -> None:
    *_, name = away
    assert pass_time(world, 3 * Settings().client_away_s, name) == set()
    assert (world.map(name).state, world.map(name).left_at) == (State.RUNNING, None)


def test_a_map_whose_client_went_away_says_since_when_and_ends_after_a_while(
    world: CallsWorld, away: tuple[int, str, str]
) -> None:
    *_, name = away
    left_at = world.now + 0.5  # the first tick that does not hear of it
    assert pass_time(world, 5.0) == set()
    assert world.map(name).left_at is None  # a connection may break
    assert pass_time(world, 0.5) == {name}
    assert world.map(name).left_at == left_at
    assert pass_time(world, Settings().client_away_s - 5.5) == set()
    assert world.map(name).state is State.RUNNING
    assert pass_time(world, 0.5) == {name}
    view = world.map(name)
    assert (view.state, view.done, view.total, view.left_at) == (State.CANCELLED, 2, None, None)
    assert view.problem == "its client went away after it sent 2 calls"
    assert name not in world.plane.maps
    assert world.plane.calls.incomplete == {}


def test_a_client_that_comes_back_in_time_goes_on(world: CallsWorld, away: tuple[int, str, str]) -> None:
    conn, attempt, name = away
    pass_time(world, Settings().client_away_s - 1.0)
    assert world.map(name).left_at is not None
    assert pass_time(world, 0.5, name) == {name}
    assert world.map(name).left_at is None
    pass_time(world, 400.0)
    assert world.bring(name, 2, 1).left_at is None  # what it brings says as much
    pass_time(world, 400.0)
    assert world.map(name).state is State.RUNNING
    world.bring(name, 3, 1, last=True)
    world.did(conn, attempt, name, 2, 2)
    assert world.map(name).state is State.SUCCEEDED


def test_what_came_runs_to_its_end_however_long_that_takes(world: CallsWorld) -> None:
    conn, attempt, name = world.warm(2, last=False, total=3)
    pass_time(world, 2 * Settings().client_away_s)
    assert world.map(name).state is State.RUNNING
    world.did(conn, attempt, name, 0)
    pass_time(world, 10.0)
    assert world.map(name).state is State.RUNNING
    world.did(conn, attempt, name, 1)
    assert world.map(name).state is State.RUNNING
    pass_time(world, 0.5)
    view = world.map(name)
    assert (view.state, view.done) == (State.CANCELLED, 2)
    assert view.problem == "its client went away after it sent 2 of 3 calls"


def test_a_map_of_which_no_call_came_ends_too(world: CallsWorld) -> None:
    world.join()
    name = world.opened(0, last=False)
    pass_time(world, Settings().client_away_s + 1.0)
    assert world.map(name).state is State.CANCELLED
    assert world.map(name).problem == "its client went away before it sent a call"
    world.wait(1.0)
    assert world.plane.idle()


def test_a_map_that_has_all_its_calls_needs_no_client(world: CallsWorld) -> None:
    *_, name = world.warm(1)
    assert world.plane.calls.incomplete == {}
    pass_time(world, 2 * Settings().client_away_s)
    assert (world.map(name).state, world.map(name).left_at) == (State.RUNNING, None)


def test_since_when_a_client_is_away_outlives_a_restart_after_which_it_has_a_moment(
    world: CallsWorld, away: tuple[int, str, str]
) -> None:
    *_, name = away
    pass_time(world, Settings().client_away_s - 30.0)
    left_at = world.map(name).left_at
    assert left_at is not None
    world.now += 20.0
    world.reborn_with_maps()
    assert world.map(name).left_at == left_at
    pass_time(world, 59.5)
    assert world.map(name).state is State.RUNNING
    pass_time(world, 1.0)
    assert world.map(name).state is State.CANCELLED


def test_a_client_that_was_there_before_a_restart_has_all_of_its_time(
    world: CallsWorld, away: tuple[int, str, str]
) -> None:
    *_, name = away
    world.reborn_with_maps()
    assert name in world.plane.calls.incomplete
    pass_time(world, Settings().client_away_s)
    assert world.map(name).state is State.RUNNING
    pass_time(world, 0.5)
    assert world.map(name).state is State.CANCELLED


def test_after_the_machine_slept_a_client_has_a_moment(world: CallsWorld, away: tuple[int, str, str]) -> None:
    *_, name = away
    pass_time(world, 10.0)
    world.now += 8 * 3600.0
    pass_time(world, 59.5)
    assert world.map(name).state is State.RUNNING
    pass_time(world, 1.0)
    assert world.map(name).state is State.CANCELLED


def test_how_long_a_client_may_be_away_is_a_setting(world: CallsWorld) -> None:
    world.plane.settings = Settings(client_away_s=0.0)
    world.join()
    name = world.opened(0, last=False)
    pass_time(world, 5.5)
    assert world.map(name).state is State.QUEUED
    pass_time(world, 0.5)
    assert world.map(name).state is State.CANCELLED

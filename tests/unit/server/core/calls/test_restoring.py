"""A control plane that begins anew, workers that come back: nothing is lost, and nothing runs twice that need not."""

from __future__ import annotations

from gpulayer.protocol.calls import CallRange
from gpulayer.protocol.types import State
from tests.unit.server.core.calls.conftest import CallsWorld, DropCalls, EndRunner


def placed(world: CallsWorld, name: str) -> str:
    """The attempt that is being started for a map's job."""
    tasks = world.plane.jobs[name.split(".")[0]].tasks
    [attempt] = [task.attempt.id for task in tasks if task.state is State.ASSIGNED and task.attempt is not None]
    return attempt


def test_maps_are_there_again_with_what_is_done(world: CallsWorld) -> None:
    conn, attempt, name = world.warm(40, key="k")
    world.did(conn, attempt, name, 0, us=1000)
    world.did(conn, attempt, name, 1, 4, us=1000)
    before = world.map(name)
    world.reborn_with_maps()
    view = world.map(name)
    assert (view.done, view.taken, view.total, view.state) == (before.done, 40, 40, State.RUNNING)
    assert world.opened(1, key="k") == name
    second = world.open(1)
    assert second.id == name.split(".")[0] + ".2"


def test_nothing_is_given_out_until_runners_of_before_were_heard(world: CallsWorld) -> None:
    _, attempt, name = world.warm(40)
    world.reborn_with_maps()
    fresh = world.join("fresh", slots=1)
    assert world.given() == {}
    world.wait(2)
    assert world.given() == {}
    world.back([(attempt, [CallRange(map=name, first=0), CallRange(map=name, first=7, count=2)])])
    [(of, first, _)] = world.given().get(attempt, []) or [(name, 1, 1)]
    assert (of, first) == (name, 1)
    held = world.live(name).held
    assert held >= 3
    assert not world.live(name).waiting.within(7, 9)
    assert fresh


def test_runners_of_before_that_stay_away_are_not_waited_for_longer_than_five_seconds(world: CallsWorld) -> None:
    _, attempt, name = world.warm(40)
    world.reborn_with_maps()
    conn = world.join("fresh", slots=1)
    world.wait(6)
    new = placed(world, name)
    assert new != attempt
    world.start(conn, new)
    assert world.given() == {new: [(name, 0, 1)]}


def test_what_two_runners_have_after_all_counts_once(world: CallsWorld) -> None:
    _, attempt, name = world.warm(2)
    world.reborn_with_maps()
    conn = world.join("fresh", slots=1)
    world.wait(6)
    new = placed(world, name)
    world.start(conn, new)
    old = world.back([(attempt, [CallRange(map=name, first=0)])])
    assert world.live(name).held == 3 - world.live(name).waiting.count
    world.did(old, attempt, name, 0)
    assert world.accepted() == [(0, 1)]
    world.did(conn, new, name, 0)
    assert world.accepted() == []
    assert world.map(name).done == 1


def test_a_worker_that_is_back_tells_what_it_has(world: CallsWorld) -> None:
    conn, attempt, name = world.warm(40)
    world.did(conn, attempt, name, 0, us=1000)
    [(_, first, count)] = world.given()[attempt]
    assert count > 4
    world.leave(conn)
    assert world.live(name).held == count
    world.back([(attempt, [CallRange(map=name, first=first, count=2)])])
    given = [(low, size) for _, low, size in world.given()[attempt]]
    assert given[0][0] == first + 2  # what was under way when the connection broke is given again
    assert world.live(name).held == 2 + sum(size for _, size in given)


def test_calls_of_a_map_that_is_over_are_dropped_where_they_still_are(world: CallsWorld) -> None:
    conn, attempt, name = world.warm(40)
    world.leave(conn)
    world.cancel_map(name)
    world.back([(attempt, [CallRange(map=name, first=0)])])
    assert [each.map for each in world.sent(DropCalls)] == [name]
    assert world.pool(name).held == 0


def test_an_end_that_was_not_heard_is_said_again(world: CallsWorld) -> None:
    conn, attempt, name = world.warm(1)
    world.did(conn, attempt, name, 0)
    world.submit()
    assert [each.attempt for each in world.sent(EndRunner)] == [attempt]
    world.leave(conn)
    world.back([(attempt, [])])
    assert [each.attempt for each in world.sent(EndRunner)] == [attempt]

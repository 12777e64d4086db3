"""Runners make room for those who wait."""

from __future__ import annotations

from gpulayer.protocol.messages import Finished
from gpulayer.protocol.types import Outcome, State
from gpulayer_server.core.events import LimitsSet
from gpulayer_server.core.state import Limits
from tests.unit.server.core.calls.conftest import CallsWorld, EndRunner, calls_spec


def idle_runner(world: CallsWorld, name: str = "f", *, owner: str = "ann") -> tuple[int, str]:
    """A worker of one slot with a runner that has nothing to do: connection, attempt."""
    conn = world.join(f"box of {name}", slots=1)
    of = world.opened(1, name=name, owner=owner)
    attempt = world.lease(of.split(".")[0])
    world.start(conn, attempt)
    world.did(conn, attempt, of, 0)
    world.now += 1
    return conn, attempt


def ends(world: CallsWorld) -> list[str]:
    """The runners that the last event told to end."""
    return [each.attempt for each in world.sent(EndRunner)]


def ended(world: CallsWorld, conn: int, attempt: str) -> None:
    """A runner has ended."""
    outcome = Outcome(state=State.SUCCEEDED)
    world.say(conn, Finished(attempt=attempt, end_offset=0, outcome=outcome, released=True))


def test_the_longest_idle_runner_ends_for_who_waits_once(world: CallsWorld) -> None:
    conn, first = idle_runner(world)
    idle_runner(world, "g")
    job = world.submit().id
    assert ends(world) == [first]
    world.wait(3)
    assert ends(world) == []
    ended(world, conn, first)
    assert world.state(job) is State.ASSIGNED


def test_each_who_waits_gets_one(world: CallsWorld) -> None:
    _, first = idle_runner(world)
    _, second = idle_runner(world, "g")
    world.submit()
    assert ends(world) == [first]
    world.submit()
    assert ends(world) == [second]
    world.submit()
    assert ends(world) == []


def test_a_runner_of_another_function_gets_the_place_of_an_idle_one(world: CallsWorld) -> None:
    conn, first = idle_runner(world)
    name = world.opened(1, name="g")
    assert ends(world) == [first]
    ended(world, conn, first)
    assert world.plane.jobs[name.split(".")[0]].tasks[0].state is State.ASSIGNED


def test_an_idle_runner_stays_where_its_end_would_help_nobody(world: CallsWorld) -> None:
    idle_runner(world)
    world.join("gpus", slots=1, gpus=1)
    world.submit(gpus=1)
    world.submit(gpus=1)
    assert ends(world) == []
    world.wait(3)
    assert ends(world) == []


def test_idle_runners_end_for_their_own_owner_at_his_limit(world: CallsWorld) -> None:
    _, first = idle_runner(world)
    world.join("other", slots=4)
    world.do(LimitsSet(limits={"ann": Limits(max_running=1)}))
    world.submit()
    assert ends(world) == [first]


def test_a_runner_that_got_a_call_meanwhile_ends_after_it(world: CallsWorld) -> None:
    conn, first = idle_runner(world)
    world.submit(owner="bob")
    assert ends(world) == [first]
    name = world.opened(1)
    assert world.given() == {}  # it is ending: the call waits for another
    ended(world, conn, first)
    assert world.map(name).state is State.QUEUED
    assert world.live(name).waiting.count == 1


def busy(world: CallsWorld, slots: int = 3) -> tuple[int, str]:
    """A worker all of whose slots are held by runners of a map of long calls: connection, map."""
    conn = world.join(slots=slots)
    name = world.opened(100)
    job = world.plane.jobs[name.split(".")[0]]
    for index in range(slots):
        world.start(conn, world.lease(job.id, index))
    for index in range(slots):
        world.did(conn, world.lease(job.id, index), name, index, us=30_000_000)
    return conn, name


def test_busy_runners_make_room_for_an_owner_who_has_nothing(world: CallsWorld) -> None:
    conn, _ = busy(world)
    job = world.submit(owner="bob").id
    assert ends(world) == []
    world.wait(1)
    assert ends(world) == []
    world.wait(2)
    [attempt] = ends(world)
    world.wait(6)
    assert ends(world) == []  # he waits for that one
    ended(world, conn, attempt)
    assert world.state(job) is State.ASSIGNED


def test_busy_runners_make_no_room_for_a_later_job_of_the_same_owner(world: CallsWorld) -> None:
    busy(world)
    world.submit()
    world.wait(10)
    assert ends(world) == []


def test_busy_runners_make_room_for_who_is_more_urgent_but_the_last_stays(world: CallsWorld) -> None:
    conn, name = busy(world, slots=2)
    for number in range(3):
        world.opened(1, name=f"urgent{number}", spec=calls_spec(f"urgent{number}", priority=5))
    world.wait(3)
    [attempt] = ends(world)
    ended(world, conn, attempt)
    world.wait(10)
    assert ends(world) == []
    assert len(world.pool(name).usable) == 1


def test_two_owners_do_not_take_each_others_runners_for_ever(world: CallsWorld) -> None:
    conn, name = busy(world, slots=4)
    world.opened(100, name="g", owner="bob")
    taken = 0
    for _ in range(40):
        world.wait(1)
        for attempt in ends(world):
            taken += 1
            ended(world, conn, attempt)
    assert taken <= 2
    assert len(world.pool(name).leases) >= 2

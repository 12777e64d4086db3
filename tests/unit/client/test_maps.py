"""Maps over the client's connection: arguments, results, and both again after a break."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from typing import Any

import pytest

from gpulayer.client import maps
from gpulayer.client.connection import Connection
from gpulayer.client.maps import HELD_CALLS, MapSubscription
from gpulayer.protocol.calls import (
    CancelMap,
    EndCalls,
    FollowMap,
    MapArgs,
    MapRecord,
    MapResults,
    MapSpec,
    MapTaken,
    MapUpdate,
    MapView,
    OpenMap,
    ResultRun,
)
from gpulayer.protocol.messages import Refused, Unfollow
from gpulayer.protocol.records import Kind
from gpulayer.protocol.types import Problem, State

WAIT_S = 30.0
SPEC = MapSpec(name="f")


@pytest.fixture
def connection(plane: Any) -> Iterator[Connection]:
    connection = Connection(lambda: plane.endpoint)
    yield connection
    connection.close()


def opened(connection: Connection, args: list[bytes], *, last: bool = False) -> MapSubscription:
    return connection.open_map(b"job", SPEC, "key", args, ["b" * 64], last=last)


def update(n: int, taken: int = 0, state: State = State.RUNNING, total: int | None = None) -> MapUpdate:
    return MapUpdate(n=n, map=MapView(id="k3f9.1", job="k3f9", state=state, taken=taken, total=total))


def results(n: int, first: int, data: list[bytes]) -> MapResults:
    run = ResultRun(first=first, codes=bytes(len(data)), data=tuple(data))
    return MapResults(n=n, cursor=first + len(data), runs=(run,))


def news(subscription: MapSubscription) -> Any:
    """The next that is no wake."""
    while True:
        found = subscription.get(WAIT_S)
        if found is not None:
            return found


def test_who_makes_arguments_for_long_hears_of_a_map_s_name_between_them(plane: Any, connection: Connection) -> None:
    before = opened(connection, [b"0"])
    visit = plane.visit()
    visit.next()
    visit.say(update(before.n, taken=1))
    news(before)  # from here on this thread is the one that reads
    subscription = opened(connection, [b"0"])
    subscription.add([b"1"], [], last=True)
    assert isinstance(visit.next(), OpenMap)
    visit.say(update(subscription.n, taken=1))
    until = time.monotonic() + WAIT_S
    while not subscription.id and time.monotonic() < until:
        subscription.look()
    sent = visit.next()
    assert isinstance(sent, MapArgs)
    assert (sent.n, sent.first, sent.args) == (subscription.n, 1, (b"1",))


def test_a_map_is_opened_with_its_first_calls_and_the_others_follow_once_it_has_a_name(
    plane: Any, connection: Connection
) -> None:
    subscription = opened(connection, [b"0", b"1"])
    subscription.add([b"2"], [], last=False)
    visit = plane.visit()
    blobs = ("b" * 64,)
    asked = OpenMap(n=subscription.n, key="key", job=b"job", map=SPEC, args=(b"0", b"1"), blobs=blobs)
    assert visit.next() == asked
    visit.say(update(subscription.n, taken=2))
    assert isinstance(news(subscription), MapUpdate)
    assert subscription.id == "k3f9.1"
    assert visit.next() == MapArgs(n=subscription.n, map="k3f9.1", first=2, args=(b"2",))
    subscription.add([b"3"], [], last=True)
    assert visit.next() == MapArgs(n=subscription.n, map="k3f9.1", first=3, args=(b"3",), last=True)
    assert not subscription.all_taken
    visit.say(MapTaken(n=subscription.n, upto=4), results(subscription.n, 0, [b"r0", b"r1"]))
    assert news(subscription).runs[0].data == (b"r0", b"r1")
    assert subscription.complete
    assert subscription.all_taken


def test_no_more_arguments_are_held_than_there_is_room_for(plane: Any, connection: Connection) -> None:
    subscription = opened(connection, [b"x"] * HELD_CALLS)
    assert not subscription.room
    visit = plane.visit()
    visit.next()
    visit.say(update(subscription.n, taken=HELD_CALLS))
    assert isinstance(news(subscription), MapUpdate)
    assert subscription.room
    subscription.add([bytes(maps.HELD_BYTES)], [], last=False)
    assert not subscription.room


def test_after_a_break_it_goes_on_from_where_it_was(plane: Any, connection: Connection) -> None:
    subscription = opened(connection, [b"0"])
    visit = plane.visit()
    visit.next()
    n = subscription.n
    record = MapRecord(n=n, index=0, kind=Kind.CALL_STDOUT, seq=0, data=b"hello", attempt="a", at=70)
    visit.say(update(n, taken=1), record, results(n, 0, [b"r"]))
    assert [type(news(subscription)) for _ in range(3)] == [MapUpdate, MapRecord, MapResults]
    subscription.add([b"1"], [], last=False)
    subscription.add([b"2"], [], last=True)
    for _ in range(2):
        visit.next()
    visit.leave()
    again = plane.visit()
    assert again.next() == FollowMap(n=n, map="k3f9.1", after=1, texts={"a": 70})
    assert [again.next().first for _ in range(2)] == [1, 2]
    again.say(results(n, 1, [b"s", b"t"]), update(n, taken=3, state=State.SUCCEEDED, total=3))
    assert news(subscription).runs[0].first == 1
    assert news(subscription).map.state is State.SUCCEEDED
    assert subscription.over


def test_who_has_more_to_send_says_so_after_a_break(plane: Any, connection: Connection) -> None:
    subscription = opened(connection, [b"0"])
    visit = plane.visit()
    visit.next()
    n = subscription.n
    visit.say(update(n, taken=1))
    assert isinstance(news(subscription), MapUpdate)
    visit.leave()
    again = plane.visit()
    assert again.next() == FollowMap(n=n, map="k3f9.1")
    assert again.next() == MapArgs(n=n, map="k3f9.1", first=0)
    again.say(MapTaken(n=n, upto=1))
    subscription.add([b"1"], [], last=True)
    assert again.next() == MapArgs(n=n, map="k3f9.1", first=1, args=(b"1",), last=True)
    again.leave()
    third = plane.visit()
    assert third.next() == FollowMap(n=n, map="k3f9.1")
    assert third.next() == MapArgs(n=n, map="k3f9.1", first=1, args=(b"1",), last=True)


def test_who_has_more_to_send_says_so_also_while_nobody_takes_its_news(
    plane: Any, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maps, "_QUEUED_BYTES", 1_000)
    subscription = opened(connection, [b"0"])
    visit = plane.visit()
    visit.next()
    n = subscription.n
    visit.say(update(n, taken=1), results(n, 0, [bytes(6000)]))
    assert visit.next() == Unfollow(n=n)
    visit.leave()
    again = plane.visit()
    assert again.next() == MapArgs(n=n, map="k3f9.1", first=0)
    assert [type(news(subscription)) for _ in range(2)] == [MapUpdate, MapResults]
    assert subscription.take() is None
    assert again.next() == FollowMap(n=subscription.n, map="k3f9.1", after=1)


def test_one_that_was_not_answered_is_opened_again_with_its_key(plane: Any, connection: Connection) -> None:
    opened(connection, [b"0"])
    visit = plane.visit()
    first = visit.next()
    visit.leave()
    assert plane.visit().next() == first


def test_that_there_are_no_others_is_told_until_it_is_known(plane: Any, connection: Connection) -> None:
    subscription = opened(connection, [b"0"])
    visit = plane.visit()
    visit.next()
    visit.say(update(subscription.n, taken=1))
    news(subscription)
    subscription.add([], [], last=True)
    assert visit.next().last
    assert not subscription.all_taken
    visit.leave()
    again = plane.visit()
    again.next()
    assert again.next() == MapArgs(n=subscription.n, map="k3f9.1", first=1, last=True)
    again.say(update(subscription.n, taken=1, total=1))
    news(subscription)
    assert subscription.all_taken


def test_a_wish_to_cancel_waits_for_the_name(plane: Any, connection: Connection) -> None:
    subscription = opened(connection, [b"0"], last=True)
    visit = plane.visit()
    visit.next()
    subscription.cancel()
    visit.say(update(subscription.n))
    assert visit.next() == MapArgs(n=subscription.n, map="k3f9.1", first=0, args=(b"0",), blobs=("b" * 64,), last=True)
    assert visit.next() == CancelMap(n=subscription.n, map="k3f9.1")
    visit.leave()
    again = plane.visit()
    assert [type(again.next()) for _ in range(3)] == [FollowMap, MapArgs, CancelMap]


def test_what_nobody_wants_is_cancelled_also_by_the_garbage_collector(plane: Any, connection: Connection) -> None:
    class Holder:
        def __init__(self) -> None:
            self.subscription = opened(connection, [b"0"], last=True)
            self.itself = self

        def __del__(self) -> None:
            connection.abandon_map(self.subscription)

    n = Holder().subscription.n
    visit = plane.visit()
    visit.next()
    gc.collect()
    visit.say(update(n, taken=1))
    assert visit.next() == CancelMap(n=n, map="k3f9.1")
    visit.say(results(n, 0, [b"r"]), update(n, taken=1, state=State.CANCELLED))
    connection.end_calls("k3f9")
    assert isinstance(visit.next(), EndCalls)


def test_news_that_nobody_takes_hold_up_nobody_else(
    plane: Any, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maps, "_QUEUED_BYTES", 10_000)
    slow = opened(connection, [b"0"], last=True)
    visit = plane.visit()
    visit.next()
    old = slow.n
    visit.say(update(old, taken=1), results(old, 0, [bytes(6000)]), results(old, 1, [bytes(6000)]))
    assert visit.next() == Unfollow(n=old)
    visit.say(results(old, 2, [b"came too late"]))
    quick = connection.open_map(b"other", SPEC, "key2", [b"0"], last=True)
    asked = visit.next()
    visit.say(MapUpdate(n=asked.n, map=MapView(id="m.1", job="m", state=State.RUNNING, taken=1)))
    assert isinstance(news(quick), MapUpdate)
    assert [type(news(slow)) for _ in range(3)] == [MapUpdate, MapResults, MapResults]
    assert slow.take() is None
    assert visit.next() == FollowMap(n=slow.n, map="k3f9.1", after=2)
    assert slow.n != old
    visit.say(results(slow.n, 2, [b"r2"]))
    assert news(slow).runs[0].data == (b"r2",)


def test_a_known_map_is_followed_and_left(plane: Any, connection: Connection) -> None:
    subscription = connection.follow_map("k3f9.1", ordered=False)
    visit = plane.visit()
    assert visit.next() == FollowMap(n=subscription.n, map="k3f9.1", ordered=False)
    problem = Problem(status=404, code="no_such_map", title="no map k3f9.1")
    visit.say(Refused(n=subscription.n, problem=problem))
    assert news(subscription).problem == problem
    connection.close_map(subscription)
    assert visit.next() == Unfollow(n=subscription.n)


def test_whoever_waits_is_told_and_can_be_woken(plane: Any, connection: Connection) -> None:
    told: list[bool] = []
    subscription = connection.open_map(b"job", SPEC, "key", [b"0"], last=True, told=lambda: told.append(True))
    visit = plane.visit()
    visit.next()
    assert not subscription.wake()
    assert subscription.get(WAIT_S) is None
    assert subscription.get(0.01) is None
    visit.say(update(subscription.n))
    assert isinstance(news(subscription), MapUpdate)
    assert told == [True]

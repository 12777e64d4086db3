"""What is left of maps whose client, control plane or store fails them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from websockets.exceptions import ConnectionClosed

from gpulayer.protocol.calls import (
    OK,
    CallRange,
    CallRun,
    CallsAccepted,
    CallsDone,
    CancelMap,
    EndCalls,
    FollowMap,
    MapArgs,
    MapResults,
    MapTaken,
    MapUpdate,
    MapView,
)
from gpulayer.protocol.messages import HeldAttempt, Refused
from gpulayer.protocol.types import State
from gpulayer_server.core.events import WorkerSaid
from gpulayer_server.core.state import Settings
from gpulayer_server.store.database import StoreError
from tests.support.maps import Runner, a_job, opening, to_end


def test_a_map_whose_client_left_before_its_last_call_keeps_its_results_and_ends(
    plane: Any, client: Any, runner: Runner, new_client: Callable[[], Any]
) -> None:
    client.say(opening(1, "k", b"0", last=False))
    name = client.until(MapUpdate).map.id
    runner.begin()
    runner.given(1)
    reader, sender = new_client(), new_client()
    reader.say(FollowMap(n=7, map=name))
    shell = plane.service.shell

    def attended() -> frozenset[str]:
        return shell.senders.attended(shell.plane.calls.incomplete)

    assert plane.do(attended) == {name}
    sender.say(MapArgs(n=8, map=name, first=0))  # no call: only that more are to come from here
    assert sender.until(MapTaken).upto == 1
    client.close()
    assert plane.do(attended) == {name}
    plane.do(lambda: setattr(shell.plane, "settings", Settings(client_away_s=0.0, unreachable_after_s=0.0)))
    sender.close()
    data, view = to_end(reader, 7)
    assert (data, view.state, view.done) == ([b"0"], State.CANCELLED, 1)
    assert view.problem == "its client went away after it sent 1 call"
    assert plane.do(attended) == frozenset()
    plane.do(shell.plane.calls.ended.clear)  # by then the store alone knows of it
    late = new_client()
    late.say(FollowMap(n=9, map=name), MapArgs(n=9, map=name, first=1, args=(b"1",), last=True))
    assert late.until(MapTaken).upto == 1  # what comes too late is no error of its own: the map's end says why
    assert to_end(late, 9)[1] == view


def test_a_map_outlives_the_control_plane_with_all_that_was_committed(
    plane: Any, client: Any, runner: Runner, new_client: Callable[[], Any]
) -> None:
    client.say(opening(1, "k", *[b"%d" % n for n in range(4)], job=a_job(max_runners=1)))
    name = client.until(MapUpdate).map.id
    runner.begin()
    batch = runner.batches()[0]
    runner.done(name, batch.first, *batch.args)
    client.until(MapResults)

    def again() -> None:
        shell = plane.service.shell
        shell.plane = shell._load(names=shell.plane.names)

    plane.do(again)
    view = plane.do(lambda: plane.service.shell.map_view(name))
    assert (view.taken, view.done, view.state) == (4, 1, State.RUNNING)
    rows = plane.do(lambda: plane.service.shell.args(name, 1, 2))
    assert [row.args[1 - row.first : 3 - row.first] for row in rows] == [(b"1", b"2")]


def test_arguments_go_once_their_map_has_ended(plane: Any, client: Any, runner: Runner) -> None:
    client.say(opening(1, "k", b"x"))
    runner.begin()
    runner.given(1)
    name = to_end(client, 1)[1].id
    shell = plane.service.shell

    async def dropped() -> None:
        while shell.args(name, 0, 1):
            gone = asyncio.Event()
            shell.after_commits(gone.set)
            await gone.wait()
            await asyncio.sleep(0.02)  # the tick drops them

    plane.call(dropped())
    assert plane.do(lambda: shell.args(name, 0, 1)) == []


def test_what_can_not_be_written_is_told_and_what_follows_is(plane: Any, client: Any, runner: Runner) -> None:
    store = plane.service.shell.store
    commit = store.commit

    def fails(units: Any, **more: Any) -> None:
        raise StoreError("store.db: disk is full")

    plane.do(lambda: setattr(store, "commit", fails))
    client.say(opening(1, "k", b"x"))
    assert client.until(Refused).problem.code == "store_failed"
    plane.do(lambda: setattr(store, "commit", commit))
    client.say(opening(2, "k", b"x"))
    assert client.until(MapUpdate).map.taken == 1


def test_results_that_were_not_written_come_again(
    plane: Any, client: Any, runner: Runner, new_worker: Callable[..., Any]
) -> None:
    client.say(opening(1, "k", b"x"))
    name = client.until(MapUpdate).map.id
    runner.begin()
    runner.batches()
    store = plane.service.shell.store
    commit = store.commit

    def fails_once(units: Any, **more: Any) -> None:
        store.commit = commit
        raise StoreError("store.db: disk is full")

    plane.do(lambda: setattr(store, "commit", fails_once))
    runner.done(name, 0, b"lost")
    with pytest.raises(ConnectionClosed):  # the worker says all of it again, on a new connection
        runner.worker.until(CallsAccepted)
    held = HeldAttempt(attempt=runner.attempt, started=True, calls=(CallRange(map=name, first=0),))
    again = new_worker(attempts=(held,))
    run = CallRun(map=name, first=0, codes=bytes([OK]), data=(b"kept",))
    again.say(CallsDone(attempt=runner.attempt, runs=(run,)))
    assert to_end(client, 1)[0] == [b"kept"]


def test_who_follows_while_results_are_written_misses_none(
    plane: Any, client: Any, runner: Runner, new_client: Callable[[], Any]
) -> None:
    """The plane knows more than was committed, and the store more than was told."""
    client.say(opening(1, "k", *[b"%d" % n for n in range(3)], job=a_job(max_runners=1)))
    name = client.until(MapUpdate).map.id
    runner.begin()
    runner.batches()
    shell = plane.service.shell
    views: list[MapView | None] = []

    def decided() -> None:
        conn = next(iter(shell.links))
        for index in (0, 1):
            run = CallRun(map=name, first=index, codes=bytes([OK]), data=(b"%d" % index,))
            said = CallsDone(attempt=runner.attempt, runs=(run,))
            shell.handle(WorkerSaid(conn=conn, messages=(said,), acked={}))
        views.append(shell.told_map_view(name))  # nothing of it is committed

    late = new_client()
    plane.do(decided)
    late.say(FollowMap(n=4, map=name))
    (before,) = views
    assert before is not None
    assert (before.done, before.state) == (0, State.RUNNING)
    got: list[bytes] = []
    while len(got) < 2:
        got += [each for run in late.until(MapResults).runs for each in run.data]
    assert got == [b"0", b"1"]
    runner.done(name, 2, b"2")
    assert late.until(MapResults).runs[0].data == (b"2",)


def test_others_maps_are_looked_at_and_left_alone(
    plane: Any, client: Any, runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.say(opening(1, "k", b"x", last=False))
    view = client.until(MapUpdate).map
    answer = plane.request("POST", "/v1/tokens", json={"role": "submitter", "name": "mallory"})
    monkeypatch.setattr(plane, "endpoint", msgspec.structs.replace(plane.endpoint, token=answer.json()["token"]))
    other = type(client)(plane)
    try:
        for message in (
            MapArgs(n=2, map=view.id, first=1, args=(b"y",)),
            CancelMap(n=3, map=view.id),
            EndCalls(n=4, job=view.job),
        ):
            other.say(message)
            refused = other.until(Refused)
            assert (refused.n, refused.problem.status, refused.problem.code) == (message.n, 403, "wrong_role")
        assert plane.request("POST", f"/v1/maps/{view.id}/cancel").status_code == 403
        other.say(FollowMap(n=5, map=view.id))
        assert other.until(MapUpdate).map.id == view.id
        other.say(opening(6, "k", b"x"))  # a key is its owner's: it is another map, with runners of its own
        while (message := other.until(MapUpdate)).n != 6:
            pass
        assert message.map.job != view.job
    finally:
        other.close()

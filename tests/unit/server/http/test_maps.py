"""Maps of calls by the clients' socket, beside a worker that is played by hand."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from websockets.exceptions import ConnectionClosed

from gpulayer.protocol.calls import (
    OK,
    RAISED,
    CallBatch,
    CallRange,
    CallRun,
    Calls,
    CallsAccepted,
    CallsDone,
    CallsSpec,
    CancelMap,
    DropCalls,
    EndCalls,
    EndRunner,
    FollowMap,
    FunctionSpec,
    MapArgs,
    MapRecord,
    MapResults,
    MapSpec,
    MapTaken,
    MapUpdate,
    MapView,
    OpenMap,
)
from gpulayer.protocol.messages import HeldAttempt, Output, Refused, Unfollow, Update
from gpulayer.protocol.records import Kind, encode_call
from gpulayer.protocol.types import TERMINAL, JobSpec, State
from gpulayer_server.core.events import WorkerSaid
from gpulayer_server.core.state import Settings
from gpulayer_server.store.database import StoreError

pack = msgspec.msgpack.Encoder().encode


def a_job(name: str = "f", **more: Any) -> bytes:
    return pack(JobSpec(calls=CallsSpec(function=FunctionSpec(name=name, qualname=name), **more)))


def opening(n: int, key: str, *args: bytes, job: bytes = b"", **more: Any) -> OpenMap:
    """A map of so many calls, all of which come with it unless told."""
    return OpenMap(n=n, key=key, job=job or a_job(), args=args, **{"last": True, **more})


class Runner:
    """A worker that runs calls as the test says."""

    def __init__(self, worker: Any):
        self.worker = worker
        self.attempt = ""
        self.offset = 0

    def begin(self) -> None:
        """Take the lease."""
        self.attempt = self.worker.assigned().attempt
        self.worker.begin(self.attempt)

    def batches(self) -> tuple[CallBatch, ...]:
        """The next calls that it is given."""
        calls = self.worker.until(Calls)
        assert calls.attempt == self.attempt
        return calls.batches

    def given(self, count: int) -> list[tuple[int, bytes]]:
        """So many calls, each with its index; what is given is done at once with its arguments as the result."""
        got: list[tuple[int, bytes]] = []
        while len(got) < count:
            for batch in self.batches():
                got += enumerate(batch.args, batch.first)
                self.done(batch.map, batch.first, *batch.args)
        return got

    def done(self, name: str, first: int, *data: bytes, codes: bytes = b"") -> None:
        """Results."""
        run = CallRun(map=name, first=first, codes=codes or bytes([OK]) * len(data), data=data, spent_us=len(data))
        self.worker.say(CallsDone(attempt=self.attempt, runs=(run,)))

    def print(self, name: str, index: int, text: bytes, kind: int = Kind.CALL_STDOUT, seq: int = 0) -> Output:
        """What a call writes, as a message that is yet to be sent."""
        data = encode_call(kind, name, index, seq, text)
        message = Output(attempt=self.attempt, offset=self.offset, data=data)
        self.offset += len(data)
        return message


@pytest.fixture
def runner(worker: Any) -> Runner:
    return Runner(worker)


def to_end(client: Any, n: int) -> tuple[list[bytes], MapView]:
    """The results of a map until it has ended, and how it did."""
    data: list[bytes] = []
    while True:
        message = client.next()
        if isinstance(message, MapResults) and message.n == n:
            for run in message.runs:
                assert run.first == len(data)
                data += run.data
        elif isinstance(message, MapUpdate) and message.n == n and message.map.state in TERMINAL:
            return data, message.map


def test_a_call_goes_to_a_runner_and_its_result_comes_back_before_its_end(client: Any, runner: Runner) -> None:
    client.say(opening(1, "k", b"x", map=MapSpec(single=True, total=1)))
    opened = client.until(MapUpdate).map
    runner.begin()
    (batch,) = runner.batches()
    assert (batch.map, batch.first, batch.args) == (opened.id, 0, (b"x",))
    runner.done(opened.id, 0, b"y")
    assert runner.worker.until(CallsAccepted).ranges[0].map == opened.id
    data, view = to_end(client, 1)
    assert data == [b"y"]
    assert (view.state, view.done, view.total, view.single) == (State.SUCCEEDED, 1, 1, True)


def test_a_warm_call_is_one_message_each_way(client: Any, runner: Runner) -> None:
    client.say(opening(1, "k1", b"x"))
    runner.begin()
    assert runner.given(1) == [(0, b"x")]
    to_end(client, 1)
    client.say(opening(2, "k2", b"z"))
    assert runner.given(1) == [(0, b"z")]
    data, view = to_end(client, 2)
    assert data == [b"z"]
    assert view.id.endswith(".2")


def test_the_calls_of_a_map_come_in_parts_and_its_results_in_order(client: Any, runner: Runner) -> None:
    client.say(opening(1, "k", b"0", b"1", last=False))
    assert client.until(MapTaken).upto == 2
    name = client.until(MapUpdate).map.id
    client.say(MapArgs(n=1, map=name, first=2, args=(b"2", b"3")))
    assert client.until(MapTaken).upto == 4
    client.say(MapArgs(n=1, map=name, first=2, args=(b"2", b"3", b"4"), last=True))  # those that are here pass
    assert client.until(MapTaken).upto == 5
    runner.begin()
    assert sorted(runner.given(5)) == [(n, b"%d" % n) for n in range(5)]
    data, view = to_end(client, 1)
    assert data == [b"0", b"1", b"2", b"3", b"4"]
    assert (view.total, view.done) == (5, 5)


def test_results_come_in_order_though_runners_are_done_in_another(client: Any, runner: Runner) -> None:
    client.say(opening(1, "k", *[b"%d" % n for n in range(6)]))
    name = client.until(MapUpdate).map.id
    runner.begin()
    first = runner.batches()[0]
    runner.done(name, first.first, *first.args)
    held: list[CallBatch] = []
    while sum(len(batch.args) for batch in held) < 5:
        held += runner.batches()
    for batch in reversed(held):
        for index in reversed(range(batch.first, batch.first + len(batch.args))):
            runner.done(name, index, batch.args[index - batch.first])
    assert to_end(client, 1)[0] == [b"%d" % n for n in range(6)]


def test_unordered_results_come_as_they_are_there_with_a_place_to_go_on(
    plane: Any, client: Any, runner: Runner, new_client: Callable[[], Any]
) -> None:
    client.say(opening(1, "k", *[b"%d" % n for n in range(3)], ordered=False, job=a_job(max_runners=1)))
    name = client.until(MapUpdate).map.id
    runner.begin()
    batch = runner.batches()[0]
    runner.done(name, batch.first, *batch.args)
    first = client.until(MapResults)
    assert [run.first for run in first.runs] == [0]
    later: list[CallBatch] = []
    while sum(len(each.args) for each in later) < 2:
        later += runner.batches()
    for index in (2, 1):
        runner.done(name, index, b"%d" % index)
        assert [run.first for run in client.until(MapResults).runs] == [index]
    again = new_client()
    again.say(FollowMap(n=9, map=name, ordered=False, after=first.cursor))
    seen = [run.first for run in again.until(MapResults).runs]
    assert seen == [2, 1]


def test_text_comes_before_the_result_and_the_result_before_the_end(client: Any, runner: Runner) -> None:
    client.say(opening(1, "k", b"x"))
    name = client.until(MapUpdate).map.id
    runner.begin()
    runner.batches()
    done = CallsDone(attempt=runner.attempt, runs=(CallRun(map=name, first=0, codes=bytes([OK]), data=(b"y",)),))
    runner.worker.say(
        runner.print(name, 0, b"one\n"),
        runner.print("other.1", 0, b"not ours\n"),
        runner.print(name, 0, b"two\n", Kind.CALL_STDERR),
        done,
    )
    seen: list[Any] = []
    while not (seen and isinstance(seen[-1], MapUpdate) and seen[-1].map.state is State.SUCCEEDED):
        seen.append(client.next())
    told = [message for message in seen if not isinstance(message, MapUpdate)]
    assert [type(message) for message in told] == [MapRecord, MapRecord, MapResults]
    assert [(record.kind, record.data) for record in told[:2]] == [
        (Kind.CALL_STDOUT, b"one\n"),
        (Kind.CALL_STDERR, b"two\n"),
    ]
    assert told[1].attempt == runner.attempt


def test_who_comes_later_gets_all_of_it_or_what_is_left(
    client: Any, runner: Runner, new_client: Callable[[], Any]
) -> None:
    client.say(opening(1, "k", b"x", b"y", job=a_job(max_runners=1)))
    name = client.until(MapUpdate).map.id
    runner.begin()
    runner.batches()
    runner.worker.say(runner.print(name, 0, b"one"), runner.print(name, 0, b"item", Kind.CALL_ITEM, 3))
    runner.done(name, 0, b"X")
    text = client.until(MapRecord)
    item = client.until(MapRecord)
    assert (item.kind, item.seq, item.data) == (Kind.CALL_ITEM, 3, b"item")
    (result,) = client.until(MapResults).runs
    assert result.data == (b"X",)
    runner.batches()
    runner.done(name, 1, b"Y")
    to_end_of = new_client()
    client.close()
    to_end_of.say(FollowMap(n=5, map=name))
    assert to_end_of.until(MapRecord).data == b"one"
    assert to_end_of.until(MapRecord).data == b"item"
    assert to_end(to_end_of, 5)[0] == [b"X", b"Y"]
    to_end_of.say(FollowMap(n=6, map=name, after=1, texts={text.attempt: text.at}))
    assert to_end_of.until(MapRecord).data == b"item"
    assert [run.data for run in to_end_of.until(MapResults).runs] == [(b"Y",)]
    assert to_end_of.until(MapUpdate).map.state is State.SUCCEEDED


def test_the_same_key_gives_the_same_map_also_once_it_is_over(
    client: Any, runner: Runner, new_client: Callable[[], Any]
) -> None:
    client.say(opening(1, "k", b"x"))
    name = client.until(MapUpdate).map.id
    twin = new_client()
    twin.say(opening(1, "k", b"x"))
    assert twin.until(MapUpdate).map.id == name
    runner.begin()
    runner.given(1)
    assert to_end(twin, 1)[0] == [b"x"]
    assert to_end(client, 1)[1].id == name
    twin.say(opening(2, "k", b"x"))
    assert to_end(twin, 2)[0] == [b"x"]


def test_a_map_of_the_past_is_found_by_its_key_in_the_store(plane: Any, client: Any, runner: Runner) -> None:
    client.say(opening(1, "k", b"x"))
    runner.begin()
    runner.given(1)
    name = to_end(client, 1)[1].id

    def forget() -> None:
        calls = plane.service.shell.plane.calls
        calls.ended.clear()
        calls.keys.clear()

    plane.do(forget)
    client.say(opening(2, "k", b"x"))
    data, view = to_end(client, 2)
    assert (data, view.id) == ([b"x"], name)


def test_a_failed_call_ends_its_map_and_says_which(client: Any, runner: Runner) -> None:
    client.say(opening(1, "k", b"0", b"1", b"2", job=a_job(max_runners=1)))
    name = client.until(MapUpdate).map.id
    runner.begin()
    batch = runner.batches()[0]
    runner.done(name, batch.first, b"boom", codes=bytes([RAISED]))
    data, view = to_end(client, 1)
    assert data == [b"boom"]
    assert (view.state, view.failed_index, view.failed_code, view.failure) == (State.FAILED, 0, RAISED, b"boom")


def test_a_map_is_cancelled_and_its_follower_is_told_by_its_end(client: Any, runner: Runner) -> None:
    client.say(opening(1, "k", b"0", b"1"))
    name = client.until(MapUpdate).map.id
    runner.begin()
    runner.batches()
    client.say(CancelMap(n=2, map=name))
    assert runner.worker.until(DropCalls).map == name
    ends = {message.n: message.map.state for message in (client.until(MapUpdate), client.until(MapUpdate))}
    while len(ends) < 2 or set(ends.values()) != {State.CANCELLED}:
        message = client.until(MapUpdate)
        ends[message.n] = message.map.state
    assert ends == {1: State.CANCELLED, 2: State.CANCELLED}


def test_runners_end_when_a_client_says_so(client: Any, runner: Runner) -> None:
    client.say(opening(1, "k", b"x"))
    job = client.until(MapUpdate).map.job
    runner.begin()
    runner.given(1)
    to_end(client, 1)
    client.say(EndCalls(n=3, job=job))
    assert client.until(Update).job.id == job
    assert runner.worker.until(EndRunner).attempt == runner.attempt


def test_who_follows_no_more_is_told_no_more(client: Any, runner: Runner) -> None:
    client.say(opening(1, "k1", b"x"))
    name = client.until(MapUpdate).map.id
    client.say(Unfollow(n=1), FollowMap(n=2, map=name))
    while client.next().n != 2:
        pass
    runner.begin()
    runner.given(1)
    seen = [client.next()]
    while not (isinstance(seen[-1], MapUpdate) and seen[-1].map.state in TERMINAL):
        seen.append(client.next())
    assert {message.n for message in seen} == {2}


# ---------------------------------------------------------------- refusals


def test_files_and_values_that_are_not_here_are_asked_for(plane: Any, client: Any, runner: Runner) -> None:
    digest = hashlib.sha256(b"m").hexdigest()
    job = pack(JobSpec(calls=CallsSpec(function=FunctionSpec(name="f", qualname="f", bundle=digest))))
    client.say(opening(1, "k", b"x", job=job))
    assert client.until(Refused).problem.code == "bundle_unknown"
    client.say(opening(2, "k", b"x", blobs=(digest,)))
    assert client.until(Refused).problem.code == "inputs_unknown"
    client.say(opening(3, "k", b"x", blobs=("nothing",)))
    assert client.until(Refused).problem.code == "bad_request"
    plane.do(lambda: plane.service.shell.blobs.put(digest, [b"m"]))
    client.say(opening(4, "k", digest.encode(), b"none", blobs=(digest,)))
    runner.begin()
    batches = [*runner.batches()]
    assert (batches[0].args, batches[0].blobs) == ((digest.encode(),), (digest,))
    runner.done(batches[0].map, 0, b"")
    assert runner.batches()[0].blobs == ()  # only what a call names goes with it


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (OpenMap(n=1, key="", job=a_job()), "bad_request"),
        (OpenMap(n=1, key="k", job=b"\xc1"), "bad_job"),
        (OpenMap(n=1, key="k", job=pack(JobSpec())), "bad_job"),
        (OpenMap(n=1, key="k", job=a_job(), args=(b"",) * 513), "bad_request"),
        (MapArgs(n=1, map="nnnn.1", first=0), "no_such_map"),
        (FollowMap(n=1, map="nnnn.1"), "no_such_map"),
        (FollowMap(n=1, map="nonsense"), "no_such_map"),
        (CancelMap(n=1, map="nnnn.x"), "no_such_map"),
        (EndCalls(n=1, job="nnnn"), "no_such_job"),
    ],
)
def test_what_can_not_be_is_refused(client: Any, message: Any, code: str) -> None:
    client.say(message)
    refused = client.until(Refused)
    assert (refused.n, refused.problem.code) == (1, code)


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

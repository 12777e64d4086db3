"""Maps of calls by the clients' socket, beside a worker that is played by hand."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import pytest

from gpulayer.protocol.calls import (
    OK,
    RAISED,
    CallBatch,
    CallRun,
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
    OpenMap,
)
from gpulayer.protocol.messages import Refused, Unfollow, Update
from gpulayer.protocol.records import Kind
from gpulayer.protocol.types import TERMINAL, JobSpec, State
from tests.support.maps import Runner, a_job, opening, pack, to_end


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

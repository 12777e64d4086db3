"""What followers send, and when: text, results, state, in that order, and no faster than the client reads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from tornado import websocket

from gpulayer.protocol.calls import OK, CallRun, MapRecord, MapResults, MapUpdate, MapView
from gpulayer.protocol.messages import ServerToClient, to_client
from gpulayer.protocol.records import Kind, encode_call
from gpulayer.protocol.types import FRAME_DATA_BYTES, State
from gpulayer_server.http import mapfollow
from gpulayer_server.http.mapfollow import MapFollower, MapPump
from gpulayer_server.http.mapresults import Ordered
from gpulayer_server.maptexts import MapTexts, texts_of
from gpulayer_server.store.streams import Streams


class Socket:
    """A client's connection that takes a frame when the test says so."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.slow = False
        self.gone = False
        self.taken: asyncio.Future[None] | None = None
        self.written = asyncio.Event()

    def write_frame(self, frame: bytes) -> asyncio.Future[None] | None:
        if self.gone:
            raise websocket.WebSocketClosedError
        assert self.taken is None or self.taken.done(), "a frame before the last one was taken"
        self.frames.append(frame)
        self.written.set()
        self.taken = asyncio.get_running_loop().create_future() if self.slow else None
        return self.taken

    def take(self) -> None:
        """The client has it."""
        assert self.taken is not None
        self.taken.set_result(None)

    def heard(self) -> list[ServerToClient]:
        return [message for frame in self.frames for message in to_client(frame)]


class Case:
    """A map that is followed, on a stream of its own."""

    def __init__(self, folder: Path):
        self.streams = Streams(folder)
        self.socket = Socket()
        self.pump = MapPump(self.socket)
        self.over: list[int] = []

    def follow(self, n: int = 1, **view: Any) -> MapFollower:
        first = self.view(**view)
        results = Ordered(lambda first, limit: [])
        texts = MapTexts(self.streams, first.id, {"a": 0} if self.streams.visible("a") else {})
        return MapFollower(self.pump, n, first, results, texts, lambda follower: self.over.append(follower.n))

    def view(self, state: State = State.RUNNING, **more: Any) -> MapView:
        return MapView(**{"id": "m.1", "job": "m", "state": state} | more)

    def print(self, follower: MapFollower, *texts: bytes, name: str = "m.1") -> None:
        before = self.streams.visible("a")
        records = b"".join([encode_call(Kind.CALL_STDOUT, name, n, 0, text) for n, text in enumerate(texts)])
        self.streams.append("a", self.streams.length("a"), records)
        follower.wrote([text for text in texts_of(self.streams, "a", before) if text.map == follower.map])


def run(folder: Path, body: Callable[[Case], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        case = Case(folder)
        try:
            await body(case)
        finally:
            case.streams.close()

    asyncio.run(whole())


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def done(first: int, *data: bytes) -> CallRun:
    return CallRun(map="m.1", first=first, codes=bytes([OK]) * len(data), data=data)


def test_only_what_is_not_known_is_news(tmp_path: Path) -> None:
    """A map that was just opened is told as it is, once; and what a quick call brings goes with that."""

    async def body(case: Case) -> None:
        follower = case.follow(taken=1)
        assert not follower.changed(case.view(taken=1))
        assert follower.changed(case.view(taken=2))
        assert not follower.changed(case.view(taken=2))
        follower.flush()
        assert [each.map.taken for each in case.socket.heard() if isinstance(each, MapUpdate)] == [2]
        assert not follower.changed(case.view(taken=2))
        assert follower.changed(case.view(taken=3))
        assert follower.changed(case.view(taken=2))  # as the client knows it, but it is the newest
        follower.flush()
        assert [each.map.taken for each in case.socket.heard() if isinstance(each, MapUpdate)] == [2, 2]

    run(tmp_path, body)


def test_text_results_and_the_end_are_one_frame_in_this_order(tmp_path: Path) -> None:
    async def body(case: Case) -> None:
        follower = case.follow()
        follower.flush()
        case.print(follower, b"hello")
        follower.accepted(done(0, b"y"))
        follower.changed(case.view(State.SUCCEEDED, total=1))
        follower.flush()
        assert len(case.socket.frames) == 2
        assert [type(each) for each in to_client(case.socket.frames[1])] == [MapRecord, MapResults, MapUpdate]
        assert case.over == [1]
        await turns()
        assert len(case.socket.frames) == 2

    run(tmp_path, body)


def test_that_a_call_was_taken_goes_along_with_its_result_if_that_is_quick(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapfollow, "_MOMENT_S", 3600.0)

    async def body(case: Case) -> None:
        follower = case.follow()
        case.pump.later()
        await turns()
        assert case.socket.frames == []
        follower.accepted(done(0, b"y"))
        follower.changed(case.view(State.SUCCEEDED, total=1))
        follower.flush()
        (frame,) = case.socket.frames
        assert [type(each) for each in to_client(frame)] == [MapResults, MapUpdate]

    run(tmp_path, body)


def test_that_a_call_was_taken_is_told_also_where_nothing_follows(tmp_path: Path) -> None:
    async def body(case: Case) -> None:
        case.follow()
        case.pump.later()
        await case.socket.written.wait()
        (told,) = case.socket.heard()
        assert isinstance(told, MapUpdate)

    run(tmp_path, body)


def test_a_slow_client_is_waited_for_and_nothing_is_lost(tmp_path: Path) -> None:
    async def body(case: Case) -> None:
        follower = case.follow()
        case.socket.slow = True
        follower.flush()
        for n in range(200):
            follower.accepted(done(n, b"%d" % n * 1000))
            follower.changed(case.view(done=n + 1))
            follower.flush()
        assert len(case.socket.frames) == 1
        follower.changed(case.view(State.SUCCEEDED, total=200))
        while not case.over:
            case.socket.take()
            await turns(3)
        sizes = [sum(len(each) for run in message.runs for each in run.data)
                 for message in case.socket.heard() if isinstance(message, MapResults)]  # fmt: skip
        assert sum(sizes) == sum(len(b"%d" % n) * 1000 for n in range(200))
        assert max(sizes) <= FRAME_DATA_BYTES + 3000
        views = [each.map for each in case.socket.heard() if isinstance(each, MapUpdate)]
        assert len(views) < 20  # states in between are passed over
        assert views[-1].state is State.SUCCEEDED

    run(tmp_path, body)


def test_results_wait_for_the_text_before_them_however_much_is_printed_behind(tmp_path: Path) -> None:
    async def body(case: Case) -> None:
        follower = case.follow()
        case.socket.slow = True
        follower.flush()
        big = b"x" * (FRAME_DATA_BYTES - 1000)
        case.print(follower, big, big)
        follower.accepted(done(0, b"y"))
        follower.flush()
        for _ in range(8):  # a runner prints faster than this client reads
            case.print(follower, big)
            case.socket.take()
            await turns()
        kinds = [type(each) for each in case.socket.heard() if not isinstance(each, MapUpdate)]
        at = kinds.index(MapResults)
        assert 2 <= at <= 5
        assert kinds[:at] == [MapRecord] * at

    run(tmp_path, body)


def test_what_others_print_is_passed_over_without_a_frame(tmp_path: Path) -> None:
    async def body(case: Case) -> None:
        streams = case.streams
        for n, name in enumerate(["m.2"] * 20 + ["m.1"]):
            record = encode_call(Kind.CALL_STDOUT, name, n, 0, b"ours" if name == "m.1" else b"x" * 100_000)
            streams.append("a", streams.length("a"), record)
        case.follow()
        case.pump.flush()
        for _ in range(100):
            await turns()
            if len(case.socket.frames) > 1:
                break
        (record,) = [each for each in case.socket.heard() if isinstance(each, MapRecord)]
        assert record.data == b"ours"

    run(tmp_path, body)


def test_maps_of_one_client_share_its_frames(tmp_path: Path) -> None:
    async def body(case: Case) -> None:
        followers = [case.follow(n) for n in range(5)]
        case.pump.flush()
        assert len(case.socket.frames) == 1
        for follower in followers:
            follower.accepted(done(0, b"y"))
            follower.changed(case.view(State.SUCCEEDED, total=1))
        for follower in followers:
            follower.flush()
        assert len(case.socket.frames) == 2
        assert case.over == [0, 1, 2, 3, 4]

    run(tmp_path, body)


def test_the_end_waits_for_what_is_still_to_be_sent(tmp_path: Path) -> None:
    async def body(case: Case) -> None:
        follower = case.follow()
        case.socket.slow = True
        follower.flush()
        case.print(follower, b"x" * FRAME_DATA_BYTES, b"y")
        follower.changed(case.view(State.CANCELLED, total=3))
        while not case.over:
            case.socket.take()
            await turns()
        last = case.socket.heard()[-1]
        assert isinstance(last, MapUpdate)
        assert last.map.state is State.CANCELLED
        data = b"".join(each.data for each in case.socket.heard() if isinstance(each, MapRecord))
        assert data == b"x" * FRAME_DATA_BYTES + b"y"

    run(tmp_path, body)


def test_the_same_state_is_told_once(tmp_path: Path) -> None:
    async def body(case: Case) -> None:
        follower = case.follow()
        for _ in range(3):
            follower.changed(case.view())
            follower.flush()
        assert len(case.socket.heard()) == 1

    run(tmp_path, body)


def test_a_client_that_left_is_sent_nothing(tmp_path: Path) -> None:
    async def body(case: Case) -> None:
        follower = case.follow()
        case.socket.gone = True
        follower.flush()
        follower.accepted(done(0, b"y"))
        case.print(follower, b"text")
        await turns()
        assert case.socket.frames == []
        assert case.over == []

    run(tmp_path, body)

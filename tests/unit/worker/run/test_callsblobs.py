"""Large arguments on their way here, large results on their way back."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from gpulayer.protocol.calls import CallBatch, CallRun
from gpulayer.source.blobs import Blobs
from gpulayer_worker.layout import Layout
from gpulayer_worker.run import callsblobs
from gpulayer_worker.run.callsblobs import ArgumentBlobs, ResultBlobs, named_in
from gpulayer_worker.run.callsqueue import Piece
from gpulayer_worker.runner.wire import BlobPlace
from gpulayer_worker.workspace import Workspaces
from tests.support.blobhost import BlobHost, digest, problem

_DATA = [bytes((n,)) * 70_000 for n in range(4)]


class Host:
    """The agent, as the transfers see it."""

    def __init__(self, folder: Path, control: BlobHost, beside: Path | None) -> None:
        self.layout = Layout(folder)
        self.endpoint = lambda: control.tie.endpoint
        self.blobs_beside = lambda: beside
        self.workspaces = Workspaces(Blobs(folder / "blobs"), self.endpoint, self.blobs_beside)
        self.told: list[str] = []
        self.there: list[CallRun] = []
        self.here = 0
        self.failed: list[tuple[Any, str]] = []

    def arguments(self) -> ArgumentBlobs:
        def here() -> None:
            self.here += 1

        services: Any = self
        failed: Callable[[str, str], None] = lambda digest, why: self.failed.append((digest, why))  # noqa: E731
        return ArgumentBlobs(services, here=here, failed=failed, tell=self.told.append, check_wish=lambda: None)

    def results(self) -> ResultBlobs:
        services: Any = self
        failed: Callable[[CallRun, str], None] = lambda run, why: self.failed.append((run, why))  # noqa: E731
        return ResultBlobs(services, there=self.there.extend, failed=failed, tell=self.told.append)


@pytest.fixture
def control(monkeypatch: pytest.MonkeyPatch) -> BlobHost:
    """A control plane on another machine."""
    return BlobHost().serve(monkeypatch, "gpulayer_worker.run.callsblobs", "gpulayer_worker.workspace")


def play(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(test())


async def until(condition: Callable[[], object]) -> None:
    while not condition():  # noqa: ASYNC110 - threads are at work
        await asyncio.sleep(0.001)


def batch(*digests: str) -> CallBatch:
    """A call for each of these blobs."""
    return CallBatch(map="m", first=0, args=tuple(f'["{each}", 1]'.encode() for each in digests), blobs=digests)


def piece(calls: CallBatch, first: int, stop: int) -> Piece:
    return Piece("m", first, stop, calls)


def left(folder: Path, data: bytes, name: str = "1") -> BlobPlace:
    """A file as a runner leaves it."""
    path = folder / name
    path.write_bytes(data)
    return BlobPlace(digest(data), str(path), 0, len(data))


def read(path: str) -> bytes:
    return Path(path).read_bytes()


def run(first: int = 0) -> CallRun:
    return CallRun(map="m", first=first, codes=b"\0", data=(b"x",))


# ---------------------------------------------------------------- arguments


def test_what_calls_name_stands_in_their_bytes() -> None:
    one, other = digest(b"1"), digest(b"2")
    assert named_in((one, other), [b"..." + other.encode() + b"..."]) == [other]
    assert named_in((one, other), [b"nothing that is known"]) == [one, other]


def test_calls_are_ready_one_by_one_as_their_blobs_come(tmp_path: Path, control: BlobHost) -> None:
    async def test() -> None:
        host = Host(tmp_path, control, None)
        arguments = host.arguments()
        calls = batch(*[control.put(data) for data in _DATA])
        first = piece(calls, 0, 1)
        assert not arguments.ready(first)
        arguments.want(calls)
        await until(lambda: host.here == len(_DATA))  # each is told of as it comes
        assert arguments.ready(first)
        assert [(place.digest, place.size) for place in first.places] == [(digest(_DATA[0]), 70_000)]
        assert read(first.places[0].path) == _DATA[0]
        assert arguments.ready(piece(calls, 0, 4))
        # one by itself, since a call waits for it, and the others together
        assert control.asked == ["POST /v1/blobs/fetch", "POST /v1/blobs/fetch"]
        arguments.close()

    play(test)


def test_what_is_beside_the_control_plane_is_read_there(tmp_path: Path, control: BlobHost) -> None:
    async def test() -> None:
        plane = Blobs(tmp_path / "plane")
        plane.put(digest(_DATA[0]), [_DATA[0]])
        host = Host(tmp_path / "w", control, tmp_path / "plane")
        calls = piece(batch(digest(_DATA[0])), 0, 1)
        assert host.arguments().ready(calls)
        assert calls.places[0].path.startswith(str(tmp_path / "plane"))
        assert control.asked == []

    play(test)


def test_one_that_can_t_be_had_does_not_stop_the_others(tmp_path: Path, control: BlobHost) -> None:
    async def test() -> None:
        host = Host(tmp_path, control, None)
        arguments = host.arguments()
        damaged = digest(b"not what is there")
        control.blobs[damaged] = b"damaged"
        good = [control.put(data) for data in _DATA]
        calls = batch(good[0], good[1], damaged, good[2])
        arguments.want(calls)
        await until(lambda: host.failed and arguments.ready(piece(calls, 3, 4)))
        assert [name for name, _ in host.failed] == [damaged]
        assert not arguments.ready(piece(calls, 2, 3))
        arguments.close()

    play(test)


# ---------------------------------------------------------------- results


def test_beside_the_control_plane_a_result_s_file_becomes_the_blob(tmp_path: Path, control: BlobHost) -> None:
    async def test() -> None:
        plane = Blobs(tmp_path / "plane")
        host = Host(tmp_path / "w", control, tmp_path / "plane")
        results = host.results()
        place = left(tmp_path, _DATA[1])
        ready = results.add(run(), [place])
        assert ready is not None
        assert ready.blobs == (place.digest,)
        assert plane.read(place.digest) == _DATA[1]
        assert not os.access(place.path, os.F_OK)
        assert results.add(run(), [place]) == ready  # a runner may tell of it again
        assert not results.busy
        assert control.asked == []

    play(test)


def test_results_go_by_http_and_stay_here_for_calls_that_take_them(tmp_path: Path, control: BlobHost) -> None:
    async def test() -> None:
        host = Host(tmp_path / "w", control, None)
        results = host.results()
        places = [left(tmp_path, data, str(n)) for n, data in enumerate(_DATA)]
        assert results.add(run(0), places[:1]) is None
        assert results.add(run(1), places[1:]) is None
        await until(lambda: not results.busy)
        assert [(each.first, each.blobs) for each in host.there] == [
            (0, (places[0].digest,)),
            (1, tuple(place.digest for place in places[1:])),
        ]
        assert control.blobs == {digest(data): data for data in _DATA}
        assert all(place.digest in host.workspaces.blobs for place in places)

    play(test)


def test_results_are_told_in_order_a_few_at_a_time(
    tmp_path: Path, control: BlobHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        monkeypatch.setattr(callsblobs, "_TOGETHER_BYTES", 150_000)
        host = Host(tmp_path / "w", control, None)
        results = host.results()
        asked: list[tuple[int, int]] = []  # results that were told, and requests until then

        def there(runs: list[CallRun]) -> None:
            host.there.extend(runs)
            asked.append((len(runs), len(control.asked)))

        results._there = there  # pyright: ignore[reportPrivateUsage]
        for number, data in enumerate(_DATA):
            assert results.add(run(number), [left(tmp_path, data, str(number))]) is None
        results.add(run(9), [left(tmp_path, b"large" * 60_000, "large")])
        await until(lambda: not results.busy)
        assert asked == [(2, 1), (2, 2), (1, 3)]  # not one of them waits for all
        assert [each.first for each in host.there] == [0, 1, 2, 3, 9]
        assert control.blobs.keys() == {digest(data) for data in (*_DATA, b"large" * 60_000)}

    play(test)


def test_while_the_control_plane_is_away_they_wait(
    tmp_path: Path, control: BlobHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callsblobs, "_AGAIN_S", 0.001)

    async def test() -> None:
        host = Host(tmp_path / "w", control, None)
        results = host.results()
        control.break_next = [httpx.ConnectError("refused"), problem(507, "disk_full")]
        results.add(run(), [left(tmp_path, _DATA[0])])
        await until(lambda: host.there)
        assert len(host.told) == 2
        assert host.told[0] == "sending results back: refused; trying again"

    play(test)


def test_a_result_that_is_not_what_it_was_fails_alone(tmp_path: Path, control: BlobHost) -> None:
    async def test() -> None:
        host = Host(tmp_path / "w", control, None)
        results = host.results()
        good, bad = left(tmp_path, _DATA[0]), left(tmp_path, _DATA[1], "2")
        os.truncate(bad.path, 10)
        results.add(run(0), [good])
        results.add(run(1), [bad])
        await until(lambda: not results.busy)
        assert [each.first for each in host.there] == [0]
        ((failed, why),) = host.failed
        assert (failed.first, failed.blobs, why) == (1, (), "2 is not what the call left")

    play(test)


def test_what_nobody_wants_any_more_is_not_sent(tmp_path: Path, control: BlobHost) -> None:
    async def test() -> None:
        host = Host(tmp_path / "w", control, None)
        results = host.results()
        results.add(run(), [left(tmp_path, _DATA[0])])
        results.close()
        await until(lambda: not results.busy)
        assert host.there == []

    play(test)


def test_an_unreachable_folder_beside_is_no_fault(tmp_path: Path, control: BlobHost) -> None:
    async def test() -> None:
        host = Host(tmp_path / "w", control, tmp_path / "no-such-folder")
        host.workspaces = SimpleNamespace(  # type: ignore[assignment]
            blobs=Blobs(tmp_path / "w" / "blobs"), at_hand=lambda _: None
        )
        results = host.results()
        results.add(run(), [left(tmp_path, _DATA[2])])
        await until(lambda: host.there)
        assert control.blobs == {digest(_DATA[2]): _DATA[2]}

    play(test)

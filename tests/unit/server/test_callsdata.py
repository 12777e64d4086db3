"""Arguments on their way to runners: from memory while they are fresh, else from where they are stored."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import pytest

from gpulayer.protocol.calls import MESSAGE_BYTES, CallBatch, CallRange, Calls, MapSpec
from gpulayer_server.callsdata import CallsData
from gpulayer_server.core.events import ArgsRow, Dispatch, Row
from gpulayer_server.core.jobs import job_name
from gpulayer_server.core.state import MapState

MAP = f"{job_name(1)}.1"


def a_map(k: int = 1, **spec: object) -> MapState:
    made = MapSpec(**spec)  # type: ignore[arg-type]
    return MapState(
        n=1, k=k, id=f"{job_name(1)}.{k}", job=job_name(1), owner="ana", key=f"k{k}", spec=made, opened_at=1.0
    )


def args(first: int, *data: bytes, blobs: tuple[str, ...] = ()) -> ArgsRow:
    return ArgsRow(n=1, k=1, first=first, args=data, blobs=blobs)


def wanted(*ranges: tuple[int, int], name: str = MAP) -> Dispatch:
    return Dispatch(
        attempt="a1", ranges=tuple([CallRange(map=name, first=first, count=count) for first, count in ranges])
    )


class Stored:
    """Rows as a store has them; what was asked for is noted."""

    def __init__(self, *rows: ArgsRow):
        self.rows = rows
        self.asked: list[tuple[str, int, int]] = []

    def __call__(self, name: str, first: int, count: int) -> Sequence[ArgsRow]:
        self.asked.append((name, first, count))
        return [row for row in self.rows if row.first < first + count and row.first + len(row.args) > first]


def taken(stored: Stored, *rows: Row, limit_bytes: int = 1 << 20) -> CallsData:
    data = CallsData(stored, limit_bytes)
    data.take(rows)
    return data


def plain(calls: Calls) -> list[tuple[int, tuple[bytes, ...]]]:
    return [(batch.first, batch.args) for batch in calls.batches]


def test_fresh_arguments_go_without_a_look_at_the_store() -> None:
    stored = Stored()
    data = taken(stored, a_map(method="predict", timeout_s=3.0, stream=True), args(0, b"0", b"1", b"2"))
    (batch,) = data.calls_message(wanted((0, 3))).batches
    assert batch == CallBatch(map=MAP, first=0, args=(b"0", b"1", b"2"), method="predict", timeout_s=3.0, stream=True)
    assert stored.asked == []
    assert data.size_bytes == 0  # all of it went: it is not kept


def test_a_range_over_several_messages_goes_in_their_batches() -> None:
    data = taken(Stored(), a_map(), args(0, b"0", b"1"), args(2, b"2", b"3"), args(4, b"4"))
    assert plain(data.calls_message(wanted((1, 3)))) == [(1, (b"1",)), (2, (b"2", b"3"))]
    assert plain(data.calls_message(wanted((4, 1), (0, 1)))) == [(4, (b"4",)), (0, (b"0",))]


def test_what_goes_once_more_is_read() -> None:
    rows = (args(0, b"0", b"1"), args(2, b"2"))
    stored = Stored(*rows)
    data = taken(stored, a_map(), *rows)
    data.calls_message(wanted((0, 2)))
    assert plain(data.calls_message(wanted((1, 2)))) == [(1, (b"1",)), (2, (b"2",))]
    assert stored.asked == [(MAP, 1, 1)]


def test_no_more_is_kept_than_may_be() -> None:
    rows = (args(0, b"x" * 600), args(1, b"y" * 600))
    stored = Stored(*rows)
    data = taken(stored, a_map(), *rows, limit_bytes=1000)
    assert data.size_bytes <= 1000
    assert plain(data.calls_message(wanted((0, 2)))) == [(0, (b"x" * 600,)), (1, (b"y" * 600,))]
    assert stored.asked == [(MAP, 1, 1)]


def test_after_a_start_all_of_it_is_read() -> None:
    stored = Stored(args(0, b"0", b"1"))
    data = CallsData(stored)
    data.load([a_map(method="m")])
    (batch,) = data.calls_message(wanted((1, 1))).batches
    assert (batch.args, batch.method) == ((b"1",), "m")


def test_calls_of_a_map_that_is_over_are_left_out() -> None:
    data = taken(Stored(), a_map(), args(0, b"0"))
    data.forget(MAP)
    assert data.size_bytes == 0
    assert data.calls_message(wanted((0, 1))).batches == ()
    assert taken(Stored(), a_map()).calls_message(wanted((0, 1))).batches == ()  # its arguments are gone


def test_maps_that_ended_are_told() -> None:
    over = a_map()
    over.ended_at = 2.0
    assert CallsData(Stored()).take([over, a_map(2)]) == [over]


def test_a_worker_is_told_of_the_blobs_only_that_its_calls_name() -> None:
    one, two, both, hidden = (hashlib.sha256(bytes([n])).hexdigest() for n in range(4))
    data = taken(
        Stored(),
        a_map(),
        args(0, f"{one} {both}".encode(), bytes.fromhex(two) + both.encode(), b"", blobs=(one, two, both, hidden)),
    )
    blobs = [set(data.calls_message(wanted((n, 1))).batches[0].blobs) for n in range(3)]
    assert blobs == [{one, both, hidden}, {two, both, hidden}, {hidden}]  # of the last one nobody can tell whose it is


@pytest.mark.parametrize("size", [1, 10_000, MESSAGE_BYTES * 2])
def test_large_arguments_go_in_several_messages(size: int) -> None:
    parts = [bytes([n]) * size for n in range(60)]
    data = taken(Stored(), a_map(), args(0, *parts), limit_bytes=1 << 30)
    messages = data.calls_messages(wanted((0, 60)))
    assert [arg for each in messages for batch in each.batches for arg in batch.args] == parts
    firsts = [batch.first for each in messages for batch in each.batches]
    assert firsts == sorted(set(firsts))
    for message in messages:
        sizes = [len(arg) for batch in message.batches for arg in batch.args]
        assert sum(sizes) <= MESSAGE_BYTES or len(sizes) == 1

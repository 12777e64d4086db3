"""What a map's calls write, out of streams in which others write too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpulayer.protocol.records import HEADER_BYTES, Kind, encode_call, encode_json
from gpulayer_server.http.maptexts import MapTexts, Text
from gpulayer_server.store.streams import Streams

OUT, ERR, ITEM = Kind.CALL_STDOUT, Kind.CALL_STDERR, Kind.CALL_ITEM


@pytest.fixture
def streams(tmp_path: Path) -> Iterator[Streams]:
    streams = Streams(tmp_path)
    yield streams
    streams.close()


def write(streams: Streams, attempt: str, *records: bytes, texts: MapTexts | None = None) -> int:
    """Let a stream grow, as the shell does; its length."""
    before = streams.visible(attempt)
    length = streams.append(attempt, streams.length(attempt), b"".join(records))
    if texts is not None:
        texts.grew(attempt, before)
    return length


def plain(texts: list[Text]) -> list[tuple[int, int, bytes]]:
    return [(text.index, text.kind, text.data) for text in texts]


def test_only_what_is_of_the_map_comes_and_only_from_when_it_was_followed(streams: Streams) -> None:
    write(streams, "a", encode_call(OUT, "m.1", 0, 0, b"before"))
    texts = MapTexts(streams, "m.1")
    length = write(
        streams,
        "a",
        encode_call(OUT, "m.11", 0, 0, b"another's"),
        encode_call(OUT, "m.1", 7, 0, b"ours"),
        encode_json(Kind.MARK, {"mark": "truncated"}),
        encode_call(ERR, "n.1", 0, 0, b"another job's"),
        texts=texts,
    )
    (text,) = texts.take(1 << 20)
    assert (text.index, text.kind, text.data, text.attempt) == (7, OUT, b"ours", "a")
    assert text.at < length
    assert not texts.unread


def test_streams_are_read_from_where_the_client_was(streams: Streams) -> None:
    first = write(streams, "a", encode_call(OUT, "m.1", 0, 0, b"one"))
    write(streams, "a", encode_call(OUT, "m.1", 1, 0, b"two"))
    write(streams, "b", encode_call(OUT, "m.1", 2, 0, b"three"))
    texts = MapTexts(streams, "m.1", {"a": first, "b": 0, "c": 0})
    assert sorted(plain(texts.take(1 << 20))) == [(1, OUT, b"two"), (2, OUT, b"three")]
    assert not texts.unread
    assert not streams.path("c").exists()  # of one that never wrote there is no file
    write(streams, "c", encode_call(OUT, "m.1", 3, 0, b"four"), texts=texts)
    assert plain(texts.take(1 << 20)) == [(3, OUT, b"four")]


def test_a_record_in_pieces_comes_when_it_is_whole(streams: Streams) -> None:
    texts = MapTexts(streams, "m.1")
    record = encode_call(OUT, "m.1", 0, 0, b"whole")
    half = len(record) // 2
    write(streams, "a", record[:half], texts=texts)
    assert texts.take(1 << 20) == []
    write(streams, "a", record[half:], texts=texts)
    assert plain(texts.take(1 << 20)) == [(0, OUT, b"whole")]


def test_a_piece_at_a_time_is_looked_at(streams: Streams) -> None:
    texts = MapTexts(streams, "m.1")
    parts = [b"%05d" % n for n in range(100)]
    length = write(streams, "a", *[encode_call(ITEM, "m.1", n, n, part) for n, part in enumerate(parts)], texts=texts)
    got: list[Text] = []
    looks = 0
    while texts.unread:
        got += texts.take(100)
        looks += 1
    assert [text.data for text in got] == parts
    assert [text.seq for text in got] == list(range(100))
    assert got[-1].at == length
    assert looks >= length // 100


def test_what_one_call_prints_in_a_row_is_one_text_and_items_stay_apart(streams: Streams) -> None:
    texts = MapTexts(streams, "m.1")
    length = write(
        streams,
        "a",
        encode_call(OUT, "m.1", 0, 0, b"a"),
        encode_call(OUT, "m.1", 0, 0, b"b"),
        encode_call(ERR, "m.1", 0, 0, b"c"),
        encode_call(OUT, "m.1", 1, 0, b"d"),
        encode_call(ITEM, "m.1", 1, 0, b"e"),
        encode_call(ITEM, "m.1", 1, 1, b"f"),
        texts=texts,
    )
    got = texts.take(1 << 20)
    assert plain(got) == [(0, OUT, b"ab"), (0, ERR, b"c"), (1, OUT, b"d"), (1, ITEM, b"e"), (1, ITEM, b"f")]
    again = MapTexts(streams, "m.1", {"a": got[0].at})
    assert plain(again.take(1 << 20))[0] == (0, ERR, b"c")  # `at` is the end of the last record in it
    assert got[-1].at == length


def test_a_goal_is_reached_when_what_was_there_then_is_read(streams: Streams) -> None:
    texts = MapTexts(streams, "m.1")
    size = write(streams, "a", encode_call(OUT, "m.1", 0, 0, b"x" * 50), texts=texts)
    goal = texts.goal()
    write(streams, "a", encode_call(OUT, "m.1", 0, 0, b"y" * 50), texts=texts)
    assert not texts.reached(goal)
    texts.take(size)
    assert texts.reached(goal)
    assert texts.unread
    assert texts.reached({})


def test_a_damaged_stream_holds_nobody_up(streams: Streams) -> None:
    texts = MapTexts(streams, "m.1")
    damaged = bytearray(encode_call(OUT, "m.1", 0, 0, b"x"))
    damaged[HEADER_BYTES + 2] ^= 0xFF
    write(streams, "a", bytes(damaged), texts=texts)
    goal = texts.goal()
    assert texts.take(1 << 20) == []
    assert texts.reached(goal)
    assert not texts.unread

"""What a map's calls write, out of streams in which others write too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpulayer.protocol.records import HEADER_BYTES, Kind, encode_call, encode_json
from gpulayer_server import maptexts
from gpulayer_server.maptexts import MapTexts, Text, texts_of
from gpulayer_server.store.streams import Streams

OUT, ERR, ITEM = Kind.CALL_STDOUT, Kind.CALL_STDERR, Kind.CALL_ITEM
ALL = 1 << 30


@pytest.fixture
def streams(tmp_path: Path) -> Iterator[Streams]:
    streams = Streams(tmp_path)
    yield streams
    streams.close()


def write(streams: Streams, attempt: str, *records: bytes, texts: MapTexts | None = None, name: str = "m.1") -> int:
    """Let a stream grow, as the shell does; its length."""
    before = streams.visible(attempt)
    length = streams.append(attempt, streams.length(attempt), b"".join(records))
    if texts is not None:
        texts.wrote([text for text in texts_of(streams, attempt, before) if text.map == name])
    return length


def out(data: bytes, index: int = 0, name: str = "m.1") -> bytes:
    return encode_call(OUT, name, index, 0, data)


def plain(texts: list[Text]) -> list[tuple[int, int, bytes]]:
    return [(text.index, text.kind, text.data) for text in texts]


def all_of(texts: MapTexts, limit_bytes: int = ALL) -> list[Text]:
    got: list[Text] = []
    while texts.unread:
        got += texts.take(limit_bytes)
    return got


def test_texts_are_what_calls_wrote_and_nothing_else(streams: Streams) -> None:
    first = write(streams, "a", out(b"before"))
    length = write(
        streams, "a", out(b"one", 7), encode_json(Kind.MARK, {"mark": "x"}), encode_call(ERR, "n.1", 0, 0, b"two")
    )
    one, two = texts_of(streams, "a", first)
    assert (one.map, one.index, one.kind, one.data, one.attempt, one.start) == ("m.1", 7, OUT, b"one", "a", first)
    assert (two.map, two.kind, two.data, two.at) == ("n.1", ERR, b"two", length)
    assert one.at < two.start


def test_streams_are_read_from_where_the_client_was(streams: Streams) -> None:
    first = write(streams, "a", out(b"one"))
    write(streams, "a", out(b"two", 1), out(b"another's", 1, "m.11"))
    write(streams, "b", out(b"three", 2))
    texts = MapTexts(streams, "m.1", {"a": first, "b": 0, "c": 0})
    assert sorted(plain(all_of(texts))) == [(1, OUT, b"two"), (2, OUT, b"three")]
    assert not streams.path("c").exists()  # of one that never wrote there is no file
    for attempt in ("a", "c"):  # the rest is told
        write(streams, attempt, out(b"four", 3), texts=texts)
    assert plain(all_of(texts)) == [(3, OUT, b"four"), (3, OUT, b"four")]


def test_what_is_told_while_it_is_read_comes_once(streams: Streams) -> None:
    size = write(streams, "a", out(b"one"))
    texts = MapTexts(streams, "m.1", {"a": 0})
    write(streams, "a", out(b"two"), texts=texts)
    assert [text.data for text in texts.take(size)] == [b"one"]
    write(streams, "a", out(b"three"), texts=texts)
    assert b"".join(text.data for text in all_of(texts)) == b"twothree"
    write(streams, "a", out(b"four"), texts=texts)
    assert [text.data for text in all_of(texts)] == [b"four"]


def test_a_record_in_pieces_comes_when_it_is_whole(streams: Streams) -> None:
    texts = MapTexts(streams, "m.1")
    record = out(b"whole")
    half = len(record) // 2
    write(streams, "a", record[:half], texts=texts)
    assert not texts.unread
    write(streams, "a", record[half:], texts=texts)
    assert plain(all_of(texts)) == [(0, OUT, b"whole")]


@pytest.mark.parametrize("told", [False, True])
def test_a_piece_at_a_time_is_given(streams: Streams, told: bool) -> None:
    texts = MapTexts(streams, "m.1", {} if told else {"a": 0})
    parts = [b"%05d" % n for n in range(100)]
    records = [encode_call(ITEM, "m.1", n, n, part) for n, part in enumerate(parts)]
    length = write(streams, "a", *records, texts=texts)
    got: list[Text] = []
    looks = 0
    while texts.unread:
        got += texts.take(100)
        looks += 1
    assert [(text.data, text.seq) for text in got] == [(part, n) for n, part in enumerate(parts)]
    assert got[-1].at == length
    assert looks >= 5


def test_what_one_call_prints_in_a_row_is_one_text_and_items_stay_apart(streams: Streams) -> None:
    length = write(
        streams,
        "a",
        out(b"a"),
        out(b"b"),
        encode_call(ERR, "m.1", 0, 0, b"c"),
        out(b"d", 1),
        out(b"another's", 1, "m.2"),
        encode_call(ITEM, "m.1", 1, 0, b"e"),
        encode_call(ITEM, "m.1", 1, 1, b"f"),
    )
    got = all_of(MapTexts(streams, "m.1", {"a": 0}))
    assert plain(got) == [(0, OUT, b"ab"), (0, ERR, b"c"), (1, OUT, b"d"), (1, ITEM, b"e"), (1, ITEM, b"f")]
    again = all_of(MapTexts(streams, "m.1", {"a": got[0].at}))
    assert plain(again)[0] == (0, ERR, b"c")  # `at` is the end of the last record in it
    assert got[-1].at == length


def test_a_slow_client_has_little_in_memory_and_loses_nothing(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maptexts, "_FRESH_BYTES", 2000)
    texts = MapTexts(streams, "m.1")
    for n in range(200):
        write(streams, "ab"[n % 2], out(b"%03d" % n * 10, n), texts=texts)
        assert texts._fresh_bytes <= 2000
    got = all_of(texts, 300)
    assert sorted(plain(got)) == [(n, OUT, b"%03d" % n * 10) for n in range(200)]
    for attempt in "ab":
        mine = [text.index for text in got if text.attempt == attempt]
        assert mine == sorted(mine)


@pytest.mark.parametrize("told", [False, True])
def test_a_goal_is_reached_when_what_was_there_then_is_taken(streams: Streams, told: bool) -> None:
    texts = MapTexts(streams, "m.1", {} if told else {"a": 0})
    size = write(streams, "a", out(b"x" * 50), texts=texts)
    texts.set_goal()
    write(streams, "a", out(b"y" * 50), texts=texts)
    assert not texts.reached
    texts.take(50 if told else size)
    assert texts.reached
    assert texts.unread


def test_a_goal_stays_when_what_waits_is_left_to_the_stream(streams: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maptexts, "_FRESH_BYTES", 500)
    texts = MapTexts(streams, "m.1")
    write(streams, "a", out(b"x" * 50), texts=texts)
    texts.set_goal()
    write(streams, "a", out(b"y" * 500, 1), texts=texts)
    assert not texts.reached
    assert [text.index for text in all_of(texts)] == [0, 1]
    assert texts.reached


@pytest.mark.parametrize("told", [False, True])
def test_a_damaged_stream_holds_nobody_up(streams: Streams, told: bool) -> None:
    texts = MapTexts(streams, "m.1", {} if told else {"a": 0})
    damaged = bytearray(out(b"x"))
    damaged[HEADER_BYTES + 2] ^= 0xFF
    write(streams, "a", bytes(damaged), texts=texts)
    texts.set_goal()
    assert all_of(texts) == []
    assert texts.reached

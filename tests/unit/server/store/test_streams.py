"""Streams: what is there is what is acknowledged."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulayer.protocol.records import Kind, Splitter, decode_json, encode_text
from gpulayer_server.store import streams as module
from gpulayer_server.store.streams import StreamGap, Streams


@pytest.fixture
def streams(tmp_path: Path) -> Iterator[Streams]:
    streams = Streams(tmp_path / "streams")
    yield streams
    streams.close()


def record(text: str) -> bytes:
    return encode_text(1, text.encode())


ONE, TWO, THREE = record("one"), record("two"), record("three")
ALL = ONE + TWO + THREE


def whole(streams: Streams, attempt: str = "a") -> bytes:
    return streams.read(attempt, 0, 1 << 30)


# ---------------------------------------------------------------- growing


def test_bytes_are_added_and_read(streams: Streams) -> None:
    assert streams.append("a", 0, ONE) == len(ONE)
    assert streams.append("a", len(ONE), TWO) == len(ONE + TWO)
    assert whole(streams) == ONE + TWO
    assert streams.length("a") == streams.visible("a") == len(ONE + TWO)


def test_what_was_sent_again_is_passed_over(streams: Streams) -> None:
    streams.append("a", 0, ONE + TWO)
    assert streams.append("a", 0, ONE) == len(ONE + TWO)
    assert streams.append("a", len(ONE), TWO + THREE) == len(ALL)
    assert whole(streams) == ALL


def test_a_hole_is_refused_and_nothing_is_added(streams: Streams) -> None:
    streams.append("a", 0, ONE)
    with pytest.raises(StreamGap, match=f"bytes {len(ONE)} to {len(ONE) + 1} are missing"):
        streams.append("a", len(ONE) + 1, TWO)
    assert whole(streams) == ONE


def test_streams_are_apart(streams: Streams) -> None:
    streams.append("a", 0, ONE)
    streams.append("b", 0, TWO)
    assert (whole(streams, "a"), whole(streams, "b")) == (ONE, TWO)


def test_a_stream_that_nobody_wrote_is_empty(streams: Streams) -> None:
    assert (streams.length("x"), streams.visible("x"), streams.offset_of("x", 3)) == (0, 0, 0)
    assert list(streams.folder.rglob("*.stream")) == []  # and looking made none


def test_a_prepared_stream_is_empty_and_grows(streams: Streams) -> None:
    streams.prepare("a")
    assert (streams.length("a"), streams.visible("a")) == (0, 0)
    streams.append("a", 0, ONE)
    assert whole(streams) == ONE


def test_on_a_full_disk_nothing_is_added_and_later_it_goes_on(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams.append("a", 0, ONE)
    pwrite = os.pwrite
    room = [4]

    def full(fd: int, data: memoryview, offset: int) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = pwrite(fd, data[: room[0]], offset)
        room[0] -= written
        return written

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space"):
        streams.append("a", len(ONE), TWO)
    monkeypatch.undo()
    assert streams.length("a") == len(ONE)
    assert next(streams.folder.rglob("a.stream")).stat().st_size == len(ONE)
    streams.append("a", len(ONE), TWO)
    assert whole(streams) == ONE + TWO


# ---------------------------------------------------------------- reading


def test_a_record_that_is_not_whole_is_acknowledged_and_not_shown(streams: Streams) -> None:
    streams.append("a", 0, ONE + TWO[:5])
    assert streams.length("a") == len(ONE) + 5
    assert streams.visible("a") == len(ONE)
    assert whole(streams) == ONE
    streams.append("a", len(ONE) + 5, TWO[5:])
    assert streams.visible("a") == len(ONE + TWO)


@given(cuts=st.lists(st.integers(0, len(ALL)), max_size=6))
def test_however_it_is_cut_the_stream_is_the_same(tmp_path_factory: pytest.TempPathFactory, cuts: list[int]) -> None:
    streams = Streams(tmp_path_factory.mktemp("streams"))
    try:
        edges = sorted({0, len(ALL), *cuts})
        for start, end in itertools.pairwise(edges):
            streams.append("a", start, ALL[start:end])
            assert ALL.startswith(whole(streams))
        assert whole(streams) == ALL
    finally:
        streams.close()


def test_a_read_is_limited(streams: Streams) -> None:
    streams.append("a", 0, ALL)
    assert streams.read("a", 3, 4) == ALL[3:7]
    assert streams.read("a", len(ALL), 4) == b""


def test_records_are_found_by_number(streams: Streams) -> None:
    streams.append("a", 0, ALL)
    assert [streams.offset_of("a", n) for n in range(5)] == [
        0,
        len(ONE),
        len(ONE + TWO),
        len(ALL),
        len(ALL),
    ]


def test_the_next_process_finds_the_same(streams: Streams) -> None:
    streams.append("a", 0, ONE + TWO[:5])
    again = Streams(streams.folder)
    assert (again.length("a"), again.visible("a")) == (len(ONE) + 5, len(ONE))
    again.append("a", len(ONE) + 5, TWO[5:])
    assert whole(again) == ONE + TWO
    again.close()


def test_many_streams_need_few_files(streams: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_OPEN_FILES", 4)
    for n in range(20):
        streams.append(f"a{n}", 0, ONE)
    for n in range(20):
        assert streams.append(f"a{n}", len(ONE), TWO) == len(ONE + TWO)
    assert len(streams._open) <= 4
    assert whole(streams, "a0") == ONE + TWO


# ---------------------------------------------------------------- given up


def marks(data: bytes) -> list[dict[str, object]]:
    return [decode_json(body) for _, kind, body in Splitter().feed(data) if kind == Kind.MARK]


def test_a_given_up_stream_ends_with_a_mark_after_its_last_whole_record(streams: Streams) -> None:
    streams.append("a", 0, ONE + TWO[:5])
    streams.truncate_with_mark("a", "the machine is lost")
    assert whole(streams).startswith(ONE)
    assert marks(whole(streams)) == [{"mark": "truncated", "why": "the machine is lost"}]
    assert streams.length("a") == streams.visible("a") == len(whole(streams))


def test_a_mark_is_made_once_also_by_the_next_process(streams: Streams) -> None:
    streams.append("a", 0, ONE)
    streams.truncate_with_mark("a", "lost")
    marked = whole(streams)
    streams.truncate_with_mark("a", "lost")
    again = Streams(streams.folder)
    again.truncate_with_mark("a", "lost, said again")
    assert whole(again) == marked
    again.close()


def test_a_stream_without_a_byte_gets_its_mark(streams: Streams) -> None:
    streams.truncate_with_mark("a", "never began")
    assert [mark["why"] for mark in marks(whole(streams))] == ["never began"]


def test_text_that_looks_like_a_mark_is_none(streams: Streams) -> None:
    streams.append("a", 0, encode_text(1, b'\x03{"mark": "truncated", "why": "printed"}'))
    streams.truncate_with_mark("a", "lost")
    assert [mark["why"] for mark in marks(whole(streams))] == ["lost"]


# ---------------------------------------------------------------- where they lie, and until when


def test_many_streams_are_spread_over_folders(streams: Streams) -> None:
    names = [f"a-{number}" for number in range(2000)]
    for name in names:
        streams.append(name, 0, ONE)
    sizes = [len(list(folder.iterdir())) for folder in streams.folder.iterdir()]
    assert sum(sizes) == 2000
    assert len(sizes) > 200
    assert max(sizes) < 30
    assert {name for name, _ in module.stream_files(streams.folder)} == set(names)


def test_a_stream_from_before_the_folders_is_read_and_goes_on_where_it_lies(tmp_path: Path) -> None:
    old = tmp_path / "streams" / "a" / "a-1.stream"
    old.parent.mkdir(parents=True)
    old.write_bytes(ONE)
    streams = Streams(tmp_path / "streams")
    try:
        assert streams.length("a-1") == len(ONE)
        streams.append("a-1", len(ONE), TWO)
        streams.append("a-2", 0, THREE)
        assert old.read_bytes() == whole(streams, "a-1") == ONE + TWO
        assert streams.path("a-2").parent.name != "a"
        streams.drop("a-1")
        assert not old.exists()
    finally:
        streams.close()


def test_a_dropped_stream_is_gone_and_its_name_begins_anew(streams: Streams) -> None:
    streams.append("a", 0, ONE)
    streams.append("b", 0, TWO)
    streams.drop("a")
    streams.drop("a")
    streams.drop("never")
    assert (streams.length("a"), streams.visible("a")) == (0, 0)
    assert [path.name for path in streams.folder.rglob("*.stream")] == ["b.stream"]
    assert streams.append("a", 0, THREE) == len(THREE)

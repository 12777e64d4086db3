"""Blobs on disk: whole or not at all, alone or in a shared file."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from gpulayer.source import BlobError
from gpulayer.source.blobs import (
    SHARED_AT_LEAST,
    SHARED_BELOW_BYTES,
    SHARED_FILE_BYTES,
    Blobs,
    Span,
    SpanReader,
)

Taken = tuple[str, int, Iterable[bytes]]


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def given(*contents: bytes) -> Iterator[Taken]:
    for content in contents:
        yield sha(content), len(content), [content[:10], content[10:]]


def many(count: int, size: int = 100) -> list[bytes]:
    return [b"%08d" % number + bytes(size - 8) for number in range(count)]


def files(blobs: Blobs) -> list[Path]:
    return [path for path in blobs.folder.rglob("*") if path.is_file()]


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    return Blobs(tmp_path / "blobs")


def test_what_is_put_is_there(blobs: Blobs) -> None:
    blobs.put(sha(b"abc"), [b"a", b"bc"])
    assert blobs.read(sha(b"abc")) == b"abc"
    assert sha(b"abc") in blobs
    assert blobs.find(sha(b"abc")) == Span(str(blobs.path(sha(b"abc"))), 0, 3)
    assert blobs.path(sha(b"abc")).read_bytes() == b"abc"


def test_wrong_bytes_are_refused_and_leave_nothing(blobs: Blobs) -> None:
    with pytest.raises(BlobError, match="the bytes that came have digest"):
        blobs.put(sha(b"abc"), [b"abd"])
    assert files(blobs) == []


@pytest.mark.parametrize("name", ["", "ab", "../" + "a" * 61, "A" * 64, "g" * 64, "a" * 63 + "/"])
def test_what_is_no_digest_names_no_file(blobs: Blobs, name: str) -> None:
    for use in (blobs.path, blobs.find, lambda name: blobs.missing([name]), lambda name: blobs.put(name, [b""])):
        with pytest.raises(BlobError, match="not a SHA-256 digest"):
            use(name)


def test_many_small_blobs_share_a_file_and_few_do_not(blobs: Blobs) -> None:
    few, more = many(SHARED_AT_LEAST - 1), many(SHARED_AT_LEAST + 50, 200)
    assert blobs.take(given(*few)) == len(few)
    assert len(files(blobs)) == len(few)
    assert blobs.take(given(*more, b"")) == len(more) + 1
    assert len(files(blobs)) == len(few) + 1
    for content in (*few, *more, b""):
        assert blobs.read(sha(content)) == content


def test_large_blobs_have_a_file_of_their_own(blobs: Blobs) -> None:
    large = b"x" * SHARED_BELOW_BYTES
    blobs.take(given(*many(40), large))
    assert blobs.find(sha(large)) == Span(str(blobs.path(sha(large))), 0, len(large))
    assert len(files(blobs)) == 2


def test_a_shared_file_is_cut_where_it_gets_large(blobs: Blobs) -> None:
    contents = many(3 * SHARED_FILE_BYTES // 60_000, 60_000)
    blobs.take(given(*contents))
    assert 3 <= len(files(blobs)) <= 4
    assert blobs.missing(map(sha, contents)) == []


def test_where_the_giver_breaks_off_what_came_whole_is_kept(blobs: Blobs) -> None:
    contents = many(30)

    def breaking() -> Iterator[Taken]:
        yield from given(*contents[:20], b"y" * 100_000)
        raise ConnectionResetError("gone")

    with pytest.raises(ConnectionResetError):
        blobs.take(breaking())
    assert blobs.missing(map(sha, [*contents, b"y" * 100_000])) == [sha(content) for content in contents[20:]]
    with pytest.raises(ConnectionResetError):
        blobs.take(breaking_within(b"z" * 100_000))
    assert sha(b"z" * 100_000) not in blobs
    assert list((blobs.folder / "new").iterdir()) == []


def breaking_within(content: bytes) -> Iterator[Taken]:
    def chunks() -> Iterator[bytes]:
        yield content[:50_000]
        raise ConnectionResetError("gone")

    yield sha(content), len(content), chunks()


def test_another_process_sees_what_came(blobs: Blobs) -> None:
    other = Blobs(blobs.folder)
    contents = many(50)
    assert other.missing(map(sha, contents)) == [sha(content) for content in contents]
    blobs.take(given(*contents))
    assert other.missing(map(sha, contents)) == []
    assert other.find(sha(contents[3])) == blobs.find(sha(contents[3]))
    assert Blobs(blobs.folder).read(sha(contents[49])) == contents[49]


@pytest.mark.parametrize(
    "damage", [lambda raw: raw[:-1], lambda raw: b"", lambda raw: raw[:20], lambda raw: raw + b"x"]
)
def test_a_shared_file_that_a_power_cut_left_counts_as_missing(blobs: Blobs, damage) -> None:
    contents = many(50)
    blobs.take(given(*contents))
    [path] = files(blobs)
    path.write_bytes(damage(path.read_bytes()))
    again = Blobs(blobs.folder)
    assert len(again.missing(map(sha, contents))) == 50
    again.take(given(*contents))
    assert again.read(sha(contents[7])) == contents[7]


def test_a_blob_of_another_size_is_missing_and_is_written_anew(blobs: Blobs) -> None:
    blobs.put(sha(b"whole"), [b"whole"])
    blobs.path(sha(b"whole")).write_bytes(b"wh")
    assert blobs.missing([sha(b"whole")]) == []
    assert blobs.missing({sha(b"whole"): 5}) == [sha(b"whole")]
    blobs.take(given(b"whole"))
    assert blobs.missing({sha(b"whole"): 5}) == []


def test_what_lacks_is_named_once_and_in_order(blobs: Blobs) -> None:
    names = [sha(content) for content in (b"b", b"a", b"b", b"c")]
    blobs.put(sha(b"a"), [b"a"])
    assert blobs.missing(names) == [sha(b"b"), sha(b"c")]


def test_what_a_killed_process_was_writing_goes_after_a_day(blobs: Blobs) -> None:
    old, young = blobs.folder / "new" / "old", blobs.folder / "new" / "young"
    for path in (old, young):
        path.write_bytes(b"half")
    long_ago_s = time.time() - 90_000
    os.utime(old, (long_ago_s, long_ago_s))
    Blobs(blobs.folder)
    assert [path.name for path in (blobs.folder / "new").iterdir()] == ["young"]


def test_files_are_the_owners_alone(blobs: Blobs) -> None:
    blobs.take(given(*many(50), b"q" * 70_000))
    assert {path.stat().st_mode & 0o077 for path in files(blobs)} == {0}
    assert {path.stat().st_mode & 0o077 for path in blobs.folder.rglob("*") if path.is_dir()} == {0}


def test_a_reader_holds_one_file(blobs: Blobs) -> None:
    contents = [*many(50), b"q" * 600_000]
    blobs.take(given(*contents))
    before = os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else []
    with SpanReader() as reader:
        for content in contents:
            span = blobs.find(sha(content))
            assert span is not None
            assert b"".join(reader.chunks(span, 1000)) == content
            now = os.listdir("/proc/self/fd") if before else []
            assert len(now) <= len(before) + 1
    assert len(os.listdir("/proc/self/fd") if before else []) == len(before)


def test_a_span_that_was_cut_short_gives_what_is_left(tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(b"12345")
    with SpanReader() as reader:
        assert b"".join(reader.chunks(Span(str(tmp_path / "short"), 2, 100))) == b"345"

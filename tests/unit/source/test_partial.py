"""Blobs that come in pieces."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpulayer.source import BlobError
from gpulayer.source.blobs import PARTIAL_KEPT_S, Blobs
from gpulayer.source.partial import ChunkDamaged, OffsetMoved, Partials


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def add(partials: Partials, data: bytes, first: int, last: int) -> int:
    chunk = data[first:last]
    return partials.add(sha(data), len(data), first, [chunk[:7], chunk[7:]], sha(chunk))


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    return Blobs(tmp_path / "blobs")


DATA = bytes(range(256)) * 40


@settings(max_examples=30, deadline=None)
@given(cuts=st.lists(st.integers(1, len(DATA) - 1), max_size=6, unique=True), restarts=st.sets(st.integers(0, 6)))
def test_however_it_is_cut_and_interrupted_it_arrives(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int], restarts: set[int]
) -> None:
    blobs = Blobs(tmp_path_factory.mktemp("blobs"))
    partials = Partials(blobs)
    ends = [*sorted(cuts), len(DATA)]
    begins = [0, *ends[:-1]]
    for number, (first, last) in enumerate(zip(begins, ends, strict=True)):
        if number in restarts:
            partials = Partials(Blobs(blobs.folder))
        assert partials.offset(sha(DATA), len(DATA)) == first
        assert add(partials, DATA, first, last) == last
    assert blobs.read(sha(DATA)) == DATA
    assert list((blobs.folder / "partial").iterdir()) == []


def test_what_a_power_cut_left_at_the_end_is_found_by_the_digest(blobs: Blobs) -> None:
    partials = Partials(blobs)
    add(partials, DATA, 0, 100)
    path = blobs.folder / "partial" / f"{sha(DATA)}.{len(DATA)}"
    with path.open("ab") as file:
        file.write(b"torn")
    again = Partials(Blobs(blobs.folder))
    with pytest.raises(OffsetMoved) as moved:
        add(again, DATA, 100, 200)
    assert moved.value.offset == 104
    with pytest.raises(BlobError, match=r"have digest"):
        add(again, DATA, 104, len(DATA))
    assert again.offset(sha(DATA), len(DATA)) == 0
    assert add(again, DATA, 0, len(DATA)) == len(DATA)


def test_wrong_pieces_are_refused(blobs: Blobs) -> None:
    partials = Partials(blobs)
    with pytest.raises(ChunkDamaged):
        partials.add(sha(DATA), len(DATA), 0, [b"x"], sha(b"y"))
    with pytest.raises(BlobError, match="are more than the 3"):
        partials.add(sha(b"abc"), 3, 0, [b"abcd"], sha(b"abcd"))
    for digest, size in (("../../up", 3), (sha(DATA), -1)):
        with pytest.raises(BlobError):
            partials.add(digest, size, 0, [b"abc"], sha(b"abc"))


def test_a_blob_that_is_there_takes_nothing_more(blobs: Blobs) -> None:
    blobs.put(sha(DATA), [DATA])
    partials = Partials(blobs)
    assert partials.offset(sha(DATA), len(DATA)) == len(DATA)
    assert add(partials, DATA, 5, 9) == len(DATA)


def test_one_that_was_cut_short_on_disk_comes_again(blobs: Blobs) -> None:
    blobs.put(sha(DATA), [DATA])
    os.truncate(blobs.path(sha(DATA)), 10)
    partials = Partials(blobs)
    assert partials.offset(sha(DATA), len(DATA)) == 0
    add(partials, DATA, 0, len(DATA))
    assert blobs.read(sha(DATA)) == DATA


def test_what_nobody_went_on_with_is_removed(blobs: Blobs) -> None:
    partials = Partials(blobs)
    other = DATA + b"!"
    add(partials, DATA, 0, 100)
    add(partials, other, 0, 100)
    old = time.time() - PARTIAL_KEPT_S - 60
    os.utime(blobs.folder / "partial" / f"{sha(DATA)}.{len(DATA)}", (old, old))
    assert partials.clear() == 1
    assert partials.offset(sha(DATA), len(DATA)) == 0
    assert partials.offset(sha(other), len(other)) == 100
    assert add(partials, DATA, 0, len(DATA)) == len(DATA)

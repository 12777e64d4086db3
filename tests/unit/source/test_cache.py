"""A folder of blobs as a cache."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from pathlib import Path

import pytest

from gpulayer.source.blobs import BlobReader, Blobs
from gpulayer.source.cache import Cache, default_limit


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    return Blobs(tmp_path / "blobs")


def put(blobs: Blobs, letter: str, age_s: float, size: int = 1000) -> str:
    """A blob of its own that was used some seconds ago; its digest."""
    data = letter.encode() * size
    blobs.put(sha(data), [data])
    aged(blobs, sha(data), age_s)
    return sha(data)


def aged(blobs: Blobs, digest: str, age_s: float) -> None:
    span = blobs.find(digest)
    assert span is not None
    then = time.time() - age_s
    os.utime(span.path, (then, then))


def shared(blobs: Blobs, count: int, age_s: float) -> list[str]:
    """Blobs that lie together."""
    contents = [f"small {number}".encode() * 100 for number in range(count)]
    blobs.take((sha(data), len(data), [data]) for data in contents)
    aged(blobs, sha(contents[0]), age_s)
    return [sha(data) for data in contents]


def test_below_the_limit_nothing_goes(blobs: Blobs) -> None:
    names = [put(blobs, letter, 1000) for letter in "abc"]
    assert Cache(blobs, 3000).trim() == 0
    assert blobs.missing(names) == []


def test_what_was_used_longest_ago_goes_first(blobs: Blobs) -> None:
    a, b, c, d = (put(blobs, letter, age) for letter, age in (("a", 10), ("b", 4000), ("c", 2000), ("d", 3000)))
    assert Cache(blobs, 3000).trim() == 2000  # down to nine tenths
    assert blobs.missing([a, b, c, d]) == [b, d]


def test_what_is_used_goes_last(blobs: Blobs) -> None:
    a, b = put(blobs, "a", 4000), put(blobs, "b", 2000)
    blobs.used([a])
    Cache(blobs, 1500).trim()
    assert blobs.missing([a, b]) == [b]


def test_what_is_pinned_stays_and_goes_afterwards(blobs: Blobs) -> None:
    a, b = put(blobs, "a", 4000), put(blobs, "b", 2000)
    cache = Cache(blobs, 0)
    with cache.pinned((a,)), cache.pinned((sha(b"x" * 10),)):
        x = put(blobs, "x", 9000, size=10)  # it came meanwhile
        cache.trim()
        assert blobs.missing([a, b, x]) == [b]
    cache.trim()
    assert blobs.missing([a, x]) == [a, x]


def test_a_pin_for_a_while_ends_by_itself(blobs: Blobs) -> None:
    a, b = put(blobs, "a", 4000), put(blobs, "b", 4000)
    cache = Cache(blobs, 0)
    cache.pin_for(a, 3600)
    cache.pin_for(b, 0)
    cache.trim()
    assert blobs.missing([a, b]) == [b]


def test_blobs_that_share_a_file_go_together_and_one_in_use_keeps_it(blobs: Blobs) -> None:
    names = shared(blobs, 30, 4000)
    other = BlobReader(blobs.folder)
    assert other.missing(names) == []
    cache = Cache(blobs, 10)
    with cache.pinned((names[7],)):
        assert cache.trim() == 0
    assert cache.trim() > 0
    assert blobs.missing(names) == names
    assert blobs.find(names[0]) is None
    assert other.missing(names) == names  # a reader of another process finds out too
    assert shared(blobs, 30, 0) == names
    assert blobs.missing(names) == other.missing(names) == []


def test_one_that_is_claimed_at_that_moment_stays(blobs: Blobs) -> None:
    a = put(blobs, "a", 4000)
    [file] = blobs.files()
    assert blobs.claim({a: 1000, sha(b"other"): 5}) == [sha(b"other")]
    assert not blobs.remove(file)
    assert a in blobs


def test_it_is_trimmed_beside_whoever_asks(blobs: Blobs) -> None:
    names = [put(blobs, chr(65 + number), 4000) for number in range(40)]
    Cache(blobs, 1000).trim_soon()
    for thread in [each for each in threading.enumerate() if each.name == "blob-cache"]:
        thread.join()
    assert len(blobs.missing(names)) >= 39


def test_of_little_that_came_nobody_looks_through_all_files(blobs: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    cache = Cache(blobs, 1000)
    monkeypatch.setattr(cache, "trim", lambda: looked.append(1))
    for added_bytes in (1, 1, 18, 1, 1):  # first of all nobody knows what is there; then a fiftieth of the limit
        cache.trim_soon(added_bytes)
        for thread in [each for each in threading.enumerate() if each.name == "blob-cache"]:
            thread.join()
    assert looked == [1, 1]


def test_the_limit_is_a_tenth_of_a_small_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage:
        total = 50_000_000_000

    monkeypatch.setattr("shutil.disk_usage", lambda folder: Usage)
    assert default_limit(tmp_path) == 5_000_000_000
    Usage.total = 10**13
    assert default_limit(tmp_path) == 20_000_000_000

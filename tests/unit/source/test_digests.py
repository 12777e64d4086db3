"""Remembered digests: never a wrong one."""

from __future__ import annotations

import hashlib
import itertools
import os
import stat
import time
from pathlib import Path

import pytest

from gpulayer.source import DigestCache, SourceChanged, SourceError, digests
from gpulayer.source.digests import COARSE_MARGIN_NS, FINE_MARGIN_NS, hash_file, is_racy

SECOND = 1_000_000_000


class Clock:
    """A clock that stands where it is put."""

    def __init__(self) -> None:
        self.now_ns = time.time_ns() + 3600 * SECOND

    def __call__(self) -> int:
        return self.now_ns


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def known(cache: DigestCache, path: Path) -> bool:
    return cache.lookup(str(path), path.stat()) is not None


def test_a_digest_is_remembered_until_the_file_changes(tmp_path: Path) -> None:
    cache = DigestCache(clock_ns=Clock())
    path = write(tmp_path / "a", b"one")
    assert cache.digest(path) == sha(b"one")
    assert known(cache, path)
    write(path, b"longer")
    assert not known(cache, path)
    assert cache.digest(path) == sha(b"longer")


def test_same_size_and_mtime_put_back_is_noticed_by_ctime(tmp_path: Path) -> None:
    cache = DigestCache(clock_ns=Clock())
    path = write(tmp_path / "a", b"one")
    os.utime(path, ns=(0, 1_500_000_000 * SECOND))
    before = path.stat()
    cache.digest(path)
    while path.stat().st_ctime_ns == before.st_ctime_ns:  # the file system's clock moves every few ms
        write(path, b"two")
        os.utime(path, ns=(0, 1_500_000_000 * SECOND))
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    assert cache.digest(path) == sha(b"two")


def test_same_stamps_of_another_file_are_noticed_by_inode(tmp_path: Path) -> None:
    cache = DigestCache(clock_ns=Clock())
    path = write(tmp_path / "a", b"one")
    cache.digest(path)
    other = write(tmp_path / "b", b"two")
    os.utime(other, ns=(0, path.stat().st_mtime_ns))
    other.replace(path)
    assert cache.digest(path) == sha(b"two")


def test_a_file_changed_just_before_it_was_read_is_not_trusted(tmp_path: Path) -> None:
    path = write(tmp_path / "a", b"one")
    os.utime(path, ns=(0, path.stat().st_ctime_ns | 1))
    clock = Clock()
    cache = DigestCache(clock_ns=clock)
    newest = max(path.stat().st_mtime_ns, path.stat().st_ctime_ns)

    clock.now_ns = newest + FINE_MARGIN_NS - 1
    assert cache.digest(path) == sha(b"one")
    assert not known(cache, path)

    clock.now_ns = newest + FINE_MARGIN_NS
    assert cache.digest(path) == sha(b"one")
    assert known(cache, path)


def test_a_racy_reading_also_drops_what_was_known_before(tmp_path: Path) -> None:
    clock = Clock()
    cache = DigestCache(clock_ns=clock)
    path = write(tmp_path / "a", b"one")
    cache.digest(path)
    assert len(cache) == 1
    write(path, b"two!")
    clock.now_ns = time.time_ns()
    cache.digest(path)
    assert len(cache) == 0


def test_a_file_from_the_future_is_read_each_time(tmp_path: Path) -> None:
    path = write(tmp_path / "a", b"one")
    os.utime(path, ns=(0, time.time_ns() + 7200 * SECOND))
    cache = DigestCache()
    cache.digest(path)
    assert not known(cache, path)


@pytest.mark.parametrize(
    ("mtime_ns", "ctime_ns", "read_after_ns", "racy"),
    [
        (5 * SECOND + 1, 5 * SECOND + 1, FINE_MARGIN_NS - 1, True),
        (5 * SECOND + 1, 5 * SECOND + 1, FINE_MARGIN_NS, False),
        (5 * SECOND, 5 * SECOND, FINE_MARGIN_NS, True),  # whole seconds: a coarse clock
        (5 * SECOND, 5 * SECOND, COARSE_MARGIN_NS - 1, True),
        (5 * SECOND, 5 * SECOND, COARSE_MARGIN_NS, False),
        (1 * SECOND, 5 * SECOND + 1, FINE_MARGIN_NS - 1, True),  # an old mtime put back: ctime says the truth
        (1 * SECOND, 5 * SECOND + 1, FINE_MARGIN_NS, False),
    ],
)
def test_margins(mtime_ns: int, ctime_ns: int, read_after_ns: int, racy: bool) -> None:
    class Status:
        st_mtime_ns = mtime_ns
        st_ctime_ns = ctime_ns

    assert is_racy(Status, max(mtime_ns, ctime_ns) + read_after_ns) is racy  # type: ignore[arg-type]


def test_a_file_that_changes_while_it_is_read_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "log", b"one")
    interfere(monkeypatch, path, times=2)
    assert hash_file(str(path)).sha256 == sha(b"one++")


def test_a_file_that_never_rests_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "log", b"one")
    interfere(monkeypatch, path, times=3)
    with pytest.raises(SourceChanged, match=r"log changes while it is read \(3 tries\).*--exclude"):
        hash_file(str(path))


def interfere(monkeypatch: pytest.MonkeyPatch, path: Path, *, times: int) -> None:
    """Append to the file after each of its first readings."""
    left = [times]
    original = os.read

    def read(descriptor: int, size: int) -> bytes:
        data = original(descriptor, size)
        if left[0]:
            left[0] -= 1
            with path.open("ab") as file:
                file.write(b"+")
        return data

    monkeypatch.setattr(os, "read", read)


def test_a_file_replaced_while_it_is_read_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a", b"one")
    original = os.read
    done = []

    def read(descriptor: int, size: int) -> bytes:
        if not done:
            done.append(write(tmp_path / "new", b"two").replace(path))
        return original(descriptor, size)

    monkeypatch.setattr(os, "read", read)
    assert hash_file(str(path)).sha256 == sha(b"two")


def test_content_is_kept_where_it_is_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path / "a", b"one")
    assert hash_file(str(path), keep=True).content == b"one"
    assert hash_file(str(path)).content is None


def test_no_symlink_fifo_or_missing_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(write(tmp_path / "a", b"one"))
    with pytest.raises(SourceError, match="link cannot be read"):
        hash_file(str(tmp_path / "link"))
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(SourceError, match="no regular file"):
        hash_file(str(tmp_path / "fifo"))
    with pytest.raises(FileNotFoundError):
        hash_file(str(tmp_path / "missing"))
    assert DigestCache().digest(tmp_path / "link") == sha(b"one")


def test_memory_is_bounded(tmp_path: Path) -> None:
    cache = DigestCache(clock_ns=Clock(), max_entries=3)
    files = [write(tmp_path / str(number), b"x") for number in range(5)]
    for path in files:
        cache.digest(path)
    assert [known(cache, path) for path in files] == [False, False, True, True, True]


# --- between processes -----------------------------------------------------------------------------------------------


def test_what_was_saved_is_known_to_the_next(tmp_path: Path) -> None:
    store = tmp_path / "cache" / "digests"
    path = write(tmp_path / os.fsdecode(b"n\xffme"), b"one")
    first = DigestCache(store, clock_ns=Clock())
    first.remember(str(path), first.hash(str(path)), clean=True)
    first.save()
    found = DigestCache(store).lookup(str(path), path.stat())
    assert found is not None
    assert (found.sha256, found.clean) == (sha(b"one"), True)
    assert stat.S_IMODE(store.stat().st_mode) == 0o600
    assert os.listdir(store.parent) == ["digests"]


def test_two_processes_do_not_lose_each_others_digests(tmp_path: Path) -> None:
    store = tmp_path / "digests"
    paths = [write(tmp_path / name, name.encode()) for name in ("a", "b")]
    caches = [DigestCache(store, clock_ns=Clock()) for _ in paths]
    for cache, path in zip(caches, paths, strict=True):
        cache.digest(path)
        cache.save()
    assert all(known(DigestCache(store), path) for path in paths)


def test_nothing_new_writes_nothing(tmp_path: Path) -> None:
    store = tmp_path / "digests"
    cache = DigestCache(store, clock_ns=Clock())
    cache.save()
    assert not store.exists()
    cache.digest(write(tmp_path / "a", b"x"))
    cache.save()
    first = store.stat().st_ino
    cache.save()
    assert store.stat().st_ino == first
    DigestCache().save()


@pytest.mark.parametrize(
    "damage", [lambda raw: raw[:-1], lambda raw: raw[:50] + b"\0" + raw[51:], lambda _: b"", bytes.upper]
)
def test_a_damaged_file_counts_as_empty(tmp_path: Path, damage) -> None:
    store = tmp_path / "digests"
    path = write(tmp_path / "abc", b"one")
    cache = DigestCache(store, clock_ns=Clock())
    cache.digest(path)
    cache.save()
    store.write_bytes(damage(store.read_bytes()))
    again = DigestCache(store, clock_ns=Clock())
    assert len(again) == 0
    assert again.digest(path) == sha(b"one")
    again.save()
    assert known(DigestCache(store), path)


def test_a_failed_save_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = tmp_path / "cache" / "digests"
    cache = DigestCache(store, clock_ns=Clock())
    cache.digest(write(tmp_path / "a", b"x"))
    cache.save()
    before = store.read_bytes()
    new = write(tmp_path / "b", b"y")
    cache.digest(new)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space left"):
            cache.save()
        patch.setattr(os, "replace", full)
        fresh = DigestCache(tmp_path / "cache" / "other", clock_ns=Clock())
        fresh.digest(new)
        with pytest.raises(OSError, match="No space left"):
            fresh.save()
    assert store.read_bytes() == before
    assert os.listdir(store.parent) == ["digests"]
    cache.save()
    assert known(DigestCache(store), new)


def test_a_changed_file_is_added_at_the_end_until_half_is_out_of_date(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "_SLACK_ROWS", 4)
    store = tmp_path / "digests"
    cache = DigestCache(store, clock_ns=Clock())
    path = write(tmp_path / "a", b"0")
    sizes: list[int] = []
    for number in range(12):
        write(path, b"%d" % number * (number + 1))
        cache.digest(path)
        cache.save()
        sizes.append(store.stat().st_size)
        assert known(DigestCache(store), path)
    grown = [after > before for before, after in itertools.pairwise(sizes)]
    assert grown == [True] * 5 + [False] + [True] * 5


def test_a_batch_that_was_torn_loses_only_itself(tmp_path: Path) -> None:
    store = tmp_path / "digests"
    cache = DigestCache(store, clock_ns=Clock())
    first, second = write(tmp_path / "a", b"one"), write(tmp_path / "b", b"two")
    for path in (first, second):
        cache.digest(path)
        cache.save()
    store.write_bytes(store.read_bytes()[:-1])
    again = DigestCache(store, clock_ns=Clock())
    assert [known(again, path) for path in (first, second)] == [True, False]
    again.digest(second)
    again.save()
    assert all(known(DigestCache(store), path) for path in (first, second))

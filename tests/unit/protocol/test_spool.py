"""The spool: what a writer appends is read, also after a torn write, a full disk, a signal or a restart."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpulayer.protocol import records, spool
from gpulayer.protocol.records import Kind, RecordError, Splitter
from gpulayer.protocol.spool import SpoolReader, SpoolWriter


def body_of(number: int, size: int = 10) -> bytes:
    return b"%d:" % number + b"x" * size


def append(writer: SpoolWriter, number: int, size: int = 10) -> None:
    writer.append((bytes((Kind.TEXT,)), b"\x01", body_of(number, size)))


def read_all(reader: SpoolReader, limit: int = 1 << 20) -> list[bytes]:
    """The bodies of all records from the first that is left on, in pieces of at most `limit` bytes."""
    splitter = Splitter()
    offset, bodies = reader.start(), []
    while data := reader.read(offset, limit):
        offset += len(data)
        bodies += [bytes(body)[1:] for _, _, body in splitter.feed(data)]
    assert offset == reader.end()
    return bodies


def segments(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(min_value=0, max_value=120), max_size=20),
    st.integers(min_value=1, max_value=300),
    st.integers(min_value=1, max_value=500),
    st.integers(min_value=1, max_value=400),
    st.integers(min_value=0, max_value=19),
)
def test_what_is_written_is_read_also_after_a_torn_write(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], segment_bytes: int, limit: int, torn: int, crash: int
) -> None:
    folder = tmp_path_factory.mktemp("spool")
    writer = SpoolWriter(folder, segment_bytes=segment_bytes)
    offset = 0
    for number, size in enumerate(sizes):
        if number == crash:  # the writer dies in the middle of a record, and another one goes on
            writer.close()
            with (folder / segments(folder)[-1]).open("ab") as file:
                file.write(records.encode(Kind.TEXT, b"\x01" + b"t" * 500)[:torn])
            writer = SpoolWriter(folder, segment_bytes=segment_bytes)
            assert writer.offset == offset
        append(writer, number, size)
        offset = writer.offset
    reader = SpoolReader(folder)
    assert reader.end() == offset
    assert read_all(reader, limit) == [body_of(number, size) for number, size in enumerate(sizes)]
    reader.close()
    writer.close()


def test_segments_are_named_by_their_offset_and_hold_whole_records(tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path / "a" / "b", segment_bytes=100)
    for number in range(12):
        append(writer, number)
    folder = tmp_path / "a" / "b"
    ends = [0]
    for name in segments(folder):
        assert name == f"{ends[-1]:016d}.log"
        boundary, count = records.scan_file(folder / name)
        assert count
        assert boundary == (folder / name).stat().st_size
        ends.append(ends[-1] + boundary)
    assert len(ends) > 3
    assert ends[-1] == writer.offset
    writer.close()


def test_a_reader_follows_a_writer_of_another_process(tmp_path: Path) -> None:
    code = """
import sys
from gpulayer.protocol.spool import SpoolWriter
writer = SpoolWriter(sys.argv[1], segment_bytes=5000)
for number in range(4000):
    writer.append((b"\\x04\\x01", b"%d:" % number, b"x" * 10))
"""
    reader = SpoolReader(tmp_path / "spool")
    assert (reader.start(), reader.end(), reader.read(0, 100)) == (0, 0, b"")
    splitter, offset, bodies = Splitter(), 0, []
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "spool")]) as process:
        running = True
        while running or reader.end() > offset:
            running = process.poll() is None
            data = reader.read(offset, 3000)
            offset += len(data)
            bodies += [bytes(body)[1:] for _, _, body in splitter.feed(data)]
            reader.release(offset)
    assert process.returncode == 0
    assert bodies == [body_of(number) for number in range(4000)]
    assert len(segments(tmp_path / "spool")) == 1
    reader.close()


def test_release_removes_what_lies_wholly_below_and_never_the_newest(tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path, segment_bytes=50)
    for number in range(9):
        append(writer, number)
    starts = [int(name[:16]) for name in segments(tmp_path)]
    reader = SpoolReader(tmp_path)
    reader.release(starts[1] - 1)
    assert len(segments(tmp_path)) == len(starts)
    reader.read(0, 10)
    reader.release(starts[2] + 1)
    assert segments(tmp_path)[0] == f"{starts[2]:016d}.log"
    assert reader.start() == starts[2]
    with pytest.raises(RecordError, match=f"starts at byte {starts[2]}; byte 0 was released"):
        reader.read(0, 10)
    reader.release(writer.offset)
    assert segments(tmp_path) == [f"{starts[-1]:016d}.log"]
    writer.close()
    reader.close()
    again = SpoolWriter(tmp_path, segment_bytes=50)  # goes on behind what was released
    assert again.offset == writer.offset
    again.close()
    other = SpoolReader(tmp_path)
    assert (other.start(), other.end()) == (starts[-1], writer.offset)
    other.close()


def test_a_reader_does_not_offer_a_torn_record(tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path)
    append(writer, 1)
    whole = writer.offset
    with (tmp_path / segments(tmp_path)[0]).open("ab") as file:
        file.write(records.encode(Kind.TEXT, b"\x01torn")[:-1])
    reader = SpoolReader(tmp_path)
    assert reader.end() == whole
    assert len(reader.read(0, 1 << 20)) == whole
    reader.close()
    writer.close()


def test_a_record_that_is_too_large_is_refused_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = SpoolWriter(tmp_path)
    with pytest.raises(RecordError, match="0 bytes"):
        writer.append(())
    monkeypatch.setattr(records, "MAX_PAYLOAD_BYTES", 20)
    with pytest.raises(RecordError, match="21 bytes; 1 to 20"):
        writer.append((b"x" * 21,))
    assert writer.offset == 0
    writer.close()


class Disk:
    """Stands in for os where the spool asks for space, writes and waits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.free_bytes = 1 << 40
        self.folder = folder
        self.waits: list[dict[str, Any] | None] = []  # what the folder said at each wait
        self.on_wait = lambda: None
        self.room: int | None = None  # bytes that can still be written
        self._write = os.write
        monkeypatch.setattr(spool.os, "statvfs", self._statvfs)
        monkeypatch.setattr(spool.os, "write", self._write_some)
        monkeypatch.setattr(spool.time, "sleep", self._sleep)

    def _statvfs(self, path: Any) -> Any:
        return SimpleNamespace(f_bavail=self.free_bytes, f_frsize=1)

    def _sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.waits.append(SpoolReader(self.folder).blocked())
        self.on_wait()

    def _write_some(self, fd: int, data: Any) -> int:
        if self.room is None:
            return self._write(fd, data)
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        done = self._write(fd, data[: self.room])
        self.room -= done
        return done


def test_below_the_reserve_the_writer_waits_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch, tmp_path)
    writer = SpoolWriter(tmp_path, reserve_bytes=1000)
    append(writer, 0, size=1 << 20)
    disk.free_bytes = 999

    def free_some() -> None:
        if len(disk.waits) == 3:
            disk.free_bytes = 1000

    disk.on_wait = free_some
    append(writer, 1)
    assert disk.waits == [{"free_bytes": 999, "reserve_bytes": 1000}] * 3
    assert SpoolReader(tmp_path).blocked() is None
    assert read_all(SpoolReader(tmp_path))[1] == body_of(1)
    writer.close()


def test_a_new_segment_waits_for_the_reserve_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch, tmp_path)
    writer = SpoolWriter(tmp_path, segment_bytes=1, reserve_bytes=1000)
    append(writer, 0)
    disk.free_bytes = 0
    disk.on_wait = lambda: setattr(disk, "free_bytes", 1000)
    append(writer, 1)
    assert len(disk.waits) == 1
    assert len(segments(tmp_path)) == 2
    writer.close()


def test_a_full_disk_tears_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch, tmp_path)
    writer = SpoolWriter(tmp_path)
    append(writer, 0)
    whole = writer.offset
    disk.room, disk.free_bytes = 5, 0
    sizes: list[int] = []

    def free_some() -> None:
        sizes.append((tmp_path / f"{0:016d}.log").stat().st_size)
        if len(sizes) == 2:
            disk.room = None

    disk.on_wait = free_some
    append(writer, 1)
    assert sizes == [whole, whole]  # the part that fitted was removed before the wait
    assert disk.waits == [{}, {}]  # no room even for the numbers
    assert read_all(SpoolReader(tmp_path)) == [body_of(0), body_of(1)]
    assert segments(tmp_path) == [f"{0:016d}.log"]
    writer.close()


def test_another_error_of_the_disk_is_raised_and_leaves_no_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = SpoolWriter(tmp_path)
    append(writer, 0)
    write = os.write

    def fail(fd: int, data: Any) -> int:
        monkeypatch.setattr(spool.os, "write", refuse)
        return write(fd, data[:4])

    def refuse(fd: int, data: Any) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(spool.os, "write", fail)
    with pytest.raises(OSError, match="Input/output error"):
        append(writer, 1)
    monkeypatch.setattr(spool.os, "write", write)
    append(writer, 2)
    assert read_all(SpoolReader(tmp_path)) == [body_of(0), body_of(2)]
    writer.close()


class Rang(Exception):
    """Raised by the signal handler of the tests below."""


@pytest.mark.parametrize("when", ["before", "between", "after"])
def test_an_exception_from_a_signal_handler_comes_after_the_whole_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    writer = SpoolWriter(tmp_path)
    write, rung = os.write, []

    def ring(fd: int, data: Any) -> int:
        if rung:
            return write(fd, data)
        rung.append(when)
        if when == "before":
            signal.raise_signal(signal.SIGUSR1)
        done = write(fd, data[:6] if when == "between" else data)
        if when != "before":
            signal.raise_signal(signal.SIGUSR1)
        return done

    def handler(signum: int, frame: Any) -> None:
        raise Rang

    monkeypatch.setattr(spool.os, "write", ring)
    previous = signal.signal(signal.SIGUSR1, handler)
    try:
        with pytest.raises(Rang):
            append(writer, 0)
    finally:
        signal.signal(signal.SIGUSR1, previous)
    append(writer, 1)
    assert read_all(SpoolReader(tmp_path)) == [body_of(0), body_of(1)]
    writer.close()


def test_a_writer_that_was_stopped_between_two_steps_goes_on_with_whole_records(tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path)
    append(writer, 0)
    record = records.encode(Kind.TEXT, b"\x01" + body_of(1))
    writer._target = writer._size + len(record)  # as an exception outside the write leaves it
    os.write(writer._fd, record[:-2])
    append(writer, 2)
    writer._target = writer._size + len(record)
    os.write(writer._fd, record)
    append(writer, 3)
    assert read_all(SpoolReader(tmp_path)) == [body_of(0), body_of(2), body_of(1), body_of(3)]
    writer.close()


def test_marks_are_written_as_json(tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path)
    writer.append_json(Kind.MARK, {"mark": "truncated", "why": "é"})
    [(_, kind, body)] = Splitter().feed(SpoolReader(tmp_path).read(0, 1000))
    assert (kind, records.decode_json(body)) == (Kind.MARK, {"mark": "truncated", "why": "é"})
    writer.close()
    writer.close()


def test_something_else_than_records_is_not_appended_to(tmp_path: Path) -> None:
    (tmp_path / f"{0:016d}.log").write_bytes(b"\xff" * 20)
    with pytest.raises(RecordError, match="no record starts at byte 0"):
        SpoolWriter(tmp_path)

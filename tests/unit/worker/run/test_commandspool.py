"""A command's stream: composed of its two files, the same for every agent."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from gpulayer.protocol.records import Kind, RecordError, Splitter
from gpulayer.protocol.types import FRAME_DATA_BYTES
from gpulayer_worker.run import commandspool
from gpulayer_worker.run.commandspool import INDEX, PIECE_BYTES, CommandSpool


def write(folder: Path, name: str, data: bytes) -> None:
    """What a program does."""
    with (folder / name).open("ab") as file:
        file.write(data)


def records(data: bytes) -> list[tuple[int, bytes]]:
    return [(kind, bytes(body)) for _, kind, body in Splitter().feed(data)]


def everything(spool: CommandSpool) -> bytes:
    return spool.read(spool.start(), spool.end - spool.start())


def test_what_a_program_writes_becomes_records_of_its_two_kinds(tmp_path: Path) -> None:
    spool = CommandSpool(tmp_path)
    assert not spool.look()
    write(tmp_path, "out", b"one\n")
    assert spool.look()
    write(tmp_path, "err", b"two")
    write(tmp_path, "out", b"three")
    assert spool.fresh_bytes() == 8
    assert spool.look()
    assert not spool.look()
    assert records(everything(spool)) == [(Kind.STDOUT, b"one\n"), (Kind.STDOUT, b"three"), (Kind.STDERR, b"two")]
    spool.close()


def test_a_program_that_writes_nothing_leaves_no_index(tmp_path: Path) -> None:
    spool = CommandSpool(tmp_path)
    assert not spool.look(last=True)
    assert (spool.end, everything(spool)) == (0, b"")
    assert list(tmp_path.iterdir()) == []


def test_the_next_agent_composes_the_same(tmp_path: Path) -> None:
    spool = CommandSpool(tmp_path)
    for number in range(20):
        write(tmp_path, "out", b"line %d\n" % number)
        if number % 3 == 0:
            write(tmp_path, "err", b"\xff" * number)
        spool.look()
    before = everything(spool)
    spool.close()
    write(tmp_path, "err", b"later")
    found = CommandSpool(tmp_path, found=True)
    assert everything(found) == before
    assert found.look()
    assert everything(found)[: len(before)] == before
    assert records(everything(found)[len(before) :]) == [(Kind.STDERR, b"later")]
    found.close()


def test_what_is_left_at_the_end_needs_no_index(tmp_path: Path) -> None:
    write(tmp_path, "out", b"x" * (2 * PIECE_BYTES + 5))
    write(tmp_path, "err", b"words")
    spools = [CommandSpool(tmp_path, found=found) for found in (False, True)]
    for spool in spools:
        assert spool.look(last=True)
    assert not (tmp_path / INDEX).exists()
    assert everything(spools[0]) == everything(spools[1])
    assert records(everything(spools[0]))[-1] == (Kind.STDERR, b"words")
    for spool in spools:
        spool.close()


def test_an_entry_that_a_killed_agent_had_begun_does_not_count(tmp_path: Path) -> None:
    spool = CommandSpool(tmp_path)
    for text in (b"first", b"second"):
        write(tmp_path, "out", text)
        spool.look()
    spool.close()
    os.truncate(tmp_path / INDEX, (tmp_path / INDEX).stat().st_size - 3)
    found = CommandSpool(tmp_path, found=True)
    assert records(everything(found)) == [(Kind.STDOUT, b"first")]
    found.look()
    assert records(everything(found)) == [(Kind.STDOUT, b"first"), (Kind.STDOUT, b"second")]
    found.close()


def test_on_a_full_disk_nothing_is_announced_and_it_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = CommandSpool(tmp_path)
    write(tmp_path, "out", b"first")
    spool.look()
    before = everything(spool)
    write(tmp_path, "out", b"second")
    real = os.write
    monkeypatch.setattr(commandspool.os, "write", lambda fd, data: real(fd, data[:7]))
    with pytest.raises(OSError, match="No space left") as caught:
        spool.look()
    assert caught.value.errno == errno.ENOSPC
    monkeypatch.undo()
    assert everything(spool) == before
    assert spool.look()
    assert records(everything(spool)) == [(Kind.STDOUT, b"first"), (Kind.STDOUT, b"second")]
    spool.close()


def test_large_output_is_cut_so_that_four_records_fill_a_frame(tmp_path: Path) -> None:
    data = os.urandom(10 * PIECE_BYTES + 11)
    write(tmp_path, "out", data)
    spool = CommandSpool(tmp_path)
    spool.look()
    frame = spool.read(0, FRAME_DATA_BYTES)
    assert [len(body) for _, body in records(frame)] == [PIECE_BYTES] * 4
    assert b"".join(body for _, body in records(everything(spool))) == data
    spool.close()


@pytest.mark.parametrize("step", [1, 7, 8, 9, 1000, 65_536, 100_000])
def test_it_reads_the_same_in_steps_of_any_size(tmp_path: Path, step: int) -> None:
    size = min(2 * PIECE_BYTES + 100, step * 300)
    write(tmp_path, "out", os.urandom(size))
    write(tmp_path, "err", b"some words")
    spool = CommandSpool(tmp_path)
    spool.look()
    pieces: list[bytes] = []
    while (offset := sum(map(len, pieces))) < spool.end:
        pieces.append(spool.read(offset, step))
    assert b"".join(pieces) == everything(spool)
    spool.close()


def test_what_was_released_is_not_there_and_the_rest_is(tmp_path: Path) -> None:
    spool = CommandSpool(tmp_path)
    for text in (b"first", b"second", b"third"):
        write(tmp_path, "out", text)
        spool.look()
    whole = everything(spool)
    spool.release(16)  # in the second record: that one is still needed
    assert spool.start() == 14
    assert everything(spool) == whole[14:]
    with pytest.raises(RecordError, match="byte 0 was released"):
        spool.read(0, 5)
    spool.release(spool.end)
    assert (spool.start(), everything(spool)) == (spool.end, b"")
    write(tmp_path, "out", b"fourth")
    spool.look()
    assert records(everything(spool)) == [(Kind.STDOUT, b"fourth")]
    spool.close()


def disk_bytes(path: Path) -> int:
    return path.stat().st_blocks * 512


def test_what_was_acknowledged_gives_its_space_back_and_the_last_words_stay(tmp_path: Path) -> None:
    spool = CommandSpool(tmp_path)
    for _ in range(64):
        write(tmp_path, "out", b"x" * (1 << 17))
        spool.look()
        spool.release(spool.end)
    size = (tmp_path / "out").stat().st_size
    assert size == 64 << 17
    assert disk_bytes(tmp_path / "out") < 2 << 20
    assert spool.tail() == "x" * 16 * 1024
    spool.close()
    found = CommandSpool(tmp_path, found=True)
    found.release(spool.end)
    write(tmp_path, "out", b"more")
    found.look(last=True)
    assert records(everything(found)) == [(Kind.STDOUT, b"more")]
    found.close()


def test_a_long_index_gives_its_space_back_and_still_says_how_far_all_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commandspool, "_PUNCH_BYTES", 8192)
    spool = CommandSpool(tmp_path)
    write(tmp_path, "err", b"once")
    for number in range(2000):
        write(tmp_path, "out", b"%d " % number)
        spool.look()
        spool.release(spool.end)
    assert disk_bytes(tmp_path / INDEX) < (tmp_path / INDEX).stat().st_size / 2
    end = spool.end
    spool.close()
    found = CommandSpool(tmp_path, found=True)
    assert found.end == end
    assert not found.look()  # also of the file that nothing was written to for long
    found.close()


def test_without_holes_nothing_is_lost(tmp_path: Path) -> None:
    spool = CommandSpool(tmp_path, portable=True)
    write(tmp_path, "out", b"x" * (4 << 20))
    spool.look()
    spool.release(spool.end)
    assert disk_bytes(tmp_path / "out") >= 4 << 20
    spool.close()


def test_a_file_that_was_cut_short_under_us_stays_a_stream(tmp_path: Path) -> None:
    """`echo words > /dev/stderr` opens the file anew and empties it."""
    spool = CommandSpool(tmp_path)
    write(tmp_path, "err", b"long first words")
    spool.look()
    (tmp_path / "err").write_bytes(b"new")
    assert spool.look()
    kinds_and_sizes = [(kind, len(body)) for kind, body in records(everything(spool))]
    assert kinds_and_sizes == [(Kind.STDERR, 16), (Kind.STDERR, 3)]
    assert records(everything(spool))[-1] == (Kind.STDERR, b"new")
    spool.close()


def test_a_file_that_its_program_removed_stays_a_stream(tmp_path: Path) -> None:
    first = CommandSpool(tmp_path)
    write(tmp_path, "out", b"words" * (1 << 19))
    first.look()
    (tmp_path / "out").unlink()
    first.close()
    for spool in (first, CommandSpool(tmp_path, found=True)):
        assert sum(len(body) for _, body in records(everything(spool))) == 5 << 19
        spool.look(last=True)
        spool.release(spool.end)
        assert spool.start() == spool.end
        spool.close()


def test_the_tail_is_of_stderr_where_there_is_some(tmp_path: Path) -> None:
    write(tmp_path, "out", b"to stdout")
    spool = CommandSpool(tmp_path)
    assert spool.tail() == ""
    spool.look()
    assert spool.tail() == "to stdout"
    write(tmp_path, "err", "größer\xff".encode("latin-1"))
    spool.look()
    assert spool.tail() == "gr��er�"
    spool.close()


def test_the_last_line_is_of_the_file_that_was_written_last(tmp_path: Path) -> None:
    spool = CommandSpool(tmp_path)
    assert spool.last_line() == ""
    write(tmp_path, "err", b"a warning\n")
    os.utime(tmp_path / "err", ns=(1, 1))
    write(tmp_path, "out", b"epoch 1\nepoch 2\n\n")
    assert spool.last_line() == "epoch 2"  # before anybody looked
    assert spool.end == 0
    os.utime(tmp_path / "out", ns=(0, 0))
    assert spool.last_line() == "a warning"
    spool.close()

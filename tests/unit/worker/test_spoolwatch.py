"""Reading along in a cell's spool."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpulayer.protocol.records import Kind, kernel_payload
from gpulayer.protocol.spool import SpoolWriter
from gpulayer_worker.run.spoolwatch import CellSpool

REPLY = {"status": "ok", "execution_count": 3}


class Spool:
    """A kernel's side of a spool."""

    def __init__(self, folder: Path):
        self.writer = SpoolWriter(folder)

    def message(self, kind: str, **content: Any) -> None:
        parts = [json.dumps(part).encode() for part in ({"msg_type": kind}, {}, {}, content)]
        self.writer.append(kernel_payload(parts))

    def status(self, state: str) -> None:
        self.message("status", execution_state=state)

    def reply(self) -> None:
        self.writer.append_json(Kind.REPLY, REPLY)


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool(tmp_path)


def test_an_empty_spool_has_not_begun(spool: Spool, tmp_path: Path) -> None:
    watched = CellSpool(tmp_path)
    assert not watched.look()
    assert (watched.began, watched.idle, watched.end) == (False, False, 0)


def test_a_folder_that_is_not_there_yet_has_not_begun(tmp_path: Path) -> None:
    assert not CellSpool(tmp_path / "later").look()


def test_it_follows_a_cell_from_its_begin_to_its_end(spool: Spool, tmp_path: Path) -> None:
    watched = CellSpool(tmp_path)
    spool.status("busy")
    assert watched.look()
    assert watched.began
    assert not watched.look()  # nothing more
    spool.message("stream", name="stdout", text="x")
    assert watched.look()
    assert watched.end == spool.writer.offset
    spool.reply()
    assert watched.look()
    assert (watched.reply, watched.idle) == (REPLY, False)
    spool.status("idle")
    assert watched.look()
    assert watched.idle
    assert watched.end == spool.writer.offset


def test_a_new_agent_finds_the_end_of_what_was_written_before(spool: Spool, tmp_path: Path) -> None:
    for step in (lambda: spool.status("busy"), spool.reply, lambda: spool.status("idle")):
        step()
    watched = CellSpool(tmp_path)
    assert watched.look()
    assert (watched.reply, watched.idle) == (REPLY, True)


def test_only_an_idle_after_the_reply_is_the_end(spool: Spool, tmp_path: Path) -> None:
    watched = CellSpool(tmp_path)
    spool.status("idle")  # of something that the cell did
    spool.reply()
    spool.message("stream", name="stdout", text="a late thread")
    watched.look()
    assert not watched.idle
    spool.status("busy")
    watched.look()
    assert not watched.idle
    spool.status("idle")
    watched.look()
    assert watched.idle


def test_large_records_are_passed_over(spool: Spool, tmp_path: Path) -> None:
    watched = CellSpool(tmp_path)
    spool.message("stream", name="stdout", text="x" * 1_000_000)
    spool.reply()
    spool.message("display_data", data={"text/plain": "y" * 1_000_000})
    spool.status("idle")
    watched.look()
    assert (watched.reply, watched.idle) == (REPLY, True)


def test_a_record_that_is_not_whole_is_not_there(spool: Spool, tmp_path: Path) -> None:
    spool.status("busy")
    end = spool.writer.offset
    with next(tmp_path.glob("*.log")).open("ab") as file:
        file.write(b"\x10\0\0\0half")
    watched = CellSpool(tmp_path)
    watched.look()
    assert watched.end == end


def test_it_goes_on_over_segments_and_reads_what_was_not_released(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.writer = SpoolWriter(tmp_path, segment_bytes=200)
    watched = CellSpool(tmp_path)
    for n in range(10):
        spool.message("stream", name="stdout", text=f"{n}" * 50)
        watched.look()
    middle = watched.end // 2
    watched.reader.release(middle)
    assert watched.reader.start() <= middle
    assert len(watched.reader.read(watched.reader.start(), 1 << 20)) == watched.end - watched.reader.start()
    spool.reply()
    spool.status("idle")
    watched.look()
    assert watched.idle
    watched.close()


def test_the_last_line_of_what_a_cell_printed(spool: Spool, tmp_path: Path) -> None:
    watched = CellSpool(tmp_path)
    assert watched.last_line() == ""
    spool.status("busy")
    spool.message("stream", name="stdout", text="epoch 1\nepo")
    spool.message("display_data", data={"text/plain": "a figure"})
    spool.message("stream", name="stdout", text="ch 2\n")
    watched.look()
    assert watched.last_line() == "epoch 2"
    spool.writer.append((bytes((Kind.TEXT, 2)), b"from C\n"))
    watched.look()
    assert watched.last_line() == "from C"

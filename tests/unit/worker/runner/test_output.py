"""What calls write, on its way to the spool."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from gpulayer.protocol import records
from gpulayer.protocol.spool import SpoolReader, SpoolWriter
from gpulayer_worker.runner.output import ITEM, LIMIT_BYTES, STDERR, STDOUT, Files, Sink


class Spool:
    """A sink with a real spool."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.woken = 0
        self.sink = Sink(lambda: SpoolWriter(folder), self._wake)

    def _wake(self) -> None:
        self.woken += 1

    def records(self) -> list[tuple[str, int, int, int, bytes]]:
        reader = SpoolReader(self.folder)
        found = records.Splitter().feed(reader.read(0, 1 << 30))
        reader.close()
        return [
            (name, index, kind, number, bytes(data))
            for _, kind, body in found
            for name, index, number, data in [records.decode_call(body)]
        ]


def test_text_goes_to_the_call_that_runs_and_keeps_its_order(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "s")
    spool.sink.write(STDOUT, b"import")  # while the function was loaded
    spool.sink.begin("m.1", 4)
    spool.sink.write(STDOUT, b" one")
    spool.sink.write(STDERR, b"e")
    spool.sink.write(STDOUT, b"two")
    assert spool.sink.pending
    assert spool.woken == 4
    spool.sink.begin("m.1", 5)
    assert spool.records() == [
        ("m.1", 4, STDOUT, 0, b"import one"),
        ("m.1", 4, STDERR, 0, b"e"),
        ("m.1", 4, STDOUT, 0, b"two"),
    ]
    spool.sink.write(STDOUT, b"x")
    spool.sink.item(7, b"value")
    assert spool.records()[3:] == [("m.1", 5, STDOUT, 0, b"x"), ("m.1", 5, ITEM, 7, b"value")]
    assert not spool.sink.pending


def test_much_text_is_written_at_once_in_bounded_records(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "s")
    spool.sink.begin("m.1", 0)
    spool.sink.write(STDOUT, b"x" * (2 * LIMIT_BYTES + 5))
    assert [len(data) for *_, data in spool.records()] == [LIMIT_BYTES, LIMIT_BYTES, 5]


def test_text_of_nobody_is_bounded(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "s")
    for _ in range(100):
        spool.sink.write(STDOUT, b"y" * 5000)
    spool.sink.begin("m.1", 0)
    spool.sink.flush()
    assert 0 < sum(len(data) for *_, data in spool.records()) < LIMIT_BYTES


def test_threads_lose_no_text(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "s")
    spool.sink.begin("m.1", 0)

    def write(name: int) -> None:
        for line in range(200):
            spool.sink.write(STDOUT, b"%d.%d\n" % (name, line))

    threads = [threading.Thread(target=write, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    spool.sink.flush()
    lines = b"".join(data for *_, data in spool.records()).splitlines()
    assert sorted(lines) == sorted(b"%d.%d" % (name, line) for name in range(4) for line in range(200))


def test_files_of_the_descriptors_are_read_from_where_they_were(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "s")
    out = tmp_path / "out"
    out.write_bytes(b"before")
    files = Files(spool.sink, str(out), "")
    spool.sink.begin("m.1", 0)
    files.take()
    with open(out, "ab") as end:
        end.write(b"z" * (LIMIT_BYTES + 3))
    files.take()
    files.take()
    spool.sink.flush()
    assert b"".join(data for *_, data in spool.records()) == b"z" * (LIMIT_BYTES + 3)


def test_space_of_what_was_read_is_given_back_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpulayer_worker.runner.output.PUNCH_BYTES", 1 << 16)
    spool = Spool(tmp_path / "s")
    spool.sink.begin("m.1", 0)
    out = tmp_path / "out"
    files = Files(spool.sink, str(out), "")
    with open(out, "ab", buffering=0) as end:
        for part in range(8):
            end.write(bytes((65 + part,)) * (1 << 15))
            files.take()
    spool.sink.flush()
    text = b"".join(data for *_, data in spool.records())
    assert text == b"".join(bytes((65 + part,)) * (1 << 15) for part in range(8))
    assert out.stat().st_size == 1 << 18

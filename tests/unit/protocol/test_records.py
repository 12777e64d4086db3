"""The record format: what is written is read again, from pieces of any size, and damage is found."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulayer.protocol import records
from gpulayer.protocol.records import BoundaryScanner, Kind, RecordError, Splitter

BODIES = st.lists(st.tuples(st.sampled_from(list(Kind)), st.binary(max_size=300)), max_size=12)
CUTS = st.lists(st.integers(min_value=1, max_value=200), min_size=1, max_size=30)


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    """`data` in pieces of these sizes, over and over."""
    pieces: list[bytes] = []
    position = 0
    while position < len(data):
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(data[position : position + size])
        position += size
    return pieces


def joined(bodies: list[tuple[Kind, bytes]]) -> bytes:
    return b"".join(records.encode(kind, body) for kind, body in bodies)


@given(BODIES, CUTS)
def test_records_come_back_from_pieces_of_any_size(bodies: list[tuple[Kind, bytes]], sizes: list[int]) -> None:
    splitter = Splitter()
    found = [record for piece in cut(joined(bodies), sizes) for record in splitter.feed(piece)]
    assert [(seq, kind, bytes(body)) for seq, kind, body in found] == [
        (seq, kind, body) for seq, (kind, body) in enumerate(bodies)
    ]


@given(BODIES, CUTS, st.integers(min_value=0, max_value=4000))
def test_a_scanner_knows_the_boundary_of_every_prefix(
    bodies: list[tuple[Kind, bytes]], sizes: list[int], length: int
) -> None:
    data = joined(bodies)[:length]
    whole, boundary = 0, 0
    for kind, body in bodies:
        end = boundary + len(records.encode(kind, body))
        if end > len(data):
            break
        whole, boundary = whole + 1, end
    scanner = BoundaryScanner()
    for piece in cut(data, sizes):
        scanner.feed(piece)
    assert (scanner.boundary, scanner.count) == (boundary, whole)


@given(BODIES, st.integers(min_value=0, max_value=4000), st.integers(min_value=0, max_value=12))
def test_a_file_is_scanned_to_its_last_whole_record(
    tmp_path_factory: pytest.TempPathFactory, bodies: list[tuple[Kind, bytes]], length: int, limit: int
) -> None:
    path = tmp_path_factory.mktemp("scan") / "stream"
    data = joined(bodies)[:length]
    path.write_bytes(data)
    scanner = BoundaryScanner()
    scanner.feed(data)
    assert records.scan_file(path) == (scanner.boundary, scanner.count)
    offset, count = records.scan_file(path, limit=limit)
    assert count == min(limit, scanner.count)
    assert records.scan_file(path, start=offset) == (scanner.boundary, scanner.count - count)


@given(st.lists(st.binary(max_size=200), max_size=8))
def test_the_parts_of_a_kernel_message_come_back(parts: list[bytes]) -> None:
    [(_, kind, body)] = Splitter().feed(records.encode_kernel(parts))
    assert kind == Kind.KERNEL
    assert records.decode_kernel(body) == parts


@given(st.binary(max_size=60))
def test_bytes_that_are_no_kernel_message_are_refused_or_read_whole(body: bytes) -> None:
    try:
        parts = records.decode_kernel(body)
    except RecordError:
        return
    assert records.encode_kernel(parts)[records.HEADER_BYTES + 1 :] == body


@given(BODIES.filter(bool), st.data())
def test_a_changed_byte_of_a_payload_is_found(bodies: list[tuple[Kind, bytes]], data: st.DataObject) -> None:
    stream = bytearray(joined(bodies))
    starts, position = [], 0
    for kind, body in bodies:
        starts.append(position)
        position += len(records.encode(kind, body))
    index = data.draw(st.integers(min_value=0, max_value=len(bodies) - 1))
    offset = data.draw(st.integers(min_value=0, max_value=len(bodies[index][1])))
    stream[starts[index] + records.HEADER_BYTES + offset] ^= data.draw(st.integers(min_value=1, max_value=255))
    with pytest.raises(RecordError, match=f"record {index} is damaged"):
        Splitter().feed(stream)


def test_a_splitter_goes_on_with_the_numbers_it_is_given() -> None:
    assert [seq for seq, _, _ in Splitter(next_seq=7).feed(records.encode(Kind.MARK, b"{}") * 2)] == [7, 8]


def test_json_and_text_come_back() -> None:
    stream = records.encode_json(Kind.REPLY, {"status": "ok", "evalue": "\ud800 é"}) + records.encode_text(2, b"\xff\n")
    [(_, first, reply), (_, second, text)] = Splitter().feed(stream)
    assert (first, records.decode_json(reply)) == (Kind.REPLY, {"status": "ok", "evalue": "\ud800 é"})
    assert (second, records.decode_text(text)) == (Kind.TEXT, (2, b"\xff\n"))


@pytest.mark.parametrize("body", [b"", b"[1]", b"{", b"\xff"])
def test_a_body_that_holds_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(RecordError, match="JSON"):
        records.decode_json(body)


@pytest.mark.parametrize("body", [b"", b"\x00x", b"\x03x"])
def test_text_of_another_descriptor_is_refused(body: bytes) -> None:
    with pytest.raises(RecordError, match="file descriptor"):
        records.decode_text(body)


@pytest.mark.parametrize("length", [0, records.MAX_PAYLOAD_BYTES + 1, 0xFFFFFFFF])
def test_an_impossible_length_is_refused_before_anything_is_kept(length: int) -> None:
    header = length.to_bytes(4, "little") + bytes(4)
    with pytest.raises(RecordError, match=f"length would be {length}"):
        Splitter().feed(header)
    with pytest.raises(RecordError, match="no record starts at byte 10:"):
        BoundaryScanner(boundary=10, count=1).feed(header)


def test_more_parts_than_a_record_can_count_are_refused() -> None:
    with pytest.raises(RecordError, match="256 parts; 255 are allowed"):
        records.encode_kernel([b""] * 256)


def test_zeros_at_a_files_end_are_no_record(tmp_path: Path) -> None:
    record = records.encode(Kind.MARK, b"{}")
    path = tmp_path / "stream"
    path.write_bytes(record + bytes(4096))
    assert records.scan_file(path) == (len(record), 1)


def test_a_large_record_in_small_pieces_is_copied_a_bounded_number_of_times() -> None:
    record = records.encode(Kind.TEXT, os.urandom(4 << 20))
    splitter = Splitter()
    found = [item for piece in cut(record * 2, [1000]) for item in splitter.feed(piece)]
    assert [records.encode(kind, body) == record for _, kind, body in found] == [True, True]


def test_last_good_leaves_out_a_record_with_a_bad_checksum(tmp_path: Path) -> None:
    path = tmp_path / "stream"
    first, second = records.encode(Kind.TEXT, b"\x01one"), records.encode(Kind.TEXT, b"\x01two")
    path.write_bytes(first + second[:-1] + b"x")
    with path.open("rb") as file:
        assert records.scan_file(file.fileno()) == (len(first + second), 2)
        assert records.last_good(file.fileno()) == (len(first), 1)
    path.write_bytes(b"")
    with path.open("rb") as file:
        assert records.last_good(file.fileno()) == (0, 0)


def test_the_file_is_enough_by_itself(tmp_path: Path) -> None:
    copy = tmp_path / "records.py"
    copy.write_bytes(Path(records.__file__).read_bytes())
    code = "import records, sys; print(records.scan_file(sys.argv[1]), [m for m in sys.modules if 'gpulayer' in m])"
    (tmp_path / "stream").write_bytes(records.encode(Kind.MARK, b"{}"))
    command = [sys.executable, "-S", "-c", code, str(tmp_path / "stream")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "(11, 1) []\n"

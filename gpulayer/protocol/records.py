"""The record format of streams.

A record is ``<u32 length><u32 crc32(payload)><payload>``, little-endian; a payload is one byte of kind and a body:

======  =====  ==============================================================================================
kind    value  body
======  =====  ==============================================================================================
KERNEL  1      u8 count, then per part u32 length and bytes: header, parent_header, metadata, content, buffers
REPLY   2      a JSON object: how the cell ended
MARK    3      a JSON object that says something about the stream itself, e.g. ``{"mark": "truncated"}``
TEXT    4      u8 file descriptor (1 or 2), then bytes as a program wrote them
STDOUT  5      bytes as a command wrote them; STDERR (6) likewise
CALL_*  7-9    u8 length and name of the map, u64 index of the call, u32 number (of an item), then text or a value
======  =====  ==============================================================================================

A record's sequence number is its ordinal in the stream, from 0: whoever reads the stream derives the same.

Kernels whose environment has nothing of ours load this file by its path: it needs the standard library of Python 3.9 or
newer, and imports nothing else.
"""

from __future__ import annotations

import codecs
import json
import os
import struct
import zlib
from enum import IntEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    Buffer = bytes | bytearray | memoryview

HEADER_BYTES = 8
MAX_PAYLOAD_BYTES = 1 << 30
MAX_PARTS = 255

_HEADER = struct.Struct("<II")
_LENGTH = struct.Struct("<I")
_CALL = struct.Struct("<QI")
_SCAN_BYTES = 16 * 1024  # one read of a scan: many small records, or one header


class Kind(IntEnum):
    """What a record holds: the first byte of its payload."""

    KERNEL = 1
    REPLY = 2
    MARK = 3
    TEXT = 4
    STDOUT = 5  # of a command: bytes as it wrote them
    STDERR = 6
    CALL_STDOUT = 7  # of a call: `encode_call`
    CALL_STDERR = 8
    CALL_ITEM = 9  # of a generator's call: a packed value


class RecordError(ValueError):
    """Bytes that cannot be a record, or a record that cannot be written."""


# ---------------------------------------------------------------------------------------------- encode and decode


def frame(parts: Sequence[Buffer]) -> bytes:
    """One whole record, whose payload (the byte of its kind, then its body) is given in pieces.

    Raises RecordError when the payload is empty or larger than 1 GiB.
    """
    length, crc = 0, 0
    for part in parts:
        length += len(part)
        crc = zlib.crc32(part, crc)
    if not 0 < length <= MAX_PAYLOAD_BYTES:
        raise RecordError(f"a record's payload has {length} bytes; 1 to {MAX_PAYLOAD_BYTES} are allowed")
    return b"".join((_HEADER.pack(length, crc), *parts))


def encode(kind: int, body: Buffer) -> bytes:
    """One whole record of `kind` with `body`. Raises RecordError when the payload is larger than 1 GiB."""
    return frame((bytes((kind,)), body))


def encode_json(kind: int, value: dict[str, Any]) -> bytes:
    """One whole REPLY or MARK record (`kind`) that holds `value`."""
    return encode(kind, json.dumps(value).encode())


def encode_text(fd: int, text: Buffer) -> bytes:
    """One whole TEXT record: bytes that a program wrote to the file descriptor `fd` (1 or 2)."""
    return frame((bytes((Kind.TEXT, fd)), text))


def kernel_payload(parts: Sequence[Buffer]) -> list[Buffer]:
    """The payload of a KERNEL record, as pieces for `frame`.

    `parts` are the header, parent header, metadata and content of a message as JSON, then its raw buffers. Raises
    RecordError for more than 255 parts, or a part that is larger than a record may be.
    """
    if len(parts) > MAX_PARTS:
        raise RecordError(f"a message has {len(parts)} parts; {MAX_PARTS} are allowed")
    pieces: list[Buffer] = [bytes((Kind.KERNEL, len(parts)))]
    for part in parts:
        if len(part) > MAX_PAYLOAD_BYTES:
            raise RecordError(f"a part of a message has {len(part)} bytes; {MAX_PAYLOAD_BYTES} are allowed")
        pieces.append(_LENGTH.pack(len(part)))
        pieces.append(part)
    return pieces


def encode_kernel(parts: Sequence[Buffer]) -> bytes:
    """One whole KERNEL record; see `kernel_payload`."""
    return frame(kernel_payload(parts))


def decode_kernel(body: Buffer) -> list[bytes]:
    """The parts of a KERNEL record's body. Raises RecordError when the lengths in it do not add up."""
    view = memoryview(body)
    parts: list[bytes] = []
    position = 1
    for _ in range(view[0] if len(view) else 0):
        if position + _LENGTH.size > len(view):
            break
        start = position + _LENGTH.size
        position = start + _LENGTH.unpack_from(view, position)[0]
        parts.append(bytes(view[start:position]))
    if position != len(view) or len(parts) != view[0]:
        raise RecordError(f"the lengths in a kernel record of {len(view)} bytes do not add up")
    return parts


def decode_json(body: Buffer) -> dict[str, Any]:
    """The object in the body of a REPLY or MARK record. Raises RecordError when it holds anything else."""
    try:
        value: Any = json.loads(bytes(body))
    except ValueError as error:
        raise RecordError(f"a record's JSON cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise RecordError(f"a record's JSON is a {type(value).__name__}, not an object")
    return value  # pyright: ignore[reportUnknownVariableType]


def decode_text(body: Buffer) -> tuple[int, bytes]:
    """The file descriptor (1 or 2) and the bytes of a TEXT record. Raises RecordError for another descriptor."""
    data = bytes(body)
    if data[:1] not in (b"\x01", b"\x02"):
        raise RecordError(f"a text record names the file descriptor {data[:1]!r}; 1 and 2 are allowed")
    return data[0], data[1:]


def encode_call(kind: int, map_name: str, index: int, number: int, data: Buffer) -> bytes:
    """One whole CALL_STDOUT, CALL_STDERR or CALL_ITEM record (`kind`); `number` counts a generator's items from 0."""
    name = map_name.encode()
    return frame((bytes((kind, len(name))), name, _CALL.pack(index, number), data))


def decode_call(body: Buffer) -> tuple[str, int, int, memoryview]:
    """The map, the call's index, the number and the data of such a record's body. Raises RecordError."""
    view = memoryview(body)
    start = 1 + view[0] if len(view) else 0
    if not start or len(view) < start + _CALL.size:
        raise RecordError(f"a call's record of {len(view)} bytes is cut short")
    index, number = _CALL.unpack_from(view, start)
    return bytes(view[1:start]).decode(), index, number, view[start + _CALL.size :]


def _check_length(length: int, offset: int) -> None:
    if not 0 < length <= MAX_PAYLOAD_BYTES:
        raise RecordError(f"no record starts at byte {offset}: its length would be {length}")


# ------------------------------------------------------------------------------------------------ read a stream


class Splitter:
    """Cuts a stream of bytes, fed in pieces of any size, into its records. Owned by one reader."""

    def __init__(self, next_seq: int = 0) -> None:
        """`next_seq` is the sequence number of the first record that will be fed."""
        self.next_seq = next_seq
        self._pending = bytearray()
        self._needed_bytes = HEADER_BYTES

    def feed(self, data: Buffer) -> list[tuple[int, int, memoryview]]:
        """Takes the next bytes, and returns the records that they complete as (sequence number, kind, body).

        A body may share the memory of `data`. Raises RecordError on a bad CRC or an impossible length; the splitter
        is of no use after that.
        """
        if self._pending:
            self._pending += data
            if len(self._pending) < self._needed_bytes:
                return []
            data = bytes(self._pending)
            self._pending = bytearray()
        view = memoryview(data)
        records: list[tuple[int, int, memoryview]] = []
        position = 0
        self._needed_bytes = HEADER_BYTES
        while len(view) - position >= HEADER_BYTES:
            length, crc = _HEADER.unpack_from(view, position)
            _check_length(length, position)
            self._needed_bytes = HEADER_BYTES + length
            if len(view) - position < self._needed_bytes:
                break
            payload = view[position + HEADER_BYTES : position + self._needed_bytes]
            if zlib.crc32(payload) != crc:
                raise RecordError(f"record {self.next_seq} is damaged: its checksum does not match")
            records.append((self.next_seq, payload[0], payload[1:]))
            self.next_seq += 1
            position += self._needed_bytes
            self._needed_bytes = HEADER_BYTES
        self._pending += view[position:]
        return records


class BoundaryScanner:
    """Counts the records of a stream fed in pieces, without keeping any of it. Owned by one reader."""

    def __init__(self, boundary: int = 0, count: int = 0) -> None:
        """`boundary` and `count`: the offset (bytes) and the number of records that were passed before."""
        self.boundary = boundary
        self.count = count
        self._header = b""  # the part of a header that a piece ended in
        self._length = 0  # of the payload that is being passed; 0 while in a header
        self._left = 0

    def feed(self, data: Buffer) -> None:
        """Takes the next bytes; moves `boundary` and `count`. Raises RecordError where no record can be."""
        view = memoryview(data)
        position = 0
        while position < len(view):
            if not self._length:
                taken = bytes(view[position : position + HEADER_BYTES - len(self._header)])
                self._header += taken
                position += len(taken)
                if len(self._header) < HEADER_BYTES:
                    return
                self._length = self._left = _HEADER.unpack(self._header)[0]
                _check_length(self._length, self.boundary)
                self._header = b""
            step = min(self._left, len(view) - position)
            position += step
            self._left -= step
            if not self._left:
                self.boundary += HEADER_BYTES + self._length
                self.count += 1
                self._length = 0


def _scan(fd: int, start: int, limit: int | None) -> tuple[int, int, int]:
    """(offset after the last whole record, number of records, offset of the last record) from `start` on."""
    size = os.fstat(fd).st_size
    boundary, count, last = start, 0, start
    block, block_at = b"", start
    while boundary + HEADER_BYTES <= size and count != limit:
        if boundary - block_at + HEADER_BYTES > len(block):
            block, block_at = os.pread(fd, _SCAN_BYTES, boundary), boundary
            if len(block) < HEADER_BYTES:
                break
        length = _HEADER.unpack_from(block, boundary - block_at)[0]
        if not length:  # zeros: what a power cut can leave behind
            break
        _check_length(length, boundary)
        if boundary + HEADER_BYTES + length > size:
            break
        last = boundary
        boundary += HEADER_BYTES + length
        count += 1
    return boundary, count, last


def scan_file(source: str | os.PathLike[str] | int, start: int = 0, limit: int | None = None) -> tuple[int, int]:
    """The offset just after the last whole record of a file, and the number of records from `start` to there.

    `source` is a path or a file descriptor; `start` must be where a record starts; at most `limit` records are passed.
    Reads headers only: it is as fast for large records as for small. Raises RecordError where no record can be, OSError
    as the file system does.
    """
    if isinstance(source, int):
        return _scan(source, start, limit)[:2]
    fd = os.open(source, os.O_RDONLY)
    try:
        return _scan(fd, start, limit)[:2]
    finally:
        os.close(fd)


def last_good(fd: int, start: int = 0) -> tuple[int, int]:
    """`scan_file`, which leaves out the last record when its checksum does not match."""
    boundary, count, last = _scan(fd, start, None)
    if not count:
        return boundary, count
    record = os.pread(fd, boundary - last, last)
    if zlib.crc32(memoryview(record)[HEADER_BYTES:]) == _HEADER.unpack_from(record)[1]:
        return boundary, count
    return last, count - 1


class Texts:
    """What a command wrote, as text: a letter whose bytes are in two records comes with the second one."""

    def __init__(self) -> None:
        make = codecs.getincrementaldecoder("utf-8")
        self._decoders = {Kind.STDOUT: make(errors="replace"), Kind.STDERR: make(errors="replace")}

    def take(self, kind: Kind, body: Buffer) -> tuple[str, str]:
        """The stream that a record of kind STDOUT or STDERR belongs to, 'stdout' or 'stderr', and the text."""
        return kind.name.lower(), self._decoders[kind].decode(body)

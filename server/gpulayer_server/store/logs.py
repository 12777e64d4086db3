"""What a program wrote, out of its stream: plain bytes, without the records around them.

Reads the stream's file by itself, in any thread, in pieces: however long a stream is, some of it is in memory at most.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from gpulayer.protocol.records import Kind, RecordError, Splitter, decode_call, decode_kernel, decode_text, scan_file

__all__ = ["joined_log", "log_bytes"]

_PIECE_BYTES = 256 * 1024
_RECORDS = 512  # between two places from which a reader may begin
_NAMES = {"stdout": 1, "stderr": 2}
_FD = {Kind.STDOUT: 1, Kind.STDERR: 2, Kind.CALL_STDOUT: 1, Kind.CALL_STDERR: 2}


def log_bytes(path: Path, *, stream: str | None = None, tail: int | None = None) -> Iterator[bytes]:
    """The bytes that are in a stream's file now, in the order of its records.

    Args:
        path: the stream's file; one that is not there is empty.
        stream: 'stdout' or 'stderr'; None for both.
        tail: so many bytes at most, the last ones; None for all.

    Raises OSError.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        wanted = _NAMES[stream] if stream is not None else None
        end = os.fstat(descriptor).st_size
        if tail is None:
            yield from _texts(descriptor, 0, end, wanted)
        elif tail > 0:
            yield from _last(descriptor, end, wanted, tail)
    finally:
        os.close(descriptor)


def joined_log(paths: Sequence[Path], *, stream: str | None = None, tail: int | None = None) -> Iterator[bytes]:
    """The same of several streams, one behind the other."""
    wanted: list[tuple[Path, int | None]] = []
    for path in reversed(paths):
        wanted.append((path, tail))
        if tail is not None:
            tail -= sum(map(len, log_bytes(path, stream=stream, tail=tail)))
            if tail <= 0:
                break
    for path, most in reversed(wanted):
        yield from log_bytes(path, stream=stream, tail=most)


def _last(descriptor: int, end: int, wanted: int | None, tail: int) -> Iterator[bytes]:
    """Look from the end backwards where the last `tail` bytes begin, then give them from there."""
    starts = _starts(descriptor)
    start = starts.pop()
    found = 0
    while starts and found < tail:
        stop, start = start, starts.pop()
        found += sum(map(len, _texts(descriptor, start, stop, wanted)))
    skip = max(0, found - tail)
    for data in _texts(descriptor, start, end, wanted):
        if skip >= len(data):
            skip -= len(data)
            continue
        yield data[skip:]
        skip = 0


def _starts(descriptor: int) -> list[int]:
    """Where every so many records one begins, from the first to the end of the last whole one."""
    starts = [0]
    while True:
        boundary, count = scan_file(descriptor, starts[-1], _RECORDS)
        if not count:
            return starts
        starts.append(boundary)


def _texts(descriptor: int, start: int, end: int, wanted: int | None) -> Iterator[bytes]:
    """What the whole records between two places hold. One that is damaged ends it: the stream was cut meanwhile."""
    splitter = Splitter()
    while start < end:
        data = os.pread(descriptor, min(_PIECE_BYTES, end - start), start)
        if not data:
            return
        start += len(data)
        try:
            records = splitter.feed(data)
        except RecordError:
            return
        texts = [text for _, kind, body in records for fd, text in (_text(kind, body),) if wanted in (None, fd)]
        if joined := b"".join(texts):
            yield joined


def _text(kind: int, body: memoryview) -> tuple[int, bytes]:
    """The file descriptor, 0 for what nobody wrote to one, and the bytes."""
    if kind in (Kind.STDOUT, Kind.STDERR):
        return _FD[Kind(kind)], bytes(body)
    if kind in (Kind.CALL_STDOUT, Kind.CALL_STDERR):
        return _FD[Kind(kind)], bytes(decode_call(body)[-1])
    if kind == Kind.TEXT:
        return decode_text(body)
    if kind == Kind.KERNEL:
        parts = decode_kernel(body)
        if b'"stream"' in parts[0] and json.loads(parts[0])["msg_type"] == "stream":
            content = json.loads(parts[3])
            return _NAMES.get(content["name"], 1), content["text"].encode(errors="replace")
    return 0, b""

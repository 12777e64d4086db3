"""What a program wrote, out of its stream."""

from __future__ import annotations

import json
import os
import random
import tracemalloc
from pathlib import Path

import pytest

from gpulayer.protocol.records import Kind, encode, encode_call, encode_json, encode_kernel, encode_text
from gpulayer_server.store import logs
from gpulayer_server.store.logs import joined_log, log_bytes


def message(kind: str, **content: object) -> bytes:
    parts = [json.dumps({"msg_type": kind}).encode(), b"{}", b"{}", json.dumps(content).encode()]
    return encode_kernel(parts)


RECORDS = [
    encode(Kind.STDOUT, b"out\n"),
    encode(Kind.STDERR, b"err\n"),
    encode_text(1, b"one\n"),
    encode_text(2, b"two\n"),
    message("status", execution_state="busy"),
    message("stream", name="stdout", text="cell ü\n"),
    message("stream", name="stderr", text="warning\n"),
    message("display_data", data={"text/plain": '"stream"'}),
    encode_json(Kind.MARK, {"mark": "truncated"}),
    encode(Kind.STDOUT, b"\xff last"),
]
OUT = "out\none\ncell ü\n".encode() + b"\xff last"
ERR = b"err\ntwo\nwarning\n"
BOTH = "out\nerr\none\ntwo\ncell ü\nwarning\n".encode() + b"\xff last"


@pytest.fixture
def stream(tmp_path: Path) -> Path:
    path = tmp_path / "a.stream"
    path.write_bytes(b"".join(RECORDS))
    return path


@pytest.mark.parametrize(("name", "expected"), [("stdout", OUT), ("stderr", ERR), (None, BOTH)])
def test_only_what_was_written_comes_in_order(stream: Path, name: str | None, expected: bytes) -> None:
    assert b"".join(log_bytes(stream, stream=name)) == expected


@pytest.mark.parametrize("count", [0, 1, 5, 12, 17, len(BOTH) - 1, len(BOTH), len(BOTH) + 1, 10**9])
@pytest.mark.parametrize("records", [1, 2, 3, 100])
@pytest.mark.parametrize(("name", "whole"), [("stdout", OUT), ("stderr", ERR), (None, BOTH)])
def test_the_tail_is_the_end_of_the_whole(
    stream: Path, name: str | None, whole: bytes, count: int, records: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "_RECORDS", records)
    assert b"".join(log_bytes(stream, stream=name, tail=count)) == (whole[-count:] if count else b"")


def test_a_record_that_is_not_whole_yet_is_left_out(stream: Path) -> None:
    with stream.open("ab") as file:
        file.write(encode(Kind.STDOUT, b"more")[:-1])
    assert b"".join(log_bytes(stream)) == BOTH
    assert b"".join(log_bytes(stream, tail=4)) == b"last"


def test_no_stream_is_no_output(tmp_path: Path) -> None:
    assert list(log_bytes(tmp_path / "none")) == []
    (tmp_path / "empty").write_bytes(b"")
    assert list(log_bytes(tmp_path / "empty", tail=5)) == []


def test_a_damaged_record_ends_it(stream: Path) -> None:
    data = bytearray(stream.read_bytes())
    data[len(RECORDS[0]) + 10] ^= 1
    stream.write_bytes(data)
    assert b"".join(log_bytes(stream)) in (b"", b"out\n")


def test_a_long_streams_tail_takes_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "long.stream"
    chunk = os.urandom(200_000)
    with path.open("wb") as file:
        for _ in range(400):
            file.write(encode(random.choice((Kind.STDOUT, Kind.STDERR)), chunk))
    tracemalloc.start()
    try:
        got = sum(map(len, log_bytes(path, tail=20_000_000)))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert got == 20_000_000
    assert peak < 4_000_000


@pytest.mark.parametrize("tail", [None, 0, 1, 4, 5, 9, 12, 100])
def test_the_runners_of_a_function_one_behind_the_other(tmp_path: Path, tail: int | None) -> None:
    paths = [tmp_path / name for name in ("a", "b", "c")]
    for number, path in enumerate(paths):
        out, err = (encode_call(kind, "k.1", number, 0, b"%d\n" % number) for kind in (7, 8))
        path.write_bytes(out + err)
    whole = b"0\n0\n1\n1\n2\n2\n"
    assert b"".join(joined_log(paths, tail=tail)) == (whole if tail is None else whole[-tail:] if tail else b"")
    assert b"".join(joined_log(paths, stream="stderr", tail=tail)) == (
        b"0\n1\n2\n" if tail is None else b"0\n1\n2\n"[-tail:] if tail else b""
    )

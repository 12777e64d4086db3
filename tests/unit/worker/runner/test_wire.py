"""Frames of the runner's sockets, as bytes and back."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest

from gpulayer_worker.runner import wire

PLACE = wire.BlobPlace("ab" * 32, "/tmp/blöbs/x", 4096, 1 << 40)
FRAMES: list[Any] = [
    wire.Calls("k3f9.17", 7, [b"one", b"", b"three" * 1000], "predict", True, [PLACE, PLACE]),
    wire.Calls("k3f9.17", 0, []),
    wire.Accepted("k3f9.17", 1 << 40, 3),
    wire.End(),
    wire.Ready({"pid": 7, "rss_bytes": 1, "python": "3.12.4", "load_s": 0.1}),
    wire.LoadFailed({"kind": "load", "text": "nö"}),
    wire.Done("k3f9.17", 5, b"\x00\x01", [b"a", b"bc"], [PLACE], 17, 1 << 33),
    wire.Busy("k3f9.17", 5, 10_000),
    wire.Replace({"reason": "memory"}),
]


def alike(frame: Any, other: Any) -> bool:
    return type(frame) is type(other) and all(
        list(a) == list(b) if isinstance(a, (list, tuple)) else a == b for a, b in zip(frame, other, strict=True)
    )


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: type(frame).__name__)
def test_a_frame_comes_back_as_it_was(frame: Any) -> None:
    (found,) = wire.Splitter().feed(wire.encode(frame))
    assert alike(found, frame)


def test_pieces_of_any_size_make_the_same_frames() -> None:
    data = b"".join(map(wire.encode, FRAMES))
    chance = random.Random(7)
    for _ in range(50):
        splitter, found, position = wire.Splitter(), [], 0
        while position < len(data):
            step = chance.choice((1, 3, 5, 100, 2000, 10_000))
            found += splitter.feed(data[position : position + step])
            position += step
        assert len(found) == len(FRAMES)
        assert all(map(alike, found, FRAMES))


def test_what_is_no_frame_is_refused() -> None:
    whole = wire.encode(FRAMES[0])
    for bad in (
        struct.pack("<IB", 0, 3),
        struct.pack("<IB", (1 << 30) + 1, 3),
        struct.pack("<IB", 1, 99),
        struct.pack("<IB", 3, wire.END) + b"ab",
        struct.pack("<IB", 3, wire.READY) + b"[]",
        struct.pack("<I", len(whole) - 5) + whole[4:-1],
    ):
        with pytest.raises(wire.WireError):
            wire.Splitter().feed(bad)


def test_what_fits_into_no_frame_is_refused() -> None:
    for bad in (
        wire.Accepted("m" * 256, 0, 1),
        wire.Accepted("m", -1, 1),
        wire.Done("m", 0, b"\x00", []),
        wire.Calls("m", 0, [], blobs=[wire.BlobPlace("d", "/x" * 40_000, 0, 1)]),
    ):
        with pytest.raises(wire.WireError, match="can't be written"):
            wire.encode(bad)


def test_a_line_of_the_control_socket_is_one_object() -> None:
    line = wire.write_object({"op": "drop", "map": "k3f9.17"})
    assert line.endswith(b"\n")
    assert wire.read_object(line) == {"op": "drop", "map": "k3f9.17"}
    for bad in (b"[]", b"{", b"\xff"):
        with pytest.raises(ValueError):
            wire.read_object(bad)

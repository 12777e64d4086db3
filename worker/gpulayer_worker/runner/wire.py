"""What the agent and a runner say to each other. No I/O here: bytes to frames and back, for both sides.

A runner is ``PYTHON main.py CONFIG.json``; `main` says what the configuration holds. It *listens* at two unix sockets,
both there before anything of the user's is loaded. It outlives agents: whichever connects last is the agent.

**Data socket**: frames of ``u32 length of the rest, u8 op, body``, little-endian. One connection at a time; a new one
replaces the one before. A runner that closes it and goes on living has lost its place in the bytes (a signal handler of
the user's has raised while it wrote): connect again. To each new connection it says

1. `Ready` once the function is loaded (at once where it is), or `LoadFailed`; nothing comes before;
2. every `Done` that was not accepted;
3. `Busy` where a call has been running for 10 ms or more.

From the agent: `Calls` (before `Ready` too: they wait), run one by one in the order in which they came; `Accepted`: the
results of these are needed no more; `End`: exit with 0 once what came before it has run.

From the runner: `Done` for calls that stand one behind the other, at 128 results, after 10 ms, or when nothing is left
to run; each after the text of its calls is in the spool. The same result may come again, also on one connection: the
first counts. `Busy` once for each call that runs for 10 ms or more, so that the agent knows since when. `Replace`: it
runs nothing any more (`isolate`, or more memory than the limit): what waits in it is to be run by another one, `hold`
tells what that is. It still takes `Accepted`, and ends with `End` or a signal.

After `LoadFailed` the calls that come are answered all the same: each fails with that failure.

**Control socket**: one JSON object a line, an answer of one line to each, from a thread of its own: also while a call
runs, or the function is loaded. Any number of connections.

=========================================  =========================================================================
request                                    answer
=========================================  =========================================================================
``{"op": "hold"}``                         ``{"pid", "state": "loading" | "ready" | "failed" | "replace", "rss_bytes",
                                           "waiting": ranges, "running": [map, index, microseconds] or null,
                                           "unaccepted": ranges}``; a range is ``[map, first, count]``
``{"op": "drop", "map": M}``               ``{"dropped": ranges, "interrupting": index or null}``: what waits of it is
                                           gone, and nothing is told of it any more; the call that runs gets a
                                           KeyboardInterrupt, no other can get it, and its result comes as any other
``{"op": "interrupt", "map", "index"}``    ``{"interrupting": index or null}``: the same for one call that runs
``{"op": "recall", "count": N}``           ``{"recalled": ranges}``: at most N calls that have not begun, the last ones
                                           first; they will not run here
=========================================  =========================================================================

A request that can't be read is answered with ``{"error": line}``. A SIGINT from outside interrupts whichever call runs.

The agent imports this file; a runner loads it by its path: Python 3.9 and its standard library.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

CALLS, ACCEPTED, END = 1, 2, 3
READY, LOAD_FAILED, DONE, BUSY, REPLACE = 16, 17, 18, 19, 20

#: A `Done` is sent at the latest with so many results, and after so many seconds.
FLUSH_RESULTS = 128
FLUSH_S = 0.01
#: A frame's length at most: one call's inline bytes, and what goes around them.
MAX_FRAME_BYTES = 1 << 30

_HEADER = struct.Struct("<IB")
_CALLS = struct.Struct("<QIBH")  # first, count, flags, blobs
_DONE = struct.Struct("<QIQQH")  # first, count, spent_us, rss_bytes, blobs
_RANGE = struct.Struct("<QQ")  # first, count; or index, microseconds
_BLOB = struct.Struct("<HHQQ")  # lengths of digest and path, offset, size
_STREAM = 1


class WireError(ValueError):
    """Bytes that are no frame, or something that fits into none; one line says what."""


class BlobPlace(NamedTuple):
    """Where the bytes of a blob lie on this machine."""

    digest: str  # SHA-256, hexadecimal
    path: str  # absolute
    offset: int  # bytes
    size: int  # bytes


class Calls(NamedTuple):
    """Calls of one map from index `first` on: their packed arguments, and the blobs that these name."""

    map: str
    first: int
    args: Sequence[bytes]
    method: str = ""  # of a stateful class
    stream: bool = False  # a generator's items become records of the spool
    blobs: Sequence[BlobPlace] = ()


class Accepted(NamedTuple):
    """The results of these calls are committed, or not wanted."""

    map: str
    first: int
    count: int


class End(NamedTuple):
    """Exit once what came before has run."""


class Ready(NamedTuple):
    """The function is loaded. `about`: pid, rss_bytes, python ('3.12.4'), load_s (seconds)."""

    about: dict[str, Any]


class LoadFailed(NamedTuple):
    """It could not be loaded, or its object not be made: the fields of a `CallFailure`."""

    failure: dict[str, Any]


class Done(NamedTuple):
    """Results of calls that stand one behind the other; blobs that they name lie in files of their own."""

    map: str
    first: int
    codes: bytes  # one for each, of `gpulayer.protocol.calls`
    data: Sequence[bytes]
    blobs: Sequence[BlobPlace] = ()  # for the agent to take: it may move the files
    spent_us: int = 0  # that these calls ran, all together
    rss_bytes: int = 0  # the runner's memory, measured a moment ago


class Busy(NamedTuple):
    """This call has been running for so long."""

    map: str
    index: int
    elapsed_us: int


class Replace(NamedTuple):
    """The runner runs nothing any more. `why`: reason ('memory', 'isolate'), rss_bytes."""

    why: dict[str, Any]


if TYPE_CHECKING:
    Frame = Calls | Accepted | End | Ready | LoadFailed | Done | Busy | Replace


# ------------------------------------------------------------------------------------------------------------- encode


def encode(frame: Frame) -> bytes:
    """The bytes of a frame. Raises WireError when something in it is too large."""
    pieces: list[bytes] = []
    try:
        op = _ENCODERS[type(frame)](frame, pieces)
    except (struct.error, OverflowError, ValueError) as error:
        raise WireError(f"a {type(frame).__name__} frame can't be written: {error}") from error
    length = 1 + sum(map(len, pieces))
    if length > MAX_FRAME_BYTES:
        raise WireError(f"a {type(frame).__name__} frame has {length} bytes; {MAX_FRAME_BYTES} are allowed")
    return b"".join((_HEADER.pack(length, op), *pieces))


def _encode_calls(frame: Any, pieces: list[bytes]) -> int:
    pieces += (_name(frame.map), _name(frame.method))
    pieces.append(_CALLS.pack(frame.first, len(frame.args), _STREAM if frame.stream else 0, len(frame.blobs)))
    _encode_blobs(frame.blobs, pieces)
    _encode_many(frame.args, pieces)
    return CALLS


def _encode_done(frame: Any, pieces: list[bytes]) -> int:
    count = len(frame.codes)
    if count != len(frame.data):
        raise ValueError(f"{count} codes for {len(frame.data)} results")
    pieces.append(_name(frame.map))
    pieces.append(_DONE.pack(frame.first, count, frame.spent_us, frame.rss_bytes, len(frame.blobs)))
    _encode_blobs(frame.blobs, pieces)
    pieces.append(bytes(frame.codes))
    _encode_many(frame.data, pieces)
    return DONE


def _encode_accepted(frame: Any, pieces: list[bytes]) -> int:
    pieces += (_name(frame.map), _RANGE.pack(frame.first, frame.count))
    return ACCEPTED


def _encode_busy(frame: Any, pieces: list[bytes]) -> int:
    pieces += (_name(frame.map), _RANGE.pack(frame.index, frame.elapsed_us))
    return BUSY


def _encode_end(frame: Any, pieces: list[bytes]) -> int:
    return END


def _encode_json(frame: Any, pieces: list[bytes]) -> int:
    pieces.append(json.dumps(frame[0]).encode())
    return _JSON_OPS[type(frame)]


def _name(text: str) -> bytes:
    name = text.encode()
    return bytes((len(name),)) + name


def _encode_many(items: Sequence[bytes], pieces: list[bytes]) -> None:
    pieces.append(struct.pack(f"<{len(items)}I", *map(len, items)))
    pieces += items


def _encode_blobs(blobs: Iterable[BlobPlace], pieces: list[bytes]) -> None:
    for blob in blobs:
        digest, path = blob.digest.encode(), os.fsencode(blob.path)
        pieces += (_BLOB.pack(len(digest), len(path), blob.offset, blob.size), digest, path)


_ENCODERS: dict[type, Any] = {
    Calls: _encode_calls,
    Accepted: _encode_accepted,
    End: _encode_end,
    Ready: _encode_json,
    LoadFailed: _encode_json,
    Done: _encode_done,
    Busy: _encode_busy,
    Replace: _encode_json,
}
_JSON_OPS: dict[type, int] = {Ready: READY, LoadFailed: LOAD_FAILED, Replace: REPLACE}

# ------------------------------------------------------------------------------------------------------------- decode


class Splitter:
    """Cuts the bytes of one connection, fed in pieces of any size, into frames. Owned by one reader."""

    def __init__(self) -> None:
        self._pending = bytearray()
        self._needed_bytes = _HEADER.size

    def feed(self, data: bytes) -> list[Frame]:
        """Takes the next bytes, and returns the frames that they complete.

        Raises WireError on bytes that are no frame; the splitter is of no use after that.
        """
        if self._pending:
            self._pending += data
            if len(self._pending) < self._needed_bytes:
                return []
            data = bytes(self._pending)
            self._pending = bytearray()
        frames: list[Frame] = []
        position, end = 0, len(data)
        self._needed_bytes = _HEADER.size
        while end - position >= _HEADER.size:
            length, op = _HEADER.unpack_from(data, position)
            if not 0 < length <= MAX_FRAME_BYTES:
                raise WireError(f"no frame has {length} bytes")
            self._needed_bytes = 4 + length
            if end - position < self._needed_bytes:
                break
            frames.append(_decode(op, data, position + _HEADER.size, position + self._needed_bytes))
            position += self._needed_bytes
            self._needed_bytes = _HEADER.size
        if position < end:
            self._pending += data[position:] if position else data
        return frames


def _decode(op: int, data: bytes, start: int, end: int) -> Frame:
    decoder = _DECODERS.get(op)
    if decoder is None:
        raise WireError(f"a frame of the unknown kind {op}: agent and runner are of different versions")
    try:
        frame, position = decoder(data, start, end)
    except (struct.error, IndexError, ValueError) as error:
        raise WireError(f"a frame of the kind {op} can't be read: {error}") from error
    if position != end:
        raise WireError(f"a frame of the kind {op} has {end - start} bytes, of which {position - start} were expected")
    return frame


def _decode_calls(data: bytes, at: int, end: int) -> tuple[Frame, int]:
    name, at = _read_name(data, at)
    method, at = _read_name(data, at)
    first, count, flags, many = _CALLS.unpack_from(data, at)
    blobs, at = _read_blobs(data, at + _CALLS.size, many)
    args, at = _read_many(data, at, count)
    return Calls(name, first, args, method, bool(flags & _STREAM), blobs), at


def _decode_done(data: bytes, at: int, end: int) -> tuple[Frame, int]:
    name, at = _read_name(data, at)
    first, count, spent_us, rss_bytes, many = _DONE.unpack_from(data, at)
    blobs, at = _read_blobs(data, at + _DONE.size, many)
    codes = data[at : at + count]
    items, at = _read_many(data, at + count, count)
    return Done(name, first, codes, items, blobs, spent_us, rss_bytes), at


def _decode_accepted(data: bytes, at: int, end: int) -> tuple[Frame, int]:
    name, at = _read_name(data, at)
    return Accepted(name, *_RANGE.unpack_from(data, at)), at + _RANGE.size


def _decode_busy(data: bytes, at: int, end: int) -> tuple[Frame, int]:
    name, at = _read_name(data, at)
    return Busy(name, *_RANGE.unpack_from(data, at)), at + _RANGE.size


def _decode_end(data: bytes, at: int, end: int) -> tuple[Frame, int]:
    return End(), at


def _decode_ready(data: bytes, at: int, end: int) -> tuple[Frame, int]:
    return Ready(read_object(data[at:end])), end


def _decode_load_failed(data: bytes, at: int, end: int) -> tuple[Frame, int]:
    return LoadFailed(read_object(data[at:end])), end


def _decode_replace(data: bytes, at: int, end: int) -> tuple[Frame, int]:
    return Replace(read_object(data[at:end])), end


def _read_name(data: bytes, at: int) -> tuple[str, int]:
    end = at + 1 + data[at]
    return str(data[at + 1 : end], "utf-8"), end


def _read_many(data: bytes, at: int, count: int) -> tuple[list[bytes], int]:
    lengths = struct.unpack_from(f"<{count}I", data, at)
    ends = list(accumulate(lengths, initial=at + 4 * count))
    return [data[start:end] for start, end in zip(ends, ends[1:])], ends[-1]  # noqa: B905, RUF007 Python 3.9


def _read_blobs(data: bytes, at: int, count: int) -> tuple[list[BlobPlace], int]:
    blobs: list[BlobPlace] = []
    for _ in range(count):
        digest_length, path_length, offset, size = _BLOB.unpack_from(data, at)
        middle = at + _BLOB.size + digest_length
        digest, path = str(data[at + _BLOB.size : middle], "ascii"), os.fsdecode(data[middle : middle + path_length])
        blobs.append(BlobPlace(digest, path, offset, size))
        at = middle + path_length
    return blobs, at


_DECODERS: dict[int, Any] = {
    CALLS: _decode_calls,
    ACCEPTED: _decode_accepted,
    END: _decode_end,
    READY: _decode_ready,
    LOAD_FAILED: _decode_load_failed,
    DONE: _decode_done,
    BUSY: _decode_busy,
    REPLACE: _decode_replace,
}


def read_object(data: bytes) -> dict[str, Any]:
    """The JSON object in `data`: the body of a frame, or a line of the control socket. Raises ValueError."""
    value = json.loads(data)
    if not isinstance(value, dict):
        raise WireError(f"JSON of a {type(value).__name__}, not of an object")
    return value


def write_object(value: dict[str, Any]) -> bytes:
    """A request or an answer for the control socket: one line."""
    return json.dumps(value).encode() + b"\n"

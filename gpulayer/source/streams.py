"""Streams that packs are read from."""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import httpx

__all__ = ["PARTS", "InBytes", "Pieces", "Stream", "Wakes", "body_of", "unpaced"]

_PIECE_BYTES = 1 << 19  # each step of Python between two of the system's lets go of a lock, and takes it again
_WAKE_BYTES = 1 << 18
_HERE = ("127.", "::1", "::ffff:127.")
_PACES, _PLAIN = b"bbr", b"reno"  # reno is there and allowed everywhere; nothing is lost on the way to oneself


PARTS = "gpulayer.parts"
"""An extension of requests: the body once more, as bytes and open files, of which all is sent. Without TLS
`gpulayer.source.direct` lets the system send these without a copy; elsewhere the request's `content` is sent."""


class Wakes:
    """How much has to have come before whoever waits for a socket is woken: of a large body, not each packet of it."""

    def __init__(self, plain: socket.socket | None) -> None:
        """`plain`: a socket without TLS, else nobody can tell how much will come; None for no such."""
        self._socket = plain if sys.platform == "linux" else None
        self._at = 1

    def at(self, size_bytes: int) -> None:
        """`size_bytes` will come at least: wake for many of them, or where they are few for each."""
        wanted = _WAKE_BYTES if size_bytes >= _WAKE_BYTES else 1
        if self._socket is not None and wanted != self._at:
            self._at = wanted
            with contextlib.suppress(OSError):  # it is closed
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wanted)


def unpaced(line: socket.socket) -> None:
    """Let bytes for this very machine go as they come. BBR, where it is the system's way, makes pauses between them.

    Harmless when repeated, and for a socket of another kind. Other machines are reached as the system wants it.
    """
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError):  # it is closed; or the system has no other way
        peer = line.getpeername()[0] if line.family in (socket.AF_INET, socket.AF_INET6) else ""
        if not peer.startswith(_HERE):
            return
        if line.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).startswith(_PACES):
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, _PLAIN)


class Pieces:
    """A stream that `read_pack` reads from, of pieces as they come; what came before an error is read before it.

    Args:
        more: gives the next piece, b'' at the end.
    """

    def __init__(self, more: Callable[[], bytes | memoryview]) -> None:
        self._more = more
        self._rest: bytes | memoryview = b""
        self._ended = False

    def read(self, size: int) -> bytes | memoryview:
        """At most `size` bytes, b'' at the end; what is no `bytes` holds until the next call. Raises as `more`."""
        if not self._rest and not self._ended:
            self._rest = self._more()
            self._ended = not self._rest
        data, self._rest = self._rest[:size], self._rest[size:]
        return data


class Stream(Protocol):
    """What can be read from: a binary file, or `Pieces`."""

    def read(self, size: int, /) -> bytes | memoryview:
        """At most `size` bytes, b'' at the end."""
        ...


class InBytes:
    """A stream for a library that takes nothing else."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def read(self, size: int) -> bytes:
        """At most `size` bytes, b'' at the end."""
        return bytes(self._stream.read(size))


def body_of(answer: httpx.Response) -> Pieces:
    """The body of an answer whose reading has not begun; each piece holds until the next one. Raises as httpx does."""
    fill: Any = answer.extensions.get("fill")  # of `gpulayer.source.direct`: the same memory is used again
    if fill is None:
        pieces = answer.iter_bytes()
        return Pieces(lambda: next(pieces, b""))
    memory = memoryview(bytearray(_PIECE_BYTES))
    return Pieces(lambda: memory[: fill(memory)])

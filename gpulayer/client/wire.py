"""A websocket over a blocking socket: `websockets`' own protocol, with nothing between it and the calling thread.

The library's threaded client has a thread of its own behind each connection; on the way of a cell's output that hop
costs more than all the parsing, so the thread that waits for output reads the socket itself.
"""

from __future__ import annotations

import socket
import threading
import urllib.parse
from collections.abc import Iterator

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidHandshake
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.uri import parse_uri

_READ_BYTES = 256 * 1024
_MAX_FRAME_BYTES = 16 * 1024 * 1024


class WireClosed(ConnectionError):
    """The connection is closed, by either side."""


class Wire:
    """One connection. One thread reads; any thread may send."""

    def __init__(self, url: str, token: str, *, timeout_s: float = 10.0):
        """Connect and shake hands. Raises OSError or `WireClosed`."""
        parts = urllib.parse.urlsplit(url)
        self._socket = socket.create_connection((parts.hostname or "", parts.port or 80), timeout=timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._lock = threading.Lock()
        self._partial: list[bytes] = []
        self._early: list[Frame] = []
        self._protocol = ClientProtocol(parse_uri(url.replace("http", "ws", 1)), max_size=_MAX_FRAME_BYTES)
        try:
            self._shake_hands(token)
        except BaseException:
            self._socket.close()
            raise
        self._socket.settimeout(None)

    def _shake_hands(self, token: str) -> None:
        request = self._protocol.connect()
        request.headers["Authorization"] = f"Bearer {token}"
        self._protocol.send_request(request)
        self._flush()
        while self._protocol.state is State.CONNECTING:
            data = self._socket.recv(_READ_BYTES)
            if not data:
                raise WireClosed("the control plane closed the connection")
            self._protocol.receive_data(data)
            if self._protocol.handshake_exc is not None:
                break
        error = self._protocol.handshake_exc
        if isinstance(error, InvalidHandshake):
            raise WireClosed(f"the control plane refused the connection: {error}") from error
        # What the other side said at once may have come with its response.
        self._early = [event for event in self._protocol.events_received() if isinstance(event, Frame)]

    def send(self, data: bytes) -> None:
        """Send one binary message. Raises `WireClosed`."""
        with self._lock:
            if self._protocol.state is not State.OPEN:
                raise WireClosed("the connection is closed")
            self._protocol.send_binary(data)
            self._flush()

    def messages(self) -> Iterator[bytes]:
        """The messages that come, until the connection ends; raises `WireClosed` then."""
        early, self._early = self._early, []
        for event in early:
            yield from self._take(event)
        while True:
            try:
                data = self._socket.recv(_READ_BYTES)
            except OSError as error:
                raise WireClosed(f"the connection broke: {error}") from error
            with self._lock:
                self._protocol.receive_data(data) if data else self._protocol.receive_eof()
                events = self._protocol.events_received()
                try:
                    self._flush()
                except OSError as error:
                    raise WireClosed(f"the connection broke: {error}") from error
            for event in events:
                if isinstance(event, Frame):
                    yield from self._take(event)
            if not data or self._protocol.state is State.CLOSED:
                raise WireClosed("the control plane closed the connection")

    def _take(self, frame: Frame) -> Iterator[bytes]:
        if frame.opcode not in (Opcode.BINARY, Opcode.TEXT, Opcode.CONT):
            return
        self._partial.append(bytes(frame.data))
        if frame.fin:
            message = self._partial[0] if len(self._partial) == 1 else b"".join(self._partial)
            self._partial = []
            yield message

    def _flush(self) -> None:
        for data in self._protocol.data_to_send():
            if data:
                self._socket.sendall(data)
            else:
                self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close at once; a thread in `messages` wakes."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # it was closed by the other side already
        finally:
            self._socket.close()

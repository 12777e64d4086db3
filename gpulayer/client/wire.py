"""A websocket over a blocking socket: `websockets`' own protocol, with nothing between it and the calling thread.

The library's threaded client has a thread of its own behind each connection; on the way of a cell's output that hop
costs more than all the parsing, so the thread that waits for output reads the socket itself.
"""

from __future__ import annotations

import selectors
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
    """One connection. One thread at a time reads; any thread may send."""

    def __init__(self, url: str, token: str, *, timeout_s: float = 10.0):
        """Connect and shake hands. Raises OSError or `WireClosed`."""
        parts = urllib.parse.urlsplit(url)
        self._socket = socket.create_connection((parts.hostname or "", parts.port or 80), timeout=timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._lock = threading.Lock()
        self._partial: list[bytes] = []
        self._over = False
        self._selector: selectors.BaseSelector | None = None
        self._protocol = ClientProtocol(parse_uri(url.replace("http", "ws", 1)), max_size=_MAX_FRAME_BYTES)
        try:
            self._shake_hands(token)
        except BaseException:
            self._socket.close()
            raise
        self._socket.settimeout(None)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._socket, selectors.EVENT_READ)

    def wakes_by(self, end: socket.socket) -> None:
        """Let `receive` return, too, when this end of a socket pair can be read."""
        if self._selector is not None:
            self._selector.register(end, selectors.EVENT_READ)

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
        self._early = self._messages()

    def send(self, data: bytes) -> None:
        """Send one binary message. Raises `WireClosed`."""
        with self._lock:
            if self._protocol.state is not State.OPEN:
                raise WireClosed("the connection is closed")
            self._protocol.send_binary(data)
            self._flush()

    def messages(self) -> Iterator[bytes]:
        """The messages that come, until the connection ends; raises `WireClosed` then."""
        while True:
            yield from self.receive()

    def receive(self, timeout_s: float | None = None) -> list[bytes]:
        """What has come, at the latest after `timeout_s`; often nothing. Raises `WireClosed` at the end."""
        early, self._early = self._early, []
        if early:
            return early
        if self._over or self._selector is None:
            raise WireClosed("the connection is closed")
        ready = [key.fileobj for key, _ in self._selector.select(timeout_s)]
        for end in ready:
            if isinstance(end, socket.socket) and end is not self._socket:
                end.recv(_READ_BYTES)
        return self._read() if self._socket in ready else []

    def _read(self) -> list[bytes]:
        try:
            data = self._socket.recv(_READ_BYTES)
        except OSError as error:
            self._over = True
            raise WireClosed(f"the connection broke: {error}") from error
        with self._lock:
            self._protocol.receive_data(data) if data else self._protocol.receive_eof()
            messages = self._messages()
            try:
                self._flush()
            except OSError as error:
                self._over = True
                raise WireClosed(f"the connection broke: {error}") from error
        self._over = not data or self._protocol.state is State.CLOSED
        if self._over and not messages:
            raise WireClosed("the control plane closed the connection")
        return messages

    def _messages(self) -> list[bytes]:
        messages: list[bytes] = []
        for frame in self._protocol.events_received():
            if not isinstance(frame, Frame) or frame.opcode not in (Opcode.BINARY, Opcode.TEXT, Opcode.CONT):
                continue
            self._partial.append(bytes(frame.data))
            if frame.fin:
                messages.append(self._partial[0] if len(self._partial) == 1 else b"".join(self._partial))
                self._partial = []
        return messages

    def _flush(self) -> None:
        for data in self._protocol.data_to_send():
            if data:
                self._socket.sendall(data)
            else:
                self._socket.shutdown(socket.SHUT_WR)

    def hang_up(self) -> None:
        """End the connection, from any thread; whoever reads is told."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # it was closed by the other side already

    def close(self) -> None:
        """End the connection and give its descriptors back; for whoever reads, or once nobody does."""
        self.hang_up()
        self._socket.close()
        if self._selector is not None:
            self._selector.close()
            self._selector = None

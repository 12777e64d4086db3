"""A websocket over a blocking socket: `websockets`' own protocol, with nothing between it and the calling thread.

The library's threaded client has a thread of its own behind each connection; on the way of a cell's output that hop
costs more than all the parsing, so the thread that waits for output reads the socket itself.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import ssl
import threading
import urllib.parse
from collections.abc import Iterator

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidHandshake, InvalidStatus
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.uri import parse_uri

from gpulayer.client.errors import ControlPlaneError
from gpulayer.protocol.pin import dial
from gpulayer.protocol.problems import ENDED_TOKENS, problem_in

_READ_BYTES = 256 * 1024
_MAX_FRAME_BYTES = 16 * 1024 * 1024


class WireClosed(ConnectionError):
    """The connection is closed, by either side."""


def _refusal(error: InvalidHandshake) -> Exception:
    """Why the control plane would not have us: for good where it knows the token, and that it may not."""
    problem = None
    if isinstance(error, InvalidStatus):
        problem = problem_in(error.response.headers.get("Content-Type", ""), bytes(error.response.body or b""))
    if problem is None:
        return WireClosed(f"the control plane refused the connection: {error}")
    if problem.status == 403 or problem.code in ENDED_TOKENS:
        return ControlPlaneError(problem.line())
    return WireClosed(f"the control plane refused the connection: {error}: {problem.line()}")


class _Tls:
    """TLS apart from its socket, whose bytes go through here: so a selector tells all there is to know of a socket,
    and none of its calls waits for what is a part of a record. The caller sees to it that one thread at a time is here.
    """

    def __init__(self, context: ssl.SSLContext, host: str):
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)

    def shake_hands(self, plain: socket.socket) -> None:
        """Raises OSError, such as `SSLCertVerificationError`: nothing but handshakes was sent until then."""
        while True:
            try:
                self._object.do_handshake()
            except ssl.SSLWantReadError:
                self._send(plain)
                data = plain.recv(_READ_BYTES)
                if not data:
                    raise WireClosed("the other side closed the connection while TLS was agreed on") from None
                self._incoming.write(data)
            except OSError:
                with contextlib.suppress(OSError):
                    self._send(plain)  # the other side is told why
                raise
            else:
                self._send(plain)
                return

    def _send(self, plain: socket.socket) -> None:
        if self._outgoing.pending:
            plain.sendall(self._outgoing.read())

    def decrypt(self, data: bytes) -> tuple[bytes, bool]:
        """What these bytes bring, and whether they are the last. Raises OSError for what is no TLS."""
        self._incoming.write(data) if data else self._incoming.write_eof()
        parts: list[bytes] = []
        while True:
            try:
                part = self._object.read(_READ_BYTES)
            except ssl.SSLWantReadError:
                return b"".join(parts), False
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return b"".join(parts), True
            if not part:
                return b"".join(parts), True
            parts.append(part)

    def encrypt(self, data: bytes) -> bytes:
        """What goes over the socket for this, and for what else TLS has to say."""
        if data:
            self._object.write(data)
        return self._outgoing.read()


class Wire:
    """One connection. One thread at a time reads; any thread may send."""

    def __init__(self, url: str, token: str, *, timeout_s: float = 10.0, tls: ssl.SSLContext | None = None):
        """Connect and shake hands.

        Arguments:
            url: http or https, with the path.
            tls: what is trusted with https; None: what the system trusts.

        Raises OSError, `WireClosed`, or `ControlPlaneError` where the token is known, and may not do this.
        """
        self._socket = dial(url, timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._tls: _Tls | None = None
        self._lock = threading.Lock()
        self._partial: list[bytes] = []
        self._over = False
        self._selector: selectors.BaseSelector | None = None
        self._protocol = ClientProtocol(parse_uri(url.replace("http", "ws", 1)), max_size=_MAX_FRAME_BYTES)
        try:
            if url.startswith("https:"):
                self._tls = _Tls(tls or ssl.create_default_context(), urllib.parse.urlsplit(url).hostname or "")
                self._tls.shake_hands(self._socket)
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
            data, ended = self._decrypted(self._socket.recv(_READ_BYTES))
            if data:
                self._protocol.receive_data(data)
            if self._protocol.handshake_exc is None and ended:
                self._protocol.receive_eof()  # a refusal without a length ends so
                if self._protocol.handshake_exc is None:
                    raise WireClosed("the control plane closed the connection")
            if self._protocol.handshake_exc is not None:
                break
        error = self._protocol.handshake_exc
        if isinstance(error, InvalidHandshake):
            raise _refusal(error) from error
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
            try:
                data, ended = self._decrypted(data)
                if data:
                    self._protocol.receive_data(data)
                if ended:
                    self._protocol.receive_eof()
                messages = self._messages()
                self._flush()
            except OSError as error:
                self._over = True
                raise WireClosed(f"the connection broke: {error}") from error
        self._over = ended or self._protocol.state is State.CLOSED
        if self._over and not messages:
            raise WireClosed("the control plane closed the connection")
        return messages

    def _decrypted(self, data: bytes) -> tuple[bytes, bool]:
        """What came, in the clear, and whether nothing follows."""
        return (data, not data) if self._tls is None else self._tls.decrypt(data)

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
        half_closed = False
        for data in self._protocol.data_to_send():
            if data:
                self._socket.sendall(data if self._tls is None else self._tls.encrypt(data))
            else:
                half_closed = True
        if self._tls is not None and (said := self._tls.encrypt(b"")):
            self._socket.sendall(said)  # such as an answer to a change of keys
        if half_closed:
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

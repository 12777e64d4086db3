"""A transport for `httpx` that moves large bodies with few copies: httpx's own takes five times the CPU for a body.

It speaks HTTP/1.1, over connections that are kept. A request's body is given to the socket as it is, a mapped file as
well as bytes; an answer's body comes in pieces as large as the socket has them.
"""

from __future__ import annotations

import contextlib
import http.client
import select
import socket
import ssl
import threading
import urllib.parse
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO

import httpx

from gpulayer.protocol.pin import dial
from gpulayer.source.streams import PARTS, Wakes, unpaced

__all__ = ["Direct"]

_PIECE_BYTES = 1 << 18
_AHEAD_BYTES = 1 << 17  # at most so much of a body has been read already, with its head
_MORE = getattr(socket, "MSG_MORE", 0)
_IDLE = 8  # connections that are kept
_CONNECT_S = 30.0


class Direct(httpx.BaseTransport):
    """Requests to one address, as far as to the control plane. Any number of threads may use it."""

    def __init__(self, url: str, tls: ssl.SSLContext | None):
        """`tls` is what connections trust; None for plain http."""
        self._url = url
        self._host = urllib.parse.urlsplit(url).hostname
        self._tls = tls
        self._idle: list[socket.socket] = []
        self._busy: set[socket.socket] = set()
        self._lock = threading.Lock()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """The answer; its body is read as it is iterated. Raises `httpx.TransportError`."""
        times = request.extensions.get("timeout", {})
        connect_s, read_s, write_s = times.get("connect", _CONNECT_S), times.get("read"), times.get("write")
        head = _head_of(request)
        with _as_httpx(httpx.ConnectError, httpx.ConnectTimeout, request):
            line = self._kept() or self._new(connect_s)
        with self._lock:
            self._busy.add(line)
        try:
            answer = http.client.HTTPResponse(line, method=request.method)
            with _as_httpx(httpx.WriteError, httpx.WriteTimeout, request):
                line.settimeout(write_s)
                self._send(line, head, request)
            with _as_httpx(httpx.ReadError, httpx.ReadTimeout, request):
                line.settimeout(read_s)
                answer.begin()
        except BaseException:
            self._drop(line)
            raise
        body = _Answer(request, answer, None if self._tls else line, lambda whole: self._done(line, answer, whole))
        return httpx.Response(answer.status, headers=answer.getheaders(), stream=body, extensions={"fill": body.fill})

    def _send(self, line: socket.socket, head: bytes, request: httpx.Request) -> None:
        """The whole request. Where the other side stops reading it, it has answered already, or it is gone."""
        parts = request.extensions.get(PARTS) if self._tls is None else None
        try:
            if parts is None:
                _send_stream(line, head, request)
            else:
                _send_parts(line, head, parts)
        except (BrokenPipeError, ConnectionResetError):
            if not select.select([line], [], [], 0)[0]:
                raise

    def close(self) -> None:
        """Close all connections: whoever waits for one, in any thread, meets its end."""
        with self._lock:
            idle, self._idle = self._idle, []
            for line in self._busy:
                with contextlib.suppress(OSError):
                    line.shutdown(socket.SHUT_RDWR)
        for line in idle:
            line.close()

    def _drop(self, line: socket.socket) -> None:
        with self._lock:
            self._busy.discard(line)
        line.close()

    def _kept(self) -> socket.socket | None:
        """A connection that is still open."""
        while True:
            with self._lock:
                if not self._idle:
                    return None
                line = self._idle.pop()
            if not select.select([line], [], [], 0)[0]:
                return line
            line.close()  # the other side has: nothing else comes without a request

    def _new(self, timeout_s: float | None) -> socket.socket:
        line = dial(self._url, _CONNECT_S if timeout_s is None else timeout_s)
        try:
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            unpaced(line)
            return line if self._tls is None else self._tls.wrap_socket(line, server_hostname=self._host)
        except BaseException:
            line.close()
            raise

    def _done(self, line: socket.socket, answer: http.client.HTTPResponse, whole: bool) -> None:
        answer.close()
        if whole and not answer.will_close:
            with self._lock:
                if len(self._idle) < _IDLE:
                    self._busy.discard(line)
                    self._idle.append(line)
                    return
        self._drop(line)


class _Answer(httpx.SyncByteStream):
    """An answer's body. `done` is told whether all of it was read."""

    def __init__(
        self,
        request: httpx.Request,
        answer: http.client.HTTPResponse,
        plain: socket.socket | None,
        done: Callable[[bool], None],
    ):
        """`plain` is the connection, where its bytes are the body's."""
        self._request = request
        self._answer = answer
        self._length = answer.length
        self._got = 0
        self._wakes = Wakes(plain)
        self._done: Callable[[bool], None] | None = done

    def __iter__(self) -> Iterator[bytes]:
        """The bytes, as they come. Raises `httpx.TransportError`."""
        while True:
            with _as_httpx(httpx.ReadError, httpx.ReadTimeout, self._request):
                data = self._answer.read1(_PIECE_BYTES)
            if not data:
                self._check_end()
                return
            self._got += len(data)
            yield data

    def fill(self, target: memoryview) -> int:
        """Read into memory that is there, as much as comes at once or more; 0 at the end. Raises as iterating does."""
        with _as_httpx(httpx.ReadError, httpx.ReadTimeout, self._request):
            # what comes after this piece must be enough: else nothing would ever wake us
            self._wakes.at((self._length or 0) - self._got - len(target) - _AHEAD_BYTES)
            count = self._answer.readinto(target)
        self._got += count
        if not count:
            self._check_end()
        return count

    def _check_end(self) -> None:
        if self._length is not None and self._got < self._length:
            text = f"the connection ended after {self._got} of {self._length} bytes"
            raise httpx.RemoteProtocolError(text, request=self._request)

    def close(self) -> None:
        """Keep the connection where the body was read to its end, else close it."""
        done, self._done = self._done, None
        self._wakes.at(0)
        if done is not None:
            done(self._answer.isclosed() or self._answer.length == 0)


def _head_of(request: httpx.Request) -> bytes:
    lines = [b"%s %s HTTP/1.1" % (request.method.encode("ascii"), request.url.raw_path)]
    lines += [b"%s: %s" % pair for pair in request.headers.raw]
    if any(b"\r" in each or b"\n" in each for each in lines):
        raise httpx.LocalProtocolError("a header with a line break", request=request)
    return b"\r\n".join([*lines, b"", b""])


def _send_stream(line: socket.socket, head: bytes, request: httpx.Request) -> None:
    body: Iterable[bytes] = request.stream  # type: ignore[assignment]
    chunked = "Transfer-Encoding" in request.headers
    pending = head
    for piece in body:
        if chunked and len(piece):
            line.sendall(b"%s%x\r\n" % (pending, len(piece)))
            line.sendall(piece)
            pending = b"\r\n"
        elif len(piece) < _PIECE_BYTES // 4:
            line.sendall(pending + piece)
            pending = b""
        else:
            if pending:
                line.sendall(pending)
                pending = b""
            line.sendall(piece)
    line.sendall(pending + b"0\r\n\r\n" if chunked else pending)


def _send_parts(line: socket.socket, head: bytes, parts: Iterable[bytes | BinaryIO]) -> None:
    pending = head
    for part in parts:
        if isinstance(part, bytes):
            pending += part
        else:
            line.sendall(pending, _MORE)  # with the first of the file
            pending = b""
            line.sendfile(part)
    line.sendall(pending)


@contextlib.contextmanager
def _as_httpx(
    kind: type[httpx.TransportError], slow: type[httpx.TransportError], request: httpx.Request
) -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise slow(str(error) or "timed out", request=request) from error
    except http.client.HTTPException as error:
        text = f"no answer of HTTP came ({str(error) or type(error).__name__})"
        raise httpx.RemoteProtocolError(text, request=request) from error
    except OSError as error:
        raise kind(str(error) or type(error).__name__, request=request) from error

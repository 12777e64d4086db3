"""The control socket's thread: answers what a runner holds, and takes calls back, whatever the main thread does."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable
from typing import Any

from . import wire
from .link import listen

_LONGEST_LINE = 64 * 1024


class Control(threading.Thread):
    """Accepts connections of both sockets, and answers requests, one line each."""

    def __init__(self, path: str, answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        """Listens at `path`. `answer` makes the answer to a request. Raises OSError."""
        super().__init__(name="gpulayer control", daemon=True)
        self._answer = answer
        self._poll = select.poll()
        self._ready: dict[int, Callable[[], None]] = {}
        self._lines: dict[int, bytes] = {}
        self._open: dict[int, socket.socket] = {}
        self._listener = listen(path)
        self.watch(self._listener, self._accept)

    def watch(self, end: socket.socket, ready: Callable[[], None]) -> None:
        """Has `ready` called whenever there is something to read at `end`. Before the thread is started only."""
        self._ready[end.fileno()] = ready
        self._open[end.fileno()] = end
        self._poll.register(end.fileno(), select.POLLIN)

    def run(self) -> None:
        """Serves until the process ends."""
        while True:
            for fd, _ in self._poll.poll():
                self._ready[fd]()

    def close_in_child(self) -> None:
        """In a forked child: the sockets are the parent's."""
        for end in self._open.values():
            end.close()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):  # it left before we came
            return
        connection.setblocking(True)
        self._lines[connection.fileno()] = b""
        self.watch(connection, lambda: self._read(connection))

    def _read(self, connection: socket.socket) -> None:
        try:
            data = connection.recv(_LONGEST_LINE, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        *lines, rest = (self._lines[connection.fileno()] + data).split(b"\n")
        if not data or len(rest) > _LONGEST_LINE:
            self._drop(connection)
            return
        self._lines[connection.fileno()] = rest
        try:
            for line in lines:
                connection.sendall(wire.write_object(self._answer_to(line)))
        except OSError:  # it did not wait for the answer
            self._drop(connection)

    def _answer_to(self, line: bytes) -> dict[str, Any]:
        try:
            return self._answer(wire.read_object(line))
        except (ValueError, TypeError, KeyError) as error:
            return {"error": f"the request can't be read: {type(error).__name__}: {error}"}

    def _drop(self, connection: socket.socket) -> None:
        fd = connection.fileno()
        self._poll.unregister(fd)
        del self._ready[fd], self._lines[fd], self._open[fd]
        connection.close()

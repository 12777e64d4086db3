"""The agent's own way into the kernel: a unix socket that the main thread's loop reads.

A request on the shell channel wakes five threads before the code runs, ipykernel's and ZeroMQ's; here it wakes one.
The messages are the same, signed, each as one KERNEL record. Nothing is answered: the spool says all.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from typing import Any

import zmq

from .outstream import report

PORT = 6  # after the five channels of Jupyter: the socket's path is made like theirs
_READ_BYTES = 256 * 1024


class Direct:
    """Listens at `path` until it is closed, and hands each message's frames to `dispatch`."""

    def __init__(
        self, path: str, loop: asyncio.AbstractEventLoop, records: Any, dispatch: Callable[[list[Any]], None]
    ) -> None:
        self._loop = loop
        self._records = records
        self._dispatch = dispatch
        self._open: list[socket.socket] = []
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(path)
        os.chmod(path, 0o600)
        listener.listen()
        self._add(listener, lambda: self._accept(listener))

    def close(self) -> None:
        """Take nothing any more: whoever writes here sees the end, and uses the shell channel."""
        while self._open:
            self._drop(self._open[-1])

    def _add(self, end: socket.socket, ready: Callable[[], None]) -> None:
        end.setblocking(False)
        self._open.append(end)
        self._loop.add_reader(end, ready)

    def _drop(self, end: socket.socket) -> None:
        self._open.remove(end)
        self._loop.remove_reader(end)
        end.close()

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except BlockingIOError:  # it left before we came
            return
        splitter = self._records.Splitter()
        self._add(connection, lambda: self._read(connection, splitter))

    def _read(self, connection: socket.socket, splitter: Any) -> None:
        try:
            data = connection.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            report(f"a connection broke: {error}")
            data = b""
        if not data:
            self._drop(connection)
            return
        try:
            for _, _, body in splitter.feed(data):
                self._dispatch([zmq.Frame(part) for part in self._records.decode_kernel(body)])
        except self._records.RecordError as error:
            report(f"a request can't be read: {error}")
            self._drop(connection)

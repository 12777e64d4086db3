"""The data connection: read by the main thread when nothing runs, by the control thread when somebody asks."""

from __future__ import annotations

import errno
import os
import select
import socket
import threading
from collections.abc import Callable
from typing import Any, NoReturn

from . import wire

_READ_BYTES = 256 * 1024


class Link:
    """One connection at a time; owns it, and what was read of it."""

    def __init__(self, path: str, take: Callable[[Any], None]) -> None:
        """Listens at `path`; `take` gets each frame. Raises OSError where nobody can listen there."""
        self.listener = listen(path)
        self._take = take
        self._reading = threading.Lock()  # so what one reads, it has also given on when the next one looks
        self._sending = threading.Lock()
        self._connection: socket.socket | None = None
        self._splitter = wire.Splitter()
        self._hello: bytes | None = None
        self._greeted: socket.socket | None = None  # whose first frames are written
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)

    def send(self, frame: bytes) -> None:
        """Writes a frame, once the connection has been greeted; without one, the next will get it with the greeting."""
        with self._sending:
            if self._greeted is not None and self._greeted is self._connection:
                self._write(frame)

    def greet_all(self, hello: bytes, frames: Callable[[], list[bytes]]) -> None:
        """From now on each connection begins with `hello`, then `frames`; so does the one that is there."""
        with self._sending:
            self._hello = hello
            self._say_hello(frames)

    def accept(self, frames: Callable[[], list[bytes]]) -> None:
        """Takes a new connection, and closes the one before."""
        try:
            connection, _ = self.listener.accept()
        except (BlockingIOError, ConnectionError):  # it left before we came
            return
        connection.setblocking(True)
        self.drop()
        with self._reading:
            self._connection, self._splitter = connection, wire.Splitter()
        self.wake()
        # A thread of its own: whoever connects may ask at the control socket before it reads here.
        threading.Thread(target=self._greet, args=(connection, frames), name="gpulayer greeting", daemon=True).start()

    def wake(self) -> None:
        """Has `wait` return."""
        try:
            os.write(self._wake_write, b"\0")
        except BlockingIOError:
            pass  # it is awake

    def wait(self) -> None:
        """Returns when there may be something to read or to do."""
        poll = select.poll()
        poll.register(self._wake_read, select.POLLIN)
        connection = self._connection
        if connection is not None and connection.fileno() >= 0:
            poll.register(connection.fileno(), select.POLLIN)
        for fd, _ in poll.poll():
            if fd == self._wake_read:
                try:
                    os.read(self._wake_read, 4096)
                except BlockingIOError:
                    pass

    def read(self) -> bool:
        """Takes what has arrived, and does not wait; returns whether there was anything."""
        with self._reading:
            connection = self._connection
            if connection is None:
                return False
            try:
                data = connection.recv(_READ_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return False
            except OSError as error:
                self._lost(connection, error)
                return False
            if not data:
                self._lost(connection, None)
                return False
            try:
                for frame in self._splitter.feed(data):
                    self._take(frame)
            except wire.WireError as error:
                os.write(2, f"gpulayer runner: {error}\n".encode())
                self._lost(connection, None)
            return True

    def drop(self) -> None:
        """Closes the connection, if there is one: whoever is at its other end connects anew."""
        connection = self._connection
        if connection is not None:
            self._lost(connection, None)

    def close_in_child(self) -> None:
        """In a forked child: the connections are the parent's."""
        for end in (self.listener, self._connection):
            if end is not None:
                end.close()

    def _greet(self, connection: socket.socket, frames: Callable[[], list[bytes]]) -> None:
        with self._sending:
            if connection is self._connection and connection is not self._greeted:
                self._say_hello(frames)

    def _say_hello(self, frames: Callable[[], list[bytes]]) -> None:
        if self._hello is not None and self._connection is not None:
            self._greeted = self._connection
            self._write(b"".join((self._hello, *frames())))

    def _write(self, data: bytes) -> None:
        connection = self._connection
        if connection is None:
            return
        try:
            connection.sendall(data)
        except OSError as error:
            self._lost(connection, error)
        except BaseException:  # a signal handler of the user's: some of it may be written
            self._lost(connection, None)
            raise

    def _lost(self, connection: socket.socket, error: OSError | None) -> None:
        if error is not None and error.errno == errno.EBADF and connection.fileno() >= 0:
            give_up()
        if self._connection is connection:
            self._connection = None
        try:
            connection.shutdown(socket.SHUT_RDWR)  # whoever is writing to it gets an error
        except OSError:
            pass  # the other side was faster
        connection.close()


def give_up() -> NoReturn:
    """Ends the process, which nobody can reach any more."""
    os.write(2, b"gpulayer runner: a call has closed file descriptors that are not its own\n")
    os._exit(70)


def listen(path: str) -> socket.socket:
    """A unix socket that listens at `path`, for this user alone. Raises OSError."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    os.chmod(path, 0o600)
    listener.listen(16)
    listener.setblocking(False)
    return listener

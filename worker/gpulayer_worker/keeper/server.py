"""The keeper's socket: requests and replies as JSON lines, and events pushed to every client."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import stat
import struct

from gpulayer_worker.keeper.eventloop import READ, WRITE
from gpulayer_worker.keeper.records import read_json, remove

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from gpulayer_worker.keeper.context import Context

    Handler = Callable[[dict[str, Any], Callable[[dict[str, Any]], None]], None]

SOCKET_NAME = "keeper.sock"
CLIENT_LIMIT = 32  # there is one agent, and sometimes a person who looks in
REQUEST_LIMIT_BYTES = 8 << 20
BACKLOG_LIMIT_BYTES = 8 << 20  # of a client that does not read: it is dropped, and asks `list` when it returns

_RUN_FOLDER_TRIES = 100


def make_run_folder(data_keeper_json: str) -> str:
    """A short folder (mode 0700) for sockets: the one that an earlier keeper recorded if it is still ours, else new.

    Short, because a unix socket's path may have 104 bytes at most, and kernels put theirs beside the keeper's.
    """
    recorded = (read_json(data_keeper_json) or {}).get("run_dir")
    if isinstance(recorded, str) and _is_ours(recorded):
        return recorded
    for _ in range(_RUN_FOLDER_TRIES):
        path = f"/tmp/gpul-{os.urandom(4).hex()}"
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
            return path
    raise FileExistsError("no free name for a folder /tmp/gpul-*: remove old ones")


def _is_ours(path: str) -> bool:
    try:
        status = os.lstat(path)
    except OSError:  # it is gone
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and stat.S_IMODE(status.st_mode) == 0o700


def peer_uid(connection: socket.socket) -> int:
    """The user at the other end of a unix socket."""
    if hasattr(socket, "SO_PEERCRED"):
        size = struct.calcsize("3i")
        return struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))[1]
    # macOS: struct xucred by LOCAL_PEERCRED (1) at SOL_LOCAL (0)
    return struct.unpack_from("2I", connection.getsockopt(0, 1, 76))[1]


class Server:
    """Listens in `run_folder` and hands each request to `handler(request, reply)`."""

    def __init__(self, context: Context, run_folder: str, handler: Handler) -> None:
        self._context = context
        self._handler = handler
        self._clients: set[Client] = set()
        self.run_folder = run_folder
        self.path = os.path.join(run_folder, SOCKET_NAME)
        # held for as long as we live: systemd-tmpfiles leaves a locked folder alone
        self._folder_fd = os.open(run_folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(self._folder_fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        remove(self.path)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.setblocking(False)
        self._listener.bind(self.path)
        os.chmod(self.path, 0o600)
        self._listener.listen(16)
        context.loop.add(self._listener.fileno(), READ, self._accept)

    def emit(self, event: dict[str, Any]) -> None:
        """Send an event to every client, at the next `flush`."""
        if self._clients:
            line = _line(event)
            for client in self._clients:
                client.add(line)

    def flush(self) -> None:
        """Send what there is for the clients, each with one write."""
        for client in list(self._clients):
            client.flush()

    def close(self) -> None:
        """Close all connections and remove the sockets and the folder."""
        for client in list(self._clients):
            client.close()
        self._context.loop.remove(self._listener.fileno())
        self._listener.close()
        with contextlib.suppress(OSError):  # somebody cleaned up, or keeps other files there
            for entry in os.scandir(self.run_folder):
                if stat.S_ISSOCK(entry.stat(follow_symlinks=False).st_mode):
                    os.unlink(entry.path)
            os.rmdir(self.run_folder)
        os.close(self._folder_fd)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:  # it left before we came, or no descriptor is free now
            return
        uid = peer_uid(connection)
        if len(self._clients) >= CLIENT_LIMIT:
            self._context.log(f"refused a connection: there are {CLIENT_LIMIT} already")
            connection.close()
        elif uid == os.getuid():
            self._clients.add(Client(self._context, connection, self._handler, self._clients.discard))
        else:
            self._context.log(f"refused a connection from user {uid}")
            connection.close()


class Client:
    """One connection."""

    def __init__(
        self, context: Context, connection: socket.socket, handler: Handler, on_close: Callable[[Client], None]
    ) -> None:
        self._context = context
        self._connection = connection
        self._handler = handler
        self._on_close = on_close
        self._received = bytearray()
        self._to_send = bytearray()
        self._closed = False
        self._waits = False  # for the other side to read
        connection.setblocking(False)
        context.loop.add(connection.fileno(), READ, self._ready)

    def add(self, line: bytes) -> None:
        """Something to send at the next `flush`."""
        if not self._closed:
            self._to_send += line

    def flush(self) -> None:
        """Send what was added, now or as the other side reads."""
        if self._to_send and not self._waits and not self._closed:
            self._send()

    def close(self) -> None:
        """Close the connection; harmless when it is closed."""
        if not self._closed:
            self._closed = True
            self._context.loop.remove(self._connection.fileno())
            self._connection.close()
            self._on_close(self)

    def _ready(self) -> None:
        if self._waits:
            self._send()
        if not self._closed:
            self._receive()

    def _send(self) -> None:
        try:
            sent = self._connection.send(self._to_send)
        except BlockingIOError:
            sent = 0
        except OSError:  # it is gone
            self.close()
            return
        del self._to_send[:sent]
        if len(self._to_send) > BACKLOG_LIMIT_BYTES:
            self._context.log("dropped a client that does not read")
            self.close()
        elif self._waits != bool(self._to_send):
            self._waits = not self._waits
            self._context.loop.add(self._connection.fileno(), READ | WRITE if self._waits else READ, self._ready)

    def _receive(self) -> None:
        try:
            part = self._connection.recv(1 << 18)
        except BlockingIOError:
            return
        except OSError:  # it is gone
            part = b""
        if not part:
            self.close()
            return
        self._received += part
        if b"\n" in part:
            *lines, rest = bytes(self._received).split(b"\n")
            self._received = bytearray(rest)
            for line in lines:
                self._request(line)
        if len(self._received) > REQUEST_LIMIT_BYTES:
            self._context.log("dropped a client whose request has no end")
            self.close()

    def _request(self, line: bytes) -> None:
        try:
            request = json.loads(line)
        except ValueError:
            request = None
        number = request.get("n") if isinstance(request, dict) else None
        if not isinstance(request, dict) or not isinstance(number, int):
            self.add(_line({"n": None, "ok": False, "error": 'a request is a JSON object with an integer "n"'}))
            return
        self._handler(request, lambda answer: self.add(_line({"n": number, **answer})))


def _line(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode("ascii") + b"\n"

"""The way to a control plane, which a test can hold up."""

from __future__ import annotations

import contextlib
import socket
import threading
from urllib.parse import urlsplit

from gpulayer.protocol.endpoint import Endpoint

_PIECE_BYTES = 65536


class Way:
    """Passes bytes between clients and a control plane. As a context manager it leaves no connection behind."""

    def __init__(self, endpoint: Endpoint):
        self._to = ("127.0.0.1", urlsplit(endpoint.url).port or 0)
        self._server = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self._free = threading.Event()
        self._free.set()
        self.stopped = threading.Event()
        self.stops_behind: bytes | None = None  # the next request that begins so arrives, and nothing after it
        url = f"http://127.0.0.1:{self._server.getsockname()[1]}"
        self.env = {"GPULAYER_URL": url, "GPULAYER_TOKEN": endpoint.token}
        threading.Thread(target=self._accept, daemon=True).start()

    def goes_on(self) -> None:
        """Nothing is held up any more."""
        self.stopped.clear()
        self._free.set()

    def close(self) -> None:
        """Nobody answers there any more."""
        for each in (self._server, *self._sockets):  # closing alone wakes nobody who waits there
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self.goes_on()

    def __enter__(self) -> Way:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                ours, _ = self._server.accept()
                theirs = socket.create_connection(self._to)
                self._sockets += [ours, theirs]
                for one, other in ((ours, theirs), (theirs, ours)):
                    threading.Thread(target=self._pass, args=(one, other, one is ours), daemon=True).start()

    def _pass(self, one: socket.socket, other: socket.socket, up: bool) -> None:
        with contextlib.suppress(OSError), one, other:
            while data := one.recv(_PIECE_BYTES):
                stops_behind = self.stops_behind
                if up and stops_behind is not None and stops_behind in data:
                    self.stops_behind = None
                    self._free.clear()
                    other.sendall(data)
                    self.stopped.set()
                    continue
                self._free.wait()
                other.sendall(data)

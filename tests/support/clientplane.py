"""A control plane's side of a client's socket, played by the tests."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve

from gpulayer.protocol.endpoint import Endpoint
from gpulayer.protocol.messages import (
    ClientHello,
    ClientMessage,
    ClientWelcome,
    ServerToClient,
    encode,
    from_client,
)

PATIENCE_S = 30


class Visit:
    """One connection of a client: what it sent, and a way to answer."""

    def __init__(self, socket: ServerConnection):
        self._socket = socket
        self.messages: queue.SimpleQueue[ClientMessage] = queue.SimpleQueue()
        self.gone = threading.Event()

    def next(self) -> ClientMessage:
        """The next message of the client."""
        return self.messages.get(timeout=PATIENCE_S)

    def say(self, *messages: ServerToClient) -> None:
        """One frame."""
        self._socket.send(encode(messages))

    def raw(self, data: bytes) -> None:
        """Anything."""
        self._socket.send(data)

    def leave(self) -> None:
        """Close the connection from this side."""
        self._socket.close()


class Plane:
    """Accepts clients; a test takes each by `visit`."""

    def __init__(self) -> None:
        self._visits: queue.SimpleQueue[Visit] = queue.SimpleQueue()
        self.paths: list[str] = []
        self.tokens: list[str | None] = []
        self.welcomes = True
        self.comms = False  # it knows messages to widgets
        self._server = serve(self._serve, "127.0.0.1", 0, max_size=None)
        port = self._server.socket.getsockname()[1]
        self.endpoint = Endpoint(url=f"http://127.0.0.1:{port}", token="secret", pid=1, version="0")
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def _serve(self, socket: ServerConnection) -> None:
        assert socket.request is not None
        self.paths.append(socket.request.path)
        self.tokens.append(socket.request.headers.get("Authorization"))
        visit = Visit(socket)
        self._visits.put(visit)
        try:
            for frame in socket:
                for message in from_client(frame if isinstance(frame, bytes) else frame.encode()):
                    if isinstance(message, ClientHello) and self.welcomes:
                        visit.say(ClientWelcome(version="9", epoch=3, comms=self.comms))
                    else:
                        visit.messages.put(message)
        except ConnectionClosed:
            pass  # the client, or the test, is gone
        finally:
            visit.gone.set()

    def visit(self, look_s: float = PATIENCE_S, over: Callable[[], bool] = lambda: True) -> Visit:
        """The next connection; looked for every `look_s` seconds, until it is `over`: raises queue.Empty then."""
        while True:
            try:
                return self._visits.get(timeout=look_s)
            except queue.Empty:
                if over():
                    raise

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._thread.join()

"""A control plane in this process, and the other ends of its sockets, played by hand."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.sync.client import ClientConnection, connect

from gpulayer.protocol.messages import (
    Assign,
    ClientHello,
    ClientMessage,
    ClientWelcome,
    Finished,
    Hello,
    Order,
    Output,
    Released,
    ServerMessage,
    ServerToClient,
    Started,
    Welcome,
    WorkerMessage,
    encode,
    to_client,
    to_worker,
)
from gpulayer.protocol.records import encode_text
from gpulayer.protocol.types import PROTOCOL_VERSION, Inventory, Outcome, State
from gpulayer_server.service import Service
from tests.support.maps import Runner
from tests.support.tokens import Joined

PATIENCE_S = 30
INVENTORY = Inventory(host="h", os="linux", arch="x", cpu_cores=1, ram_bytes=1, python="3")


class Plane:
    """The control plane, on a loop and a thread of its own."""

    def __init__(self, data: Path):
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.service = self.call(self._make(data))
        self.endpoint = self.call(self.service.start())

    async def _make(self, data: Path) -> Service:
        return Service(data)

    def call(self, coroutine: Any) -> Any:
        """Run a coroutine on the control plane's loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(PATIENCE_S)

    def do(self, function: Callable[[], Any]) -> Any:
        """Call a function on the control plane's loop."""

        async def on_loop() -> Any:
            return function()

        return self.call(on_loop())

    def request(self, method: str, path: str, **more: Any) -> httpx.Response:
        """A request with the token."""
        headers = {"Authorization": f"Bearer {self.endpoint.token}"} | more.pop("headers", {})
        url = self.endpoint.url + path
        return httpx.request(method, url, headers=headers, trust_env=False, verify=False, timeout=PATIENCE_S, **more)

    def socket(self, path: str, **options: Any) -> AbstractContextManager[ClientConnection]:
        """A websocket with the token."""
        url = self.endpoint.url.replace("http", "ws", 1) + path
        headers = {"Authorization": f"Bearer {self.endpoint.token}"}
        return connect(url, additional_headers=headers, proxy=None, max_size=None, close_timeout=1, **options)

    def close(self) -> None:
        """End it."""
        self.call(self.service.stop(with_local_worker=False))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Peer:
    """The other end of a socket: messages out, messages in."""

    def __init__(self, connecting: AbstractContextManager[ClientConnection]):
        self._connecting = connecting
        self.socket = connecting.__enter__()
        self._waiting: list[Any] = []

    def close(self) -> None:
        """Leave."""
        self._connecting.__exit__(None, None, None)

    def _decode(self, frame: bytes) -> list[Any]:
        raise NotImplementedError

    def next(self) -> Any:
        """The next message."""
        while not self._waiting:
            frame = self.socket.recv(timeout=PATIENCE_S)
            assert isinstance(frame, bytes)
            self._waiting += self._decode(frame)
        return self._waiting.pop(0)

    def until(self, kind: type[Any]) -> Any:
        """The next message of a kind; others are passed over."""
        while not isinstance(message := self.next(), kind):
            pass
        return message


class Worker(Peer):
    """A worker that does what the test says."""

    def __init__(
        self, plane: Plane, id: str = "w1", *, name: str = "alpha", nonce: str = "n", slots: int = 4, **held: Any
    ):
        super().__init__(plane.socket("/v1/worker"))
        self.order = Order()
        self.say(
            Hello(
                protocol=PROTOCOL_VERSION, worker_id=id, nonce=nonce, name=name, version="0", slots=slots,
                inventory=INVENTORY, **held,
            )
        )  # fmt: skip
        self.welcome: Welcome = self.until(Welcome)

    def _decode(self, frame: bytes) -> list[ServerMessage]:
        data = self.order.accept(frame)
        return to_worker(data) if data is not None else []

    def say(self, *messages: WorkerMessage) -> None:
        """One frame."""
        self.socket.send(self.order.number(messages))

    def assigned(self) -> Assign:
        """The next assignment."""
        return self.until(Assign)

    def print(self, attempt: str, text: str, offset: int = 0) -> int:
        """A record of an attempt's output; the offset after it."""
        data = encode_text(1, text.encode())
        self.say(Output(attempt=attempt, offset=offset, data=data))
        return offset + len(data)

    def begin(self, attempt: str) -> None:
        """The program runs."""
        self.say(Started(attempt=attempt))

    def finish(self, attempt: str, end: int, state: State = State.SUCCEEDED) -> None:
        """The attempt is over, with every process of it."""
        self.say(Finished(attempt=attempt, end_offset=end, outcome=Outcome(state=state)), Released(attempt=attempt))


class Client(Peer):
    """A client that does what the test says."""

    def __init__(self, plane: Plane, **options: Any):
        super().__init__(plane.socket("/v1/client", **options))
        self.say(ClientHello(protocol=PROTOCOL_VERSION, version="0"))
        self.welcome: ClientWelcome = self.until(ClientWelcome)

    def _decode(self, frame: bytes) -> list[ServerToClient]:
        return to_client(frame)

    def say(self, *messages: ClientMessage) -> None:
        """One frame."""
        self.socket.send(encode(messages))


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[Plane]:
    plane = Plane(tmp_path / "data")
    yield plane
    plane.close()


@pytest.fixture
def worker(plane: Plane) -> Iterator[Worker]:
    worker = Worker(plane)
    yield worker
    worker.close()


@pytest.fixture
def client(plane: Plane) -> Iterator[Client]:
    client = Client(plane)
    yield client
    client.close()


@pytest.fixture
def new_worker(plane: Plane) -> Iterator[Callable[..., Worker]]:
    """Makes further workers."""
    made: list[Worker] = []

    def new(*arguments: Any, **more: Any) -> Worker:
        made.append(Worker(plane, *arguments, **more))
        return made[-1]

    yield new
    for worker in made:
        worker.close()


@pytest.fixture
def new_client(plane: Plane) -> Iterator[Callable[..., Client]]:
    """Makes further clients."""
    made: list[Client] = []

    def new(**more: Any) -> Client:
        made.append(Client(plane, **more))
        return made[-1]

    yield new
    for client in made:
        client.close()


@pytest.fixture
def connected(plane: Any) -> Any:
    """Makes workers that are connected by their credentials."""
    opened: list[Joined] = []

    def new(*arguments: Any, **more: Any) -> Joined:
        opened.append(Joined(plane, *arguments, **more))
        return opened[-1]

    yield new
    for worker in opened:
        worker.close()


@pytest.fixture
def runner(worker: Any) -> Runner:
    return Runner(worker)

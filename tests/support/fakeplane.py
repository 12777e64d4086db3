"""A control plane that is played by hand, for a real worker: what it hears it keeps, what it says a test decides."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import msgspec
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve

from gpulayer.protocol.calls import (
    CallBatch,
    CallRange,
    Calls,
    CallsAccepted,
    CallsDone,
    CallsReturned,
    CallsSpec,
    FunctionSpec,
    Piece,
)
from gpulayer.protocol.endpoint import Endpoint
from gpulayer.protocol.messages import (
    Ack,
    Assign,
    Finished,
    Forget,
    Heartbeat,
    HeartbeatAck,
    Hello,
    Order,
    Output,
    Recorded,
    Released,
    ServerMessage,
    Started,
    Verdict,
    Welcome,
    WorkerMessage,
    from_worker,
)
from gpulayer.protocol.records import Splitter, decode_call
from gpulayer.protocol.types import JobSpec
from gpulayer.protocol.values import calls as values
from gpulayer.source.blobs import Blobs
from gpulayer_worker.keeper.spawning import KEEPER_VARIABLE
from tests.support.deployment import Worker
from tests.support.processes import MARKER, PATIENCE_S, marked, wait_for_end

T = TypeVar("T")

_OF_OTHERS = ("PYTEST", "GPULAYER", "JPY", "JUPYTER", "IPYTHON", "XDG_")


def function(source: str, name: str = "f", **more: Any) -> FunctionSpec:
    """A function of generated source, as a client would send it."""
    piece = Piece(filename="<test>", first_line=1, text=source, slot=name, defines=name, names=(name,))
    return FunctionSpec(name=name, qualname=name, pieces=(piece,), **more)


class FakePlane:
    """Listens, welcomes a worker, acknowledges its streams, accepts results (`accepts`), and keeps all it hears.

    As a context manager it leaves no process and no folder behind.
    """

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="gf", dir="/tmp"))  # short: paths of sockets are limited
        self.data = self.folder / "plane"
        self.blobs = Blobs(self.data / "blobs")
        self.accepts = True
        self.heard: list[WorkerMessage] = []
        self.hellos: list[Hello] = []
        self.texts: dict[str, bytes] = {}  # the streams, by attempt
        self.results: dict[tuple[str, int], tuple[int, bytes]] = {}  # the first of each call
        self.told = 0  # results, also those that were told again
        self.returned: list[CallsReturned] = []
        self.ends: dict[str, Finished] = {}
        self.begun: set[str] = set()
        self.refused: set[str] = set()  # attempts that are not to go on
        self._changed = threading.Condition()
        self._connection: ServerConnection | None = None
        self._order = Order()
        self._server = serve(self._converse, "127.0.0.1", 0, max_size=None, compression=None)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        port = self._server.socket.getsockname()[1]
        endpoint = Endpoint(url=f"http://127.0.0.1:{port}", token="t", pid=os.getpid(), version="0")
        (self.data / "endpoint.json").write_bytes(msgspec.json.encode(endpoint))
        self.run = uuid.uuid4().hex
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_OF_OTHERS)}
        self.env = kept | {MARKER: self.run, "HOME": str(self.folder)}
        self.worker: Worker | None = None

    def start_worker(self, *arguments: str, python: str = sys.executable) -> Worker:
        """A worker that was welcomed."""
        data = self.folder / "w"
        command = [sys.executable, "-m", "gpulayer_worker", "join", "--control-plane", str(self.data)]
        command += ["--data", str(data), "--name", "alpha", "--slots", "4", "--warm", "0", "--reserve-bytes", "0"]
        self.worker = Worker("alpha", data, [*command, "--python", python, *arguments], self.env)
        self.worker.start()
        self.until(lambda: self._connection is not None, "the worker")
        return self.worker

    # ---------------------------------------------------------------- what a test says

    def send(self, *messages: ServerMessage) -> None:
        """One frame."""
        with self._changed:
            if self._connection is not None:
                self._connection.send(self._order.number(messages))

    def assign(self, attempt: str, spec: CallsSpec, **more: Any) -> None:
        """An attempt of a job of calls."""
        self.send(Assign(attempt=attempt, job=attempt.split("-")[0], spec=JobSpec(calls=spec), **more))

    def call(self, attempt: str, name: str, first: int, *args: tuple[Any, ...], **more: Any) -> None:
        """Calls of a map, by their positional arguments."""
        packed: list[bytes] = []
        digests: list[str] = []
        for each in args:
            data, named = values.pack_call(each, {}, blob=self._put)
            packed.append(data)
            digests += named
        batch = CallBatch(map=name, first=first, args=tuple(packed), blobs=tuple(digests), **more)
        self.send(Calls(attempt=attempt, batches=(batch,)))

    def _put(self, data: memoryview) -> str:
        digest = hashlib.sha256(data).hexdigest()
        self.blobs.put(digest, [bytes(data)])
        return digest

    def accept(self, attempt: str, name: str, first: int, count: int = 1) -> None:
        """Results are committed."""
        self.send(CallsAccepted(attempt=attempt, ranges=(CallRange(map=name, first=first, count=count),)))

    def drop_connection(self) -> None:
        """The worker comes back with a new hello."""
        with self._changed:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    # ---------------------------------------------------------------- what it hears

    def until(self, condition: Callable[[], T | None], what: str = "it") -> T:
        """Wait until it has heard that."""
        with self._changed:
            if not self._changed.wait_for(condition, PATIENCE_S):
                log = self.worker.log if self.worker is not None else ""
                raise TimeoutError(f"waited for {what}; heard {self.heard[-5:]}\n{log}")
            return condition()  # type: ignore[return-value]

    def result(self, name: str, index: int = 0) -> Any:
        """Wait for the result of a call that went well, and give its value."""
        code, data = self.until(lambda: self.results.get((name, index)), f"the result of {name}:{index}")
        if code:
            raise AssertionError(f"{name}:{index} failed with {code}: {data!r}")
        return values.unpack(data, blob=lambda digest, size: self.blobs.read(digest))

    def failure(self, name: str, index: int = 0) -> tuple[int, dict[str, Any]]:
        """Wait for the result of a call that failed: its code, and what is said of it."""
        code, data = self.until(lambda: self.results.get((name, index)), f"the result of {name}:{index}")
        return code, msgspec.json.decode(data)

    def text(self, attempt: str) -> dict[tuple[str, int], str]:
        """What the calls of an attempt wrote to stdout and stderr, as far as it is here."""
        texts: dict[tuple[str, int], str] = {}
        for _, _, body in Splitter().feed(self.texts.get(attempt, b"")):
            name, index, _, data = decode_call(body)
            texts[name, index] = texts.get((name, index), "") + bytes(data).decode()
        return texts

    def _converse(self, connection: ServerConnection) -> None:
        order = Order()
        try:
            for frame in connection:
                data = order.accept(frame if isinstance(frame, bytes) else frame.encode())
                if data is not None:
                    self._hear(connection, from_worker(data))
        except ConnectionClosed:
            pass
        with self._changed:
            if self._connection is connection:
                self._connection = None
            self._changed.notify_all()

    def _hear(self, connection: ServerConnection, messages: list[WorkerMessage]) -> None:
        with self._changed:
            answers: list[ServerMessage] = []
            for message in messages:
                self._take(connection, message, answers)
            if answers and self._connection is connection:
                connection.send(self._order.number(answers))
            self.heard += messages
            self._changed.notify_all()

    def _take(self, connection: ServerConnection, message: WorkerMessage, answers: list[ServerMessage]) -> None:
        match message:
            case Hello():
                self._connection, self._order = connection, Order()
                self.hellos.append(message)
                answers.append(self._welcome(message))
            case Output(attempt=name, offset=offset, data=data):
                have = self.texts.get(name, b"")
                self.texts[name] = have + data[len(have) - offset :]
                answers.append(Ack(attempt=name, offset=len(self.texts[name])))
            case Started(attempt=name):
                self.begun.add(name)
            case CallsDone():
                self._done(message, answers)
            case CallsReturned():
                self.returned.append(message)
            case Finished(attempt=name, released=released):
                self.ends[name] = message
                answers.append(Forget(attempt=name) if released else Recorded(attempt=name))
            case Released(attempt=name):
                answers.append(Forget(attempt=name))
            case Heartbeat():
                answers.append(HeartbeatAck())
            case _:
                pass

    def _welcome(self, hello: Hello) -> Welcome:
        verdicts = tuple(
            Verdict(
                attempt=each.attempt,
                go_on=each.attempt not in self.refused,
                acked=len(self.texts.get(each.attempt, b"")),
            )
            for each in hello.attempts
        )
        return Welcome(epoch=1, heartbeat_s=2.0, lost_after_s=60.0, verdicts=verdicts)

    def _done(self, message: CallsDone, answers: list[ServerMessage]) -> None:
        for run in message.runs:
            self.told += len(run.codes)
            for place, (code, data) in enumerate(zip(run.codes, run.data, strict=True)):
                self.results.setdefault((run.map, run.first + place), (code, data))
        if self.accepts:
            ranges = tuple(CallRange(map=run.map, first=run.first, count=len(run.codes)) for run in message.runs)
            answers.append(CallsAccepted(attempt=message.attempt, ranges=ranges))

    # ---------------------------------------------------------------- the end

    def processes(self) -> dict[int, str]:
        """Every living process of the worker."""
        keys = {self.worker.key} if self.worker is not None else set[str]()
        return marked({MARKER: {self.run}, KEEPER_VARIABLE: keys}, self.folder)

    def close(self) -> None:
        """End everything, and fail where a process is left."""
        try:
            if self.worker is not None:
                self.worker.stop()
            for pid in self.processes():
                wait_for_end(pid, 10.0)
        finally:
            self._server.shutdown()
            for pid in self.processes():
                os.kill(pid, 9)
            shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> FakePlane:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

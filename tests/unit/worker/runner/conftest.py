"""A runner as an agent would hold it: started by path, spoken to over its sockets, read from its spool."""

from __future__ import annotations

import base64
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpulayer.protocol import failpoints, records
from gpulayer.protocol.calls import OK
from gpulayer.protocol.spool import SpoolReader
from gpulayer.protocol.values import calls
from gpulayer_worker.runner import wire

ROOT = Path(__file__).parents[4]
MAIN = ROOT / "worker" / "gpulayer_worker" / "runner" / "main.py"
PROTOCOL = ROOT / "gpulayer" / "protocol"
TIMEOUT_S = 60.0


class Agent:
    """A connection to a runner's data socket, and what came over it."""

    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(TIMEOUT_S)
        self.socket.connect(path)
        self.frames: list[Any] = []
        self._splitter = wire.Splitter()

    def send(self, *frames: Any) -> None:
        self.socket.sendall(b"".join(map(wire.encode, frames)))

    def next(self, kind: type, map_name: str | None = None) -> Any:
        """The next frame of a kind, and of a map, that was not returned yet; others are kept for later."""
        while True:
            for place, frame in enumerate(self.frames):
                if type(frame) is kind and map_name in (None, getattr(frame, "map", None)):
                    return self.frames.pop(place)
            data = self.socket.recv(1 << 16)
            if not data:
                raise EOFError("the runner closed the connection")
            self.frames += self._splitter.feed(data)

    def results(self, map_name: str, count: int) -> dict[int, tuple[int, bytes]]:
        """Code and bytes of so many results of a map, by index, as they come."""
        found: dict[int, tuple[int, bytes]] = {}
        while len(found) < count:
            done = self.next(wire.Done, map_name)
            for place, code in enumerate(done.codes):
                found[done.first + place] = (code, done.data[place])
        return found

    def close(self) -> None:
        self.socket.close()


class Runner:
    """A runner's process, and its sockets."""

    def __init__(self, folder: Path, source: str, **config: Any) -> None:
        """`source` is a module with a function `f`, or a class `F` where the config says stateful."""
        self.folder = folder
        self.bundle = folder / "bundle"
        self.bundle.mkdir()
        (folder / "results").mkdir()
        (self.bundle / "mine.py").write_text(source)
        self.agents: list[Agent] = []
        self._offset = 0
        self._splitter = records.Splitter()
        self.texts: list[tuple[str, int, int, int, bytes]] = []
        function = {"name": "f", "qualname": "F" if config.get("stateful") else "f", "module": "mine", "sys_path": [""]}
        self.config = {
            "function": function,
            "bundle": str(self.bundle),
            "protocol": str(PROTOCOL),
            "data_socket": str(folder / "d"),
            "control_socket": str(folder / "c"),
            "spool": str(folder / "spool"),
            "results": str(folder / "results"),
            "stdout": str(folder / "out"),
            "stderr": str(folder / "err"),
            "worker": "box",
            **config,
        }
        (folder / "config.json").write_text(json.dumps(self.config))
        environment = {**os.environ, failpoints.VARIABLE: str(folder)}
        with open(folder / "out", "ab") as out, open(folder / "err", "ab") as err:
            self.process = subprocess.Popen(
                [sys.executable, str(MAIN), str(folder / "config.json")],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    def connect(self) -> Agent:
        """A data connection, as soon as the runner listens."""
        self.agents.append(Agent(self.await_socket("d")))
        return self.agents[-1]

    def await_socket(self, name: str) -> str:
        path = str(self.folder / name)
        self.wait_until(lambda: os.path.exists(path) and _listens(path))
        return path

    def ask(self, **request: Any) -> dict[str, Any]:
        """The answer of the control socket."""
        with socket.socket(socket.AF_UNIX) as control:
            control.settimeout(TIMEOUT_S)
            control.connect(self.await_socket("c"))
            control.sendall(wire.write_object(request))
            with control.makefile("rb") as lines:
                return wire.read_object(lines.readline())

    def wait_until(self, holds: Callable[[], Any]) -> None:
        """Waits for something that nothing tells."""
        end = time.monotonic() + TIMEOUT_S
        while not holds():
            assert self.process.poll() is None, f"the runner ended: {self.errors()}"
            assert time.monotonic() < end, f"it did not happen: {self.errors()}"
            time.sleep(0.005)

    def errors(self) -> str:
        return (self.folder / "err").read_text()

    def written(self) -> list[tuple[str, int, int, int, bytes]]:
        """Records of the spool: map, index, kind, number, data."""
        reader = SpoolReader(self.folder / "spool")
        try:
            while data := reader.read(self._offset, 1 << 20):
                self._offset += len(data)
                for _, kind, body in self._splitter.feed(data):
                    name, index, number, text = records.decode_call(body)
                    self.texts.append((name, index, kind, number, bytes(text)))
        finally:
            reader.close()
        return self.texts

    def text(self, index: int, kind: int = records.Kind.CALL_STDOUT) -> bytes:
        """What a call has written to one of the streams."""
        return b"".join(data for _, at, of, _, data in self.written() if at == index and of == kind)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for agent in self.agents:
            agent.close()


def _listens(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return False
    return True


def packed(*args: Any, **kwargs: Any) -> bytes:
    """The arguments of a call."""
    return calls.pack_call(args, kwargs)[0]


def value(result: tuple[int, bytes]) -> Any:
    """The value of a good result."""
    assert result[0] == OK, result
    return calls.unpack(result[1])


def failure(result: tuple[int, bytes]) -> dict[str, Any]:
    """Why a result is none."""
    assert result[0] != OK, result
    return json.loads(result[1])


def base64_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


@pytest.fixture
def make_runner() -> Iterator[Callable[..., Runner]]:
    """Makes runners of a source, and ends them."""
    yield from _maker()


@pytest.fixture(scope="module")
def make_shared_runner() -> Iterator[Callable[..., Runner]]:
    """Likewise, for all tests of a file."""
    yield from _maker()


@pytest.fixture(scope="session")
def tools() -> Any:
    """Values to bytes and back."""
    return SimpleNamespace(packed=packed, value=value, failure=failure, base64_of=base64_of, pack=calls.pack)


def _maker() -> Iterator[Callable[..., Runner]]:
    made: list[Runner] = []

    def make(source: str, **config: Any) -> Runner:
        runner = Runner(Path(tempfile.mkdtemp(prefix="gplr", dir="/tmp")), source, **config)
        made.append(runner)
        return runner

    yield make
    for runner in made:
        runner.end()
        shutil.rmtree(runner.folder)

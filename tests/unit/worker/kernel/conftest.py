"""A kernel as an agent would hold it: started by path, spoken to over IPC, read from its spools."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import zmq
from jupyter_client.session import Session

from gpulayer.protocol import failpoints, records
from gpulayer.protocol.failpoints import Failpoint
from gpulayer.protocol.records import Kind, Splitter
from gpulayer.protocol.spool import SpoolReader

ROOT = Path(__file__).parents[4]
MAIN = ROOT / "worker" / "gpulayer_worker" / "kernel" / "main.py"
TIMEOUT_S = 60.0
ANSI = re.compile("\x1b\\[[0-9;]*m")


@dataclass
class Output:
    """What an attempt's spool holds, read again and again. Every record that is there is whole, or it raises."""

    folder: Path
    attempt: str
    messages: list[tuple[str, dict[str, Any], str | None]] = field(default_factory=list)  # type, content, parent's id
    others: list[tuple[int, dict[str, Any]]] = field(default_factory=list)  # REPLY and MARK records
    order: list[str] = field(default_factory=list)  # the types of the messages, and 'REPLY' and 'MARK'

    def __post_init__(self) -> None:
        self._reader = SpoolReader(self.folder)
        self._splitter = Splitter()
        self._offset = 0

    def read(self) -> Output:
        """Takes what is new."""
        while data := self._reader.read(self._offset, 1 << 20):
            self._offset += len(data)
            for _, kind, body in self._splitter.feed(data):
                self._take(kind, body)
        return self

    def _take(self, kind: int, body: memoryview) -> None:
        if kind != Kind.KERNEL:
            self.others.append((kind, records.decode_json(body)))
            self.order.append(Kind(kind).name)
            return
        header, parent, _, content = (json.loads(part) for part in records.decode_kernel(body)[:4])
        self.messages.append((header["msg_type"], content, parent.get("msg_id")))
        self.order.append(header["msg_type"])

    @property
    def ended(self) -> bool:
        """Whether the last message is the attempt's idle status."""
        last = self.messages[-1:]
        return last == [("status", {"execution_state": "idle"}, self.attempt)]

    @property
    def reply(self) -> dict[str, Any]:
        """The REPLY record."""
        [reply] = [value for kind, value in self.others if kind == Kind.REPLY]
        return reply

    def text(self, name: str = "stdout") -> str:
        """All text of a stream."""
        return "".join(piece for stream, piece in self.pieces() if stream == name)

    def pieces(self) -> list[tuple[str, str]]:
        """The stream messages, as (name, text)."""
        return [(content["name"], content["text"]) for kind, content, _ in self.messages if kind == "stream"]

    def error(self) -> tuple[str, str]:
        """The name of the exception in the one error message, and its traceback without colours."""
        [content] = [content for kind, content, _ in self.messages if kind == "error"]
        return content["ename"], ANSI.sub("", "\n".join(content["traceback"]))


class RemoteKernel:
    """A kernel's process, with the sockets of an agent. Owned by one test, or by a module for its quick tests."""

    def __init__(self, python: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="gk", dir="/tmp"))  # short: paths of sockets are limited
        self.cwd = self.folder / "work"
        self.cwd.mkdir()
        self.failpoints = self.folder / "fp"
        self.failpoints.mkdir()
        key = uuid.uuid4().hex
        connection: dict[str, Any] = {
            "transport": "ipc",
            "ip": str(self.folder / "k"),
            "key": key,
            "signature_scheme": "hmac-sha256",
        }
        for port, channel in enumerate(("shell", "iopub", "stdin", "control", "hb"), start=1):
            connection[f"{channel}_port"] = port
        (self.folder / "connection.json").write_text(json.dumps(connection))
        self.command = [python, str(MAIN), "--connection-file", str(self.folder / "connection.json")]
        for option in ("records", "failpoints"):
            self.command += [f"--{option}", str(ROOT / "gpulayer" / "protocol" / f"{option}.py")]
        self.env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
        self.env |= {failpoints.VARIABLE: str(self.failpoints), "JPY_PARENT_PID": "999999"}
        self.process: subprocess.Popen[bytes] | None = None
        self._session = Session(key=key.encode())
        self._context = zmq.Context()
        self._shell, self._control = (self._connect(port) for port in (1, 4))
        self._count = 0

    def _connect(self, port: int) -> Any:
        socket = self._context.socket(zmq.DEALER)
        socket.linger = 0
        socket.connect(f"ipc://{self.folder / 'k'}-{port}")
        return socket

    def start(self) -> RemoteKernel:
        with (self.folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                self.command, cwd=self.cwd, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        return self

    @property
    def log(self) -> str:
        """What the kernel wrote to the stdout and stderr that it was started with."""
        return (self.folder / "log").read_text(errors="replace")

    def send(self, code: str, *, attempt: str | None = None, metadata: bool = True, **asked: Any) -> Output:
        """Asks for an attempt, without waiting. `asked` overrides fields of the gpulayer object."""
        output, message = self._message(code, attempt, metadata, asked)
        self._session.send(self._shell, message)
        return output

    def request(self, code: str) -> tuple[Output, list[bytes]]:
        """An attempt that is not asked for yet, and the frames that ask for it."""
        output, message = self._message(code, None, True, {})
        return output, self._session.serialize(message)

    def _message(
        self, code: str, attempt: str | None, metadata: bool, asked: dict[str, Any]
    ) -> tuple[Output, dict[str, Any]]:
        self._count += 1
        attempt = attempt or f"attempt-{self._count}"
        folder = self.folder / "spool" / attempt
        values = {"attempt": attempt, "spool": str(folder), "cwd": str(self.cwd), "env": {}, "reserve_bytes": 0}
        values |= {"execution_count": self._count, "workspace_first_on_path": True} | asked
        content = {"code": code, "silent": False, "store_history": True, "allow_stdin": False, "stop_on_error": True}
        message = self._session.msg("execute_request", content | {"user_expressions": {}})
        message["header"]["msg_id"] = message["msg_id"] = attempt
        message["metadata"] = {"gpulayer": values} if metadata else {}
        return Output(folder, attempt), message

    def run(self, code: str, **asked: Any) -> Output:
        """Asks for an attempt, and waits for its end."""
        output = self.send(code, **asked)
        return self.wait(output, lambda: output.ended)

    def wait(self, output: Output, condition: Callable[[], Any]) -> Output:
        """Reads until `condition` holds; fails when the kernel ends before, or after a minute."""
        deadline = time.monotonic() + TIMEOUT_S
        while not output.read() or not condition():
            assert time.monotonic() < deadline, f"waited for {output.attempt}: {output.order}\n{self.log}"
            assert self.process is None or self.process.poll() is None, f"the kernel ended: {output.order}\n{self.log}"
            time.sleep(0.002)
        return output

    def end(self) -> int:
        """Waits for the process's end; returns its exit code."""
        assert self.process is not None
        return self.process.wait(TIMEOUT_S)

    def reply(self) -> dict[str, Any]:
        """The next reply of the shell channel."""
        return self._receive(self._shell)

    def state(self) -> dict[str, Any]:
        """The answer to a state request."""
        self._session.send(self._control, "gpulayer_state_request", {})
        answer = self._receive(self._control)
        assert answer["msg_type"] == "gpulayer_state_reply"
        return answer["content"]

    def control(self, kind: str, content: dict[str, Any], buffers: list[Any]) -> None:
        """A request on the control channel that is not answered."""
        self._session.send(self._control, kind, content, buffers=buffers)

    def _receive(self, socket: Any) -> dict[str, Any]:
        assert socket.poll(TIMEOUT_S * 1000), f"no answer\n{self.log}"
        _, message = self._session.recv(socket, mode=0)
        assert message is not None
        return message

    def interrupt(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGINT)

    def failpoint(self, name: str) -> Failpoint:
        return Failpoint(self.failpoints, name)

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        self._context.destroy(linger=0)
        shutil.rmtree(self.folder, ignore_errors=True)


PYTHON6 = os.environ.get("GPULAYER_TEST_IPYKERNEL6")


@pytest.fixture(scope="module", params=["here", "ipykernel6"])
def python(request: pytest.FixtureRequest) -> str:
    """The interpreter of a kernel's environment: this one, and one with ipykernel 6."""
    if request.param == "here":
        return sys.executable
    if not PYTHON6:
        pytest.skip("GPULAYER_TEST_IPYKERNEL6 names no interpreter that has ipykernel 6")
    return PYTHON6


@pytest.fixture(scope="module")
def kernel(python: str) -> Iterator[RemoteKernel]:
    """A kernel that the tests of a module share, for cells that leave it as it was."""
    kernel = RemoteKernel(python)
    try:
        yield kernel.start()
    finally:
        kernel.close()


@pytest.fixture
def fresh(python: str) -> Iterator[RemoteKernel]:
    """A kernel of the test's own, not started yet."""
    kernel = RemoteKernel(python)
    try:
        yield kernel
    finally:
        kernel.close()

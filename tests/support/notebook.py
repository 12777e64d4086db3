"""A notebook without a browser: a real ipykernel, driven as a front end drives it."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.connect import write_connection_file

from tests.support.processes import PATIENCE_S

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_STATUS = "gpulayer-status-"
_LOOK_S = 0.1  # how often a kernel's death is looked for while nothing comes


class KernelDied(RuntimeError):
    """The notebook's kernel ended while a cell ran."""


@dataclass
class Outputs:
    """A cell's outputs as a notebook file would hold them. Our own line under the cell is kept apart, in `status`."""

    outputs: list[dict[str, Any]] = field(default_factory=list)
    status: list[str] = field(default_factory=list)  # the texts of our status line, oldest first
    displays: dict[str, list[dict[str, Any]]] = field(default_factory=dict)  # by display id, of all of a notebook
    comms: list[dict[str, Any]] = field(default_factory=list)  # what comms sent, oldest first, with their buffers
    _clear_next: bool = False

    def take(self, kind: str, content: dict[str, Any], buffers: Sequence[Any] = ()) -> None:
        """Take one iopub message, as a front end does."""
        display_id = (content.get("transient") or {}).get("display_id", "")
        if display_id.startswith(_STATUS):
            self.status.append(content["data"]["text/plain"])
        elif kind == "clear_output":
            self._clear_next = content.get("wait", False)
            if not self._clear_next:
                self.outputs.clear()
        elif kind == "update_display_data":
            for output in self.displays.get(display_id, []):
                output.update(data=content["data"], metadata=content["metadata"])
        elif kind in ("stream", "display_data", "execute_result", "error"):
            self._append(kind, content, display_id)
        elif kind.startswith("comm_"):
            self.comms.append({"kind": kind, **content, "buffers": [bytes(each).hex() for each in buffers]})

    def _append(self, kind: str, content: dict[str, Any], display_id: str) -> None:
        if self._clear_next:
            self.outputs.clear()
            self._clear_next = False
        last = self.outputs[-1] if self.outputs else {}
        if kind == "stream" and last.get("output_type") == "stream" and last["name"] == content["name"]:
            last["text"].append(content["text"])  # joined when it is read: 200 MB come in a thousand pieces
            return
        fields = {name: value for name, value in content.items() if name != "transient"}
        output = {"output_type": kind, **fields}
        if kind == "stream":
            output["text"] = [content["text"]]
        self.outputs.append(output)
        if display_id:
            self.displays.setdefault(display_id, []).append(output)

    def joined(self) -> list[dict[str, Any]]:
        """The outputs, each stream's text as one."""
        return [
            {**output, "text": "".join(output["text"])} if output["output_type"] == "stream" else output
            for output in self.outputs
        ]


@dataclass(frozen=True)
class Result:
    """A cell that has ended."""

    outputs: list[dict[str, Any]]  # in nbformat's form
    status: list[str]  # what our status line said, oldest first
    reply: dict[str, Any]  # the content of the execute reply
    idle: bool  # iopub's idle was seen

    @property
    def ok(self) -> bool:
        """Whether the cell succeeded."""
        return self.reply["status"] == "ok"

    @property
    def execution_count(self) -> int:
        """The cell's number."""
        return self.reply["execution_count"]

    def text(self, name: str = "stdout") -> str:
        """All text of a stream."""
        return "".join(o["text"] for o in self.outputs if o["output_type"] == "stream" and o["name"] == name)

    @property
    def error(self) -> dict[str, Any] | None:
        """The error output, if there is one."""
        return next((output for output in self.outputs if output["output_type"] == "error"), None)

    @property
    def traceback(self) -> str:
        """The error's traceback without colours, '' where there was no error."""
        return _ANSI.sub("", "\n".join(self.error["traceback"])) if self.error else ""

    def data(self, mime: str) -> list[Any]:
        """What displays and results hold of a MIME type, in order."""
        return [output["data"][mime] for output in self.outputs if mime in output.get("data", {})]


class Cell:
    """A cell that was sent to the kernel. Iterating gives its messages `(kind, content)` as they come, up to idle."""

    def __init__(self, notebook: Notebook, msg_id: str):
        self._notebook = notebook
        self._msg_id = msg_id
        self.out = Outputs(displays=notebook.displays)
        self.idle = False

    def __iter__(self) -> Iterator[tuple[str, dict[str, Any]]]:
        return self.messages(PATIENCE_S)

    def messages(self, timeout_s: float) -> Iterator[tuple[str, dict[str, Any]]]:
        """Messages as they come; raises TimeoutError where the cell is not idle `timeout_s` seconds after this call."""
        deadline = time.monotonic() + timeout_s
        while not self.idle:
            yield from self._next(deadline)

    def settle(self, condition: Callable[[Cell], object], timeout_s: float) -> Cell:
        """Read on past idle, as a front end does, until `condition(self)` holds or `timeout_s` seconds are over.

        A stock kernel sends what came through a pipe when it gets to it.
        """
        deadline = time.monotonic() + timeout_s
        while not condition(self):
            try:
                for _ in self._next(deadline):
                    pass
            except (TimeoutError, KernelDied):
                break
        return self

    def _next(self, deadline: float) -> Iterator[tuple[str, dict[str, Any]]]:
        """The next message, if it is this cell's."""
        message = self._notebook.next_message(deadline)
        if message["parent_header"].get("msg_id") == self._msg_id:
            kind, content = message["msg_type"], message["content"]
            self.idle = self.idle or (kind == "status" and content["execution_state"] == "idle")
            self.out.take(kind, content, message.get("buffers") or ())
            yield kind, content

    @property
    def msg_id(self) -> str:
        """The id of the request, which is the parent of all that comes of it."""
        return self._msg_id

    def text(self, name: str = "stdout") -> str:
        """The text of a stream so far."""
        return "".join(
            "".join(o["text"]) for o in self.out.outputs if o["output_type"] == "stream" and o["name"] == name
        )

    def until(self, condition: Callable[[Cell], object], timeout_s: float = PATIENCE_S) -> Cell:
        """Read on until `condition(self)` holds; fails where the cell ends before."""
        if condition(self):
            return self
        for _ in self.messages(timeout_s):
            if condition(self):
                return self
        raise AssertionError(f"the cell ended before: {self.out.joined()} {self.out.status}")

    def until_text(self, text: str, timeout_s: float = PATIENCE_S) -> Cell:
        """Read on until the cell's stdout contains `text`."""
        return self.until(lambda cell: text in cell.text(), timeout_s)

    def wait(self, timeout_s: float = PATIENCE_S) -> Result:
        """Read on until the cell is idle and answered."""
        for _ in self.messages(timeout_s):
            pass
        reply = self._notebook.reply(self._msg_id, timeout_s)
        return Result(self.out.joined(), self.out.status, reply, self.idle)


class Notebook:
    """One kernel in one folder. Use `Deployment.notebook` to get one."""

    def __init__(self, folder: Path, env: dict[str, str], *, runtime: Path, python: str = sys.executable):
        self.folder = folder
        self.python = python
        self._runtime = runtime  # of the sockets: a short path
        self._env = env | {"IPYTHONDIR": str(runtime / "ipython"), "JPY_PARENT_PID": str(os.getpid())}
        self.process: subprocess.Popen[bytes] | None = None
        self._client: BlockingKernelClient | None = None
        self._replies: dict[str, dict[str, Any]] = {}
        self._last: Cell | None = None
        self.displays: dict[str, list[dict[str, Any]]] = {}  # outputs of all cells by display id

    # ---------------------------------------------------------------- the kernel

    def start_kernel(self) -> None:
        """Start the kernel, or a new one in the same folder; returns when it answers."""
        self.launch()
        self.await_ready()

    def launch(self) -> None:
        """Start the kernel, and don't wait: `await_ready` has to come before the first cell."""
        self.close()
        (self._runtime / "ipython").mkdir(parents=True)
        file = str(self._runtime / "c.json")
        write_connection_file(file, transport="ipc", ip=str(self._runtime / "s"))
        with (self._runtime / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [self.python, "-m", "ipykernel_launcher", "-f", file, "--HistoryManager.hist_file=:memory:"],
                cwd=self.folder,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._client = BlockingKernelClient(connection_file=file)
        self._client.load_connection_file()
        self._client.start_channels(hb=False)  # a busy machine misses heartbeats; its process tells us of its death

    def await_ready(self) -> None:
        """Ask until the kernel answers and its iopub messages come through: a subscription takes its time."""
        assert self._client is not None
        deadline = time.monotonic() + PATIENCE_S
        while True:
            self.reply(self._client.kernel_info(), deadline - time.monotonic())
            with contextlib.suppress(queue.Empty):
                self._client.get_iopub_msg(timeout=_LOOK_S)
                return

    @property
    def pid(self) -> int:
        """The kernel's process id."""
        assert self.process is not None
        return self.process.pid

    @property
    def log(self) -> str:
        """What the kernel's process wrote past its streams."""
        return (self._runtime / "log").read_text(errors="replace")

    def interrupt(self) -> None:
        """What the Stop button does: SIGINT to the kernel's process group."""
        os.killpg(self.pid, signal.SIGINT)

    def kill(self) -> None:
        """End the kernel at once, as a crash or a restart does; `start_kernel` starts the next."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(PATIENCE_S)

    def shut_down(self) -> None:
        """End the kernel as Jupyter's server does before a restart: an interrupt, then the word."""
        assert self._client is not None
        assert self.process is not None
        self.interrupt()
        self._client.shutdown(restart=True)
        self.process.wait(PATIENCE_S)

    def close(self) -> None:
        """End the kernel. Harmless when done twice."""
        if self._client is not None:
            self._client.stop_channels()
            self._client.context.destroy(linger=0)
            self._client = None
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(PATIENCE_S)
            self.process = None
        self._last = None
        shutil.rmtree(self._runtime, ignore_errors=True)

    # ---------------------------------------------------------------- cells

    def start(self, code: str) -> Cell:
        """Send a cell, and don't wait."""
        assert self._client is not None
        self._last = Cell(self, self._client.execute(code, allow_stdin=False, stop_on_error=False))
        return self._last

    @property
    def busy(self) -> bool:
        """Whether the last cell's end was not read, or the kernel is gone."""
        return self.process is None or self.process.poll() is not None or not (self._last is None or self._last.idle)

    def run(self, code: str, timeout_s: float = PATIENCE_S) -> Result:
        """Run a cell to its end. Raises TimeoutError or `KernelDied`."""
        return self.start(code).wait(timeout_s)

    def complete(self, code: str) -> list[str]:
        """What Tab offers at '|'."""
        assert self._client is not None
        msg_id = self._client.complete(code.replace("|", ""), code.index("|"))
        return self.reply(msg_id, PATIENCE_S)["matches"]

    def comm_info(self, target: str) -> dict[str, Any]:
        """The comms that the kernel has, as a page that is loaded asks for them."""
        assert self._client is not None
        return self.reply(self._client.comm_info(target), PATIENCE_S)["comms"]

    def open_comm(self, comm_id: str, target: str, version: str) -> list[dict[str, Any]]:
        """Open a comm, as a page does; what comms sent until the kernel was done with it."""
        content = {"comm_id": comm_id, "target_name": target, "data": {}}
        return self._to_comm("comm_open", content, {"version": version})

    def tell_comm(self, comm_id: str, data: dict[str, Any]) -> list[dict[str, Any]]:
        """Send a comm a message, as a page does; what comms sent until the kernel was done with it."""
        return self._to_comm("comm_msg", {"comm_id": comm_id, "data": data}, {})

    def create_subshell(self) -> str:
        """A subshell of the kernel, as a page makes one for its widgets; its id. For ipykernel 7."""
        assert self._client is not None
        message = self._client.session.msg("create_subshell_request")
        self._client.control_channel.send(message)
        deadline = time.monotonic() + PATIENCE_S
        while True:
            reply = self._next("get_control_msg", deadline)
            if reply["parent_header"].get("msg_id") == message["header"]["msg_id"]:
                return reply["content"]["subshell_id"]

    def send_comm(
        self, comm_id: str, data: dict[str, Any], *, subshell: str | None = None, kind: str = "comm_msg"
    ) -> str:
        """Send a comm a message, as a page does, and don't wait; the message's id."""
        assert self._client is not None
        message = self._client.session.msg(kind, {"comm_id": comm_id, "data": data})
        if subshell is not None:
            message["header"]["subshell_id"] = subshell
        self._client.shell_channel.send(message)
        return message["header"]["msg_id"]

    def _to_comm(self, kind: str, content: dict[str, Any], metadata: dict[str, Any]) -> list[dict[str, Any]]:
        assert self._client is not None
        message = self._client.session.msg(kind, content, metadata=metadata)
        self._client.shell_channel.send(message)
        cell = Cell(self, message["header"]["msg_id"])
        for _ in cell:
            pass
        return cell.out.comms

    def next_message(self, deadline: float) -> dict[str, Any]:
        """The next iopub message, of any cell; TimeoutError at `deadline` (of time.monotonic), or `KernelDied`."""
        return self._next("get_iopub_msg", deadline)

    def reply(self, msg_id: str, timeout_s: float) -> dict[str, Any]:
        """The content of a cell's execute reply."""
        deadline = time.monotonic() + timeout_s
        while msg_id not in self._replies:
            message = self._next("get_shell_msg", deadline)
            self._replies[message["parent_header"].get("msg_id", "")] = message["content"]
        return self._replies.pop(msg_id)

    def _next(self, channel: str, deadline: float) -> dict[str, Any]:
        assert self._client is not None
        assert self.process is not None
        while True:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise TimeoutError(f"nothing more came from the kernel:\n{self.log}")
            dead = self.process.poll() is not None
            try:
                return getattr(self._client, channel)(timeout=0 if dead else min(left_s, _LOOK_S))
            except queue.Empty:
                if dead:
                    raise KernelDied(f"the notebook's kernel ended:\n{self.log}") from None


# ---------------------------------------------------------------- comparing two kernels

_DIFFERENT = ("execution_count", "comm_id", "model_id", "msg_id")
_SAME = (
    (re.compile(r"\x1b\[[0-9;]*m"), ""),
    (re.compile(r"ipykernel_\d+/\d+\.py"), "ipykernel_PID/CELL.py"),
    (re.compile(r"0x[0-9a-f]{6,}"), "0xADDRESS"),
    (re.compile(r"/tmp/gd[^/\s'\"]+/n\d+"), "FOLDER"),
    (re.compile(r"/tmp/gd[^/\s'\"]+/w-[^/]+/(attempts|sessions)/[^/]+/workspace"), "FOLDER"),
    (re.compile(r"In ?\[\d+\]"), "In [N]"),
    (re.compile(r"\b\d+\.py\b"), "CELL.py"),
    (re.compile(r"display_id=[0-9a-f]{16,}"), "display_id=ID"),
    (re.compile(r"IPY_MODEL_[0-9a-f]{32}"), "IPY_MODEL_ID"),
    (re.compile(r"[\d.]+(e[+-]?\d+)? ?(ns|[uμµ]s|ms|s)\b"), "DURATION"),
)


def comparable(result: Result) -> list[dict[str, Any]]:
    """The outputs without what differs between any two runs: see `normalised`."""
    return normalised(result.outputs)


def normalised(outputs: Any) -> Any:
    """JSON without what differs between any two runs.

    That is pids, paths, addresses, durations, ids of displays and comms, execution counts, colours.
    """

    def same(value: Any) -> Any:
        if isinstance(value, str):
            for pattern, text in _SAME:
                value = pattern.sub(text, value)
            return value
        if isinstance(value, list):
            return [same(each) for each in value]
        if isinstance(value, dict):
            return {name: same(each) for name, each in value.items() if name not in _DIFFERENT}
        return value

    return json.loads(json.dumps(same(outputs)))

"""A stock ipykernel in a process of its own, and cells in it, timed by the client that reads its iopub messages."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zmq
from jupyter_client.manager import KernelManager

_READY_S = 60.0


class CellFailed(RuntimeError):
    """A cell raised, or did not end: the figures would mean nothing."""


@dataclass
class Timing:
    """One cell, as the client saw it. Times in seconds from just before the request was sent."""

    total_s: float = 0.0
    first_output_s: float | None = None
    outputs: list[tuple[str, dict[str, Any]]] = field(default_factory=list[tuple[str, dict[str, Any]]])

    def text(self) -> str:
        """What came on stdout."""
        return "".join(content["text"] for kind, content in self.outputs if kind == "stream")


class LocalKernel:
    """One kernel and its client. Use as a context manager; it ends the kernel."""

    def __init__(self, *, folder: Path, env: dict[str, str]):
        self._manager = KernelManager(kernel_name="python3")
        self._manager.start_kernel(cwd=str(folder), env=env, extra_arguments=["--HistoryManager.hist_file=:memory:"])
        self._client = self._manager.blocking_client()
        self._client.start_channels(hb=False, stdin=False, control=False)
        self._client.wait_for_ready(timeout=_READY_S)
        self._iopub: Any = self._client.iopub_channel.socket
        self._shell: Any = self._client.shell_channel.socket
        self._poller = zmq.Poller()
        self._poller.register(self._iopub, zmq.POLLIN)
        provisioner: Any = self._manager.provisioner
        self.pid: int = provisioner.process.pid

    def __enter__(self) -> LocalKernel:
        return self

    def __exit__(self, *error: object) -> None:
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)

    def run(self, code: str, *, timeout_s: float = 120.0) -> Timing:
        """Run a cell and time it. Raises `CellFailed` with its traceback's last line."""
        timing = Timing()
        while self._shell.poll(0):
            self._shell.recv_multipart()
        start = time.perf_counter()
        wanted = self._client.execute(code)
        failure = ""
        while True:
            left_s = start + timeout_s - time.perf_counter()
            if left_s <= 0 or not self._poller.poll(int(left_s * 1000)):
                raise CellFailed(f"no end of the cell after {timeout_s:g} s: {code[:80]!r}")
            kind, content = self._receive(wanted)
            now = time.perf_counter() - start
            if kind == "status" and content["execution_state"] == "idle":
                break
            if kind == "error":
                failure = f"{content['ename']}: {content['evalue']}"
            if kind in ("stream", "execute_result", "display_data"):
                if kind != "display_data" and timing.first_output_s is None:  # a display is our status line
                    timing.first_output_s = now
                timing.outputs.append((kind, content))
        timing.total_s = now
        if failure:
            raise CellFailed(f"{code.splitlines()[0][:80]!r} raised {failure}")
        return timing

    def _receive(self, wanted: str) -> tuple[str, dict[str, Any]]:
        """The next message's kind and content; '' for one of another request."""
        frames = self._iopub.recv_multipart()
        header, parent, _, content = frames[frames.index(b"<IDS|MSG>") + 2 :][:4]
        if json.loads(parent).get("msg_id") != wanted:
            return "", {}
        return json.loads(header)["msg_type"], json.loads(content)


def as_magic(body: str, line: str = "") -> str:
    """The cell that runs `body` by way of us."""
    return f"%%gpulayer {line}".rstrip() + f"\n{body}"

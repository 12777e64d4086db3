"""A whole installation in temporary folders: started from a notebook, ended by process id, and nothing is left."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from gpulayer.protocol.endpoint import Endpoint, read_endpoint

_END_S = 30.0
_DROPPED = ("JPY_SESSION_NAME", "JPY_PARENT_PID", "PYTHONSTARTUP", "XDG_DATA_HOME", "XDG_RUNTIME_DIR")


class LeftOver(RuntimeError):
    """Processes of ours outlived the end of their installation."""


class Home:
    """Temporary folders for a control plane, a local worker and notebooks. Use as a context manager."""

    def __init__(self, *, files: int = 0):
        """`files`: how many small files lie beside the notebook."""
        self.root = Path(tempfile.mkdtemp(prefix="gb", dir="/tmp"))  # short: unix sockets lie in it
        self.data = self.root / "data"
        self.notebooks = self.root / "notebooks"
        self.notebook = self.notebooks / "bench.ipynb"
        self.notebooks.mkdir()
        self.notebook.write_text('{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}')
        for number in range(files):
            folder = self.notebooks / f"package_{number // 20:02d}"
            folder.mkdir(exist_ok=True)
            (folder / f"module_{number:03d}.py").write_text(f"VALUE = {number}\n" * 40)

    def __enter__(self) -> Home:
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self.end()
        finally:
            shutil.rmtree(self.root, ignore_errors=True)

    def env(self, **more: str) -> dict[str, str]:
        """The environment of a kernel whose notebook lies here."""
        env = {name: value for name, value in os.environ.items() if not name.startswith("GPULAYER_")}
        for name in _DROPPED:
            env.pop(name, None)
        env["GPULAYER_DATA"] = str(self.data)
        env["IPYTHONDIR"] = str(self.root / "ipython")
        env["JPY_SESSION_NAME"] = str(self.notebook)
        return {**env, **more}

    # ---------------------------------------------------------------- what runs

    @property
    def endpoint(self) -> Endpoint:
        """Where the control plane listens. Raises RuntimeError where none was started."""
        endpoint = read_endpoint(self.data)
        if endpoint is None:
            raise RuntimeError(f"no control plane was started in {self.data}")
        return endpoint

    def keeper(self, worker: Path | None = None) -> dict[str, Any]:
        """What `keeper.json` of a worker's folder says; by default of the local worker's. Raises FileNotFoundError."""
        return json.loads(((worker or self.data / "worker") / "keeper.json").read_bytes())

    def processes(self) -> dict[str, psutil.Process]:
        """Our processes by a name that a person reads: control plane, keeper, agent, kernel 1, …"""
        found = {"control plane": psutil.Process(self.endpoint.pid)}
        keeper = found["keeper"] = psutil.Process(self.keeper()["pid"])
        for child in keeper.children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                argv = child.cmdline()
                if "agent" in argv:
                    found["agent"] = child
                elif "--connection-file" in argv:
                    found[f"kernel {sum(name.startswith('kernel') for name in found) + 1}"] = child
        return found

    # ---------------------------------------------------------------- the end

    def end(self) -> None:
        """SIGTERM to the control plane and to every keeper, and wait until nothing of ours is left.

        Raises `LeftOver` for processes that are there after half a minute; they are killed then.
        """
        pids = [endpoint.pid] if (endpoint := read_endpoint(self.data)) else []
        for folder, _, files in os.walk(self.root):  # unlike a glob it minds no folder that goes meanwhile
            if "keeper.json" in files:
                pids.append(json.loads(Path(folder, "keeper.json").read_bytes())["pid"])
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + _END_S
        left = self._left()
        while left and time.monotonic() < deadline:
            psutil.wait_procs(left, timeout=1.0)
            left = self._left()
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        if left:
            raise LeftOver(f"still there {_END_S:.0f} s after the end: {', '.join(map(str, left))}")

    def _left(self) -> list[psutil.Process]:
        """Processes of this user that work in our folders, told by their command line or environment."""
        mark = str(self.root)
        left: list[psutil.Process] = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
                    continue
                env = process.environ()
                if env.get("GPULAYER_DATA") == str(self.data) or any(mark in word for word in process.cmdline()):
                    left.append(process)
        return left

"""Finding the control plane of this user and machine; with none running, starting one."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.parse
from pathlib import Path
from typing import TypeGuard

from gpulayer.client.errors import ControlPlaneError
from gpulayer.protocol.endpoint import Endpoint, data_folder, read_endpoint

_IDLE_EXIT_S = 60
_PATIENCE_S = 20.0  # a control plane that ends may take so long
_LOG = "control-plane.log"
_HELD = 3  # the exit code of a control plane whose folder another one holds


def find_or_start(folder: Path | None = None) -> Endpoint:
    """The endpoint of a control plane that listens. Raises `ControlPlaneError`.

    When none listens, one is started as a process of its own, together with a local worker; it ends by itself once
    nobody needs it. With GPULAYER_EMBEDDED=0 none is started: one that stood comes back by other hands (OSError then).
    """
    folder = folder or data_folder()
    endpoint = read_endpoint(folder)
    if listens(endpoint):
        return endpoint
    if os.environ.get("GPULAYER_EMBEDDED") != "0":
        return _start(folder)
    why = "and GPULAYER_EMBEDDED=0 forbids to start one"
    if endpoint is None:
        raise ControlPlaneError(f"{folder}/endpoint.json is not there, {why}")
    raise ConnectionRefusedError(f"{endpoint.url} does not answer, {why}")


def listens(endpoint: Endpoint | None) -> TypeGuard[Endpoint]:
    """Whether the control plane that wrote this lives and accepts connections."""
    if endpoint is None or not _lives(endpoint.pid):
        return False  # after a restart of the machine its port may be anybody's
    parts = urllib.parse.urlsplit(endpoint.url)
    try:
        with socket.create_connection((parts.hostname or "", parts.port or 80), timeout=2.0):
            return True
    except OSError:
        return False


def _lives(pid: int) -> bool:
    if sys.platform == "win32":
        return True  # there the same call would end the process
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _start(folder: Path) -> Endpoint:
    """Start one; where somebody else was quicker, or one is about to end, take the one that there is then."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        code, endpoint = _try_to_start(folder)
        if endpoint is not None:
            return endpoint
        if code != _HELD or time.monotonic() > deadline:
            raise ControlPlaneError(f"the control plane did not start: {_last_line(folder)}")
        for _ in range(20):
            endpoint = read_endpoint(folder)
            if listens(endpoint):
                return endpoint
            time.sleep(0.05)  # another process writes the file: there is nothing to wait for


def _last_line(folder: Path) -> str:
    lines = (folder / "logs" / _LOG).read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "no word from it"


def _try_to_start(folder: Path) -> tuple[int, Endpoint | None]:
    """Its exit code, or its endpoint."""
    logs = folder / "logs"
    logs.mkdir(mode=0o700, parents=True, exist_ok=True)
    command = [sys.executable, "-m", "gpulayer_server", "--data", str(folder), "--local-worker"]
    command += ["--idle-exit", str(_IDLE_EXIT_S), "--announce"]
    if arguments := os.environ.get("GPULAYER_LOCAL_WORKER"):
        command += ["--worker-arguments", arguments]
    with (logs / _LOG).open("ab") as log:
        process = subprocess.Popen(
            command, cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, start_new_session=True
        )
    if process.stdout is None:
        raise ControlPlaneError("the control plane has no standard output to announce itself on")
    with process.stdout as announced:
        line = announced.readline()
    endpoint = read_endpoint(folder)
    if line and endpoint is not None:
        return 0, endpoint
    return process.wait(), None

"""The worker on the control plane's own machine: a process that outlives it."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

from gpulayer.protocol.places import without_secrets
from gpulayer_server.folderlock import DataFolderError

_END_S = 5.0


def start(data: Path, arguments: list[str]) -> subprocess.Popen[bytes]:
    """Start a worker for the control plane of this folder, in a session of its own; one that has its folder stays.

    It may be started before there is anybody that it could talk to: it looks for the folder's `endpoint.json`.
    """
    data = data.absolute()
    logs = data / "logs"
    logs.mkdir(mode=0o700, exist_ok=True)
    command = [sys.executable, "-m", "gpulayer_worker", "join", "--local", "--control-plane", str(data)]
    with (logs / "local-worker.log").open("ab") as output:
        return subprocess.Popen(
            [*command, "--data", str(data / "worker"), *arguments],
            env=without_secrets(),
            cwd="/",  # where Python looks for modules first
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


class Begun:
    """A worker that was started before its control plane: its end comes with this one's, unless somebody takes it."""

    def __init__(self, process: subprocess.Popen[bytes]):
        self._process: subprocess.Popen[bytes] | None = process

    def take(self) -> subprocess.Popen[bytes]:
        """The control plane is there: the worker is its own now, and outlives it."""
        process, self._process = self._process, None
        if process is None:
            raise RuntimeError("this worker was taken already")
        return process

    def close(self) -> None:
        """Nothing came of the control plane: end it, and wait for a while until it has ended."""
        if self._process is None:
            return
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):  # told to end, it does so by itself
            self._process.wait(_END_S)


def begin(data: Path, arguments: list[str]) -> Begun | None:
    """As `start`, for a control plane that is about to be; None where one of before left something, or still runs.

    Such a one takes up what was left, and its end would be the end of that: it is started once there is a control
    plane. Raises `DataFolderError`.
    """
    if (data / "worker" / "keeper.json").exists() or any(word.startswith("--data") for word in arguments):
        return None
    try:
        return Begun(start(data, arguments))
    except OSError as error:
        raise DataFolderError(f"the local worker of {data} can't be started: {error.strerror}") from error

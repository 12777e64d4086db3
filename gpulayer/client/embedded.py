"""Finding the control plane of this user and machine; with none running, starting one."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn, TypeGuard

from gpulayer.client.errors import ControlPlaneError
from gpulayer.protocol.endpoint import REMOTE, Endpoint, data_folder, read_endpoint, without_secrets
from gpulayer.protocol.localdisk import network_filesystem

_IDLE_EXIT_S = 60
_WORD_S = 2.0  # a control plane that has nothing else to do answers in a thousandth of that
_PATIENCE_S = 20.0  # a control plane that ends may take so long
_LOG = "control-plane.log"
_HELD = 3  # the exit code of a control plane whose folder another one holds
_OK = 200

_begun: dict[tuple[int, Path], subprocess.Popen[bytes]] = {}  # by our own pid and its folder: not waited for yet


def begin() -> None:
    """Start what `find_or_start` would start, where it is plain that none runs, and return at once.

    So a program can import what it needs meanwhile. What goes wrong here goes wrong there too, and is said there.
    """
    if os.environ.get("GPULAYER_EMBEDDED") == "0" or REMOTE[0] in os.environ:
        return
    if "gpulayer.client.remote" in sys.modules:  # somebody has looked already: one elsewhere may be named
        return
    folder = data_folder()
    with contextlib.suppress(ControlPlaneError, OSError):
        endpoint = read_endpoint(folder)
        if (os.getpid(), folder) not in _begun and (endpoint is None or not lives(endpoint.pid)):
            _check_folder(folder)
            _begun[os.getpid(), folder] = _spawned(folder)


def find_or_start(folder: Path | None = None) -> Endpoint:
    """The endpoint of a control plane that listens. Raises `ControlPlaneError`.

    Without a folder it is the one on another machine that GPULAYER_URL names, if it does: none is ever started then.
    Where that one does not answer, the error is an OSError too: it may be back soon.

    Else it is this machine's own. When none listens, one is started as a process of its own, together with a local
    worker; it ends by itself once nobody needs it. With GPULAYER_EMBEDDED=0 none is started: one that stood comes back
    by other hands (OSError then).
    """
    from gpulayer.client.remote import named, reached

    if folder is None and (there := named()) is not None:
        return reached(there)
    folder = folder or data_folder()
    endpoint = read_endpoint(folder)
    status = _asked(endpoint)
    if endpoint is not None and status == _OK:
        return endpoint
    if os.environ.get("GPULAYER_EMBEDDED") != "0":
        return _start(folder)
    why = "and GPULAYER_EMBEDDED=0 forbids to start one"
    if endpoint is None:
        raise ControlPlaneError(f"{folder}/endpoint.json is not there, {why}")
    if status and read_endpoint(folder) == endpoint:  # else one has just started there
        raise ControlPlaneError(f"{_refused(folder, endpoint, status)}, {why}")
    raise ConnectionRefusedError(f"{endpoint.url} does not answer, {why}")


def _refused(folder: Path, endpoint: Endpoint, status: int) -> str:
    text = f"{endpoint.url} refuses the token of {folder}/endpoint.json (HTTP {status})"
    return f"{text}: another control plane listens there; name its data folder with GPULAYER_DATA"


def listens(endpoint: Endpoint | None) -> TypeGuard[Endpoint]:
    """Whether the control plane that wrote this lives and accepts connections."""
    return _asked(endpoint) == _OK


def _asked(endpoint: Endpoint | None) -> int:
    """The HTTP status with which an endpoint's address takes its token; 0 where nobody listens."""
    if endpoint is None or not lives(endpoint.pid):
        return 0  # after a restart of the machine its port may be anybody's
    import http.client

    from gpulayer.client.health import NobodyThere, ask_health

    try:
        return ask_health(endpoint, _WORD_S).status
    except NobodyThere:
        return 0
    except (OSError, http.client.HTTPException):
        return _OK  # it is busy, or just ending: the connection that follows will tell


def lives(pid: int) -> bool:
    """Whether a process of this machine lives: the port of one that does not may be anybody's."""
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
    _check_folder(folder)
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        code, endpoint = _try_to_start(folder)
        if endpoint is not None:
            return endpoint
        if code != _HELD or time.monotonic() > deadline:
            _fail(folder, code)
        for _ in range(20):
            endpoint = read_endpoint(folder)
            if listens(endpoint):
                return endpoint
            time.sleep(0.05)  # another process writes the file: there is nothing to wait for


def _check_folder(folder: Path) -> None:
    """Make the data folder, if it can be used. Raises `ControlPlaneError`, and nothing is made where it can't."""
    advice = "set GPULAYER_DATA to a folder on a local disk"
    kind = network_filesystem(folder)
    if kind:
        text = f"{folder} lies on a network file system ({kind}), where locks and SQLite are not safe"
        raise ControlPlaneError(f"{text}; {advice}")
    try:
        (folder / "logs").mkdir(mode=0o700, parents=True, exist_ok=True)
        with (folder / "logs" / _LOG).open("ab"):
            pass
    except OSError as error:
        text = f"{folder} can't be the data folder of a control plane: {error.strerror}"
        raise ControlPlaneError(f"{text}; {advice}") from error


def _fail(folder: Path, code: int) -> NoReturn:
    """Say why none could be started, nor found."""
    endpoint = read_endpoint(folder)
    status = _asked(endpoint)
    if code == _HELD and endpoint is not None and status not in (0, _OK):
        raise ControlPlaneError(_refused(folder, endpoint, status))
    raise ControlPlaneError(f"the control plane did not start: {_last_line(folder)}")


def _last_line(folder: Path) -> str:
    lines = (folder / "logs" / _LOG).read_text(errors="replace").strip().splitlines()
    return lines[-1].removeprefix("gpulayer: ") if lines else "no word from it"


def _spawned(folder: Path) -> subprocess.Popen[bytes]:
    """One that says on its standard output once it listens. Raises OSError."""
    command = [sys.executable, "-m", "gpulayer_server", "--data", str(folder), "--local-worker"]
    command += ["--idle-exit", str(_IDLE_EXIT_S), "--announce"]
    if arguments := os.environ.get("GPULAYER_LOCAL_WORKER"):
        command += ["--worker-arguments", arguments]
    with (folder / "logs" / _LOG).open("ab") as log:
        return subprocess.Popen(
            command,
            env=without_secrets(),
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )


def _try_to_start(folder: Path) -> tuple[int, Endpoint | None]:
    """Its exit code, or its endpoint."""
    process = _begun.pop((os.getpid(), folder), None) or _spawned(folder)
    if process.stdout is None:
        raise ControlPlaneError("the control plane has no standard output to announce itself on")
    with process.stdout as announced:
        line = announced.readline()
    endpoint = read_endpoint(folder)
    if line and endpoint is not None:
        return 0, endpoint
    return process.wait(), None

"""What an execute request asks for beyond its code: the ``gpulayer`` object of its metadata."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from typing import Any


class Refused(ValueError):
    """A request that this kernel does not run; the text says why."""


@dataclass(frozen=True)  # not keyword-only: Python 3.9 knows no such thing
class Request:
    """One attempt to run one cell."""

    attempt: str  # its id, and the request's message id
    spool: str  # the folder to write to, absolute
    cwd: str  # the folder to run in, absolute; empty: where the kernel is
    env: dict[str, str | None]  # environment variables to set, or to remove where None
    execution_count: int  # the number that the user's own notebook shows; 0: the kernel's own
    reserve_bytes: int  # the disk space to leave free
    workspace_first_on_path: bool
    inputs: dict[str, Any]  # values that are there before the cell: path, offset and size of them; empty: none
    outputs: dict[str, Any]  # names of the variables to leave, and the path for them; empty: none
    cpus: list[int] = field(default_factory=list)  # the cores to run on; empty: all that the process began with


_FIELDS: dict[str, tuple[type, Any]] = {
    "attempt": (str, None),
    "spool": (str, None),
    "cwd": (str, ""),
    "env": (dict, {}),
    "execution_count": (int, 0),
    "reserve_bytes": (int, 0),
    "workspace_first_on_path": (bool, False),
    "inputs": (dict, {}),
    "outputs": (dict, {}),
    "cpus": (list, []),
}


def read(message: dict[str, Any]) -> Request:
    """The request in a deserialised execute_request. Raises Refused when it is none of ours, or malformed."""
    asked = (message.get("metadata") or {}).get("gpulayer")
    if not isinstance(asked, dict):
        raise Refused("this kernel runs GPUlayer's attempts only: the request's metadata has no 'gpulayer' object")
    values = {}
    for name, (kind, default) in _FIELDS.items():
        value = asked.get(name, default)
        if not isinstance(value, kind):
            raise Refused(f"the request's gpulayer.{name} is {value!r}; it has to be a {kind.__name__}")
        values[name] = value
    request = Request(**values)
    if request.attempt != message["header"]["msg_id"]:
        raise Refused(f"the request's message id is {message['header']['msg_id']}, its attempt {request.attempt}")
    if not os.path.isabs(request.spool):
        raise Refused(f"the request's gpulayer.spool is {request.spool!r}; it has to be an absolute path")
    return request


class Surroundings:
    """The process's folder, environment and import path, as the requests have set them. Owned by the kernel."""

    def __init__(self) -> None:
        self._cwd = ""
        self._cpus: list[int] = []

    def apply(self, request: Request) -> None:
        """Makes them what `request` asks for. Raises OSError when its folder cannot be entered.

        A cell of a session that moved to another folder stays there, as in any notebook: only a folder other than
        the last request's is gone to.
        """
        if request.cwd and request.cwd != self._cwd:
            os.chdir(request.cwd)
            self._cwd = request.cwd
        if request.cpus != self._cpus:
            _run_on(request.cpus or sorted(_BEGAN_ON))
            self._cpus = request.cpus
        for name, value in request.env.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        if request.workspace_first_on_path and (not sys.path or sys.path[0] != ""):
            if "" in sys.path:
                sys.path.remove("")
            sys.path.insert(0, "")
        _forget_listings(os.getcwd())


_BEGAN_ON: set[int] = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()


def _run_on(cpus: list[int]) -> None:
    """Has every thread of this process, and what they start, run on these cores. Raises OSError where none is ours."""
    if not hasattr(os, "sched_setaffinity"):
        return
    os.sched_setaffinity(0, cpus)
    for thread in os.listdir("/proc/self/task"):
        try:
            os.sched_setaffinity(int(thread), cpus)
        except ProcessLookupError:  # it has just ended
            continue


def _forget_listings(folder: str) -> None:
    """Has the import system look at `folder` anew: files may have come within the tick of a folder's clock.

    What importlib.invalidate_caches does, which goes through every folder and all that is installed.
    """
    finders: dict[str, Any] = dict(sys.path_importer_cache)
    for path, finder in finders.items():
        if path.startswith(folder):
            if finder is None:
                del sys.path_importer_cache[path]
            elif hasattr(finder, "invalidate_caches"):
                finder.invalidate_caches()

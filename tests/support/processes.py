"""Waiting for things, and finding processes that a test run has left behind (Linux)."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

#: The variable that marks every process of ours that inherits its environment from a test.
MARKER = "GPULAYER_TEST_RUN"
PATIENCE_S = 60.0
_LOOK_S, _LOOK_LATER_S = 0.02, 0.1


def until(condition: Callable[[], T | None], what: str | Callable[[], str], timeout_s: float = PATIENCE_S) -> T:
    """Ask `condition` again and again until its answer is true, and return that answer.

    Fails after `timeout_s` seconds; `what` says what was waited for (called only then, if it is a function).
    """
    began = time.monotonic()
    while not (answer := condition()):
        waited_s = time.monotonic() - began
        if waited_s > timeout_s:
            raise TimeoutError(f"waited {timeout_s:g} s for {what() if callable(what) else what}")
        time.sleep(min(_LOOK_LATER_S, max(_LOOK_S, waited_s / 20)))  # what takes long is looked at less often
    return answer


def wait_for_end(pid: int, timeout_s: float = PATIENCE_S) -> None:
    """Wait until a process, child of ours or not, has ended; a zombie has."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if not select.select([pidfd], [], [], timeout_s)[0]:
            raise TimeoutError(f"process {pid} did not end within {timeout_s:g} s: {command_line(pid)}")
    finally:
        os.close(pidfd)


def end(pid: int, number: int = signal.SIGTERM, timeout_s: float = PATIENCE_S) -> None:
    """Signal a process and wait for its end; one that is gone is no error."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
    wait_for_end(pid, timeout_s)


def command_line(pid: int) -> str:
    """A process's command line, '' for one that is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    return ""


def processes() -> Iterable[int]:
    """The pids of all living processes but our own; zombies are not living."""
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            state = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[0]
            if state not in "ZX":
                yield int(entry)


def marked(variables: dict[str, set[str]], folder: Path) -> dict[int, str]:
    """The living processes that carry one of these variables (name: values), or work in or name `folder`.

    Jobs run with an environment made from an allow-list: they are known by their keeper's variable, and by their
    current folder.
    """
    wanted = {f"{name}={value}".encode() for name, values in variables.items() for value in values}
    found = {}
    for pid in processes():
        with contextlib.suppress(OSError):
            line = command_line(pid)
            environ = set(Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
            cwd = Path(f"/proc/{pid}/cwd").readlink()
            if wanted & environ or folder in (cwd, *cwd.parents) or str(folder) in line:
                found[pid] = line
    return found

"""Failpoints: named places in the code where a test can stop a process, and then kill it, freeze it or let it go on.

In production `reach` is one comparison. When the environment variable GPULAYER_FAILPOINTS names a folder, a test arms a
point there with two FIFOs: ``NAME.hit``, in which the process says that it stands there, and ``NAME.go``, on which it
waits. A point fires once per arming, in the first process that comes by.

Kernels whose environment has nothing of ours load this file by its path: it needs the standard library of Python 3.9 or
newer, and imports nothing else.
"""

from __future__ import annotations

import errno
import os
import select
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

VARIABLE = "GPULAYER_FAILPOINTS"

_folder: str | None = os.environ.get(VARIABLE) or None


def configure(folder: str | None) -> None:
    """Sets the folder of this process's failpoints, None for none; at import it comes from the environment."""
    global _folder
    _folder = folder


def reach(name: str) -> None:
    """Stops here if a test has armed `name` (``kernel.first-byte``), until it lets go or has gone away."""
    if _folder is not None:
        _stop_at(os.path.join(_folder, name))


def _stop_at(path: str) -> None:
    mine = f"{path}.hit.{os.getpid()}"
    try:
        os.rename(f"{path}.hit", mine)  # one process at most succeeds, once
    except FileNotFoundError:
        return
    # The FIFOs' test holds the reading end of .hit open from the arming on: without it there is no test any more.
    try:
        hit = os.open(mine, os.O_WRONLY | os.O_NONBLOCK)
    except OSError as error:
        if error.errno not in (errno.ENXIO, errno.ENOENT):
            raise
        return
    try:
        go = os.open(f"{path}.go", os.O_RDONLY | os.O_NONBLOCK)
        try:
            _tell_and_wait(hit, go)
        finally:
            os.close(go)
    finally:
        os.close(hit)


def _tell_and_wait(hit: int, go: int) -> None:
    try:
        os.write(hit, b"%d\n" % os.getpid())
    except BrokenPipeError:
        return
    poll = select.poll()
    poll.register(go, select.POLLIN | select.POLLHUP)
    poll.register(hit, 0)  # an error or a hang-up: the test has gone away
    poll.poll()


class Failpoint:
    """A test's side of one failpoint. As a context manager it is armed inside, and lets go at the end."""

    def __init__(self, folder: str | os.PathLike[str], name: str) -> None:
        """`folder` is what GPULAYER_FAILPOINTS names for the process under test, `name` the point's."""
        self.name = name
        self._path = os.path.join(os.fspath(folder), name)
        self._hit = -1

    def arm(self) -> None:
        """Makes the next process that reaches the point stop there. Raises FileExistsError when it is armed already."""
        os.mkfifo(f"{self._path}.go", 0o600)
        hidden = f"{self._path}.arming.{os.getpid()}"
        os.mkfifo(hidden, 0o600)
        # Opened for reading before the name appears: so a process always finds its reader.
        self._hit = os.open(hidden, os.O_RDONLY | os.O_NONBLOCK)
        os.rename(hidden, f"{self._path}.hit")

    def await_hit(self, timeout_s: float = 60.0) -> int:
        """Waits until a process stands at the point, and returns its process id.

        Raises TimeoutError after `timeout_s` seconds, RuntimeError when the process ended before it could say so.
        """
        poll = select.poll()
        poll.register(self._hit, select.POLLIN)
        if not poll.poll(timeout_s * 1000):
            raise TimeoutError(f"no process reached the failpoint {self.name} within {timeout_s} s")
        text = os.read(self._hit, 32)
        if not text.endswith(b"\n"):
            raise RuntimeError(f"the process at the failpoint {self.name} ended")
        return int(text)

    def release(self) -> None:
        """Lets the process go on, if one stands there and lives; else disarms the point. Harmless when repeated."""
        if self._hit < 0:
            return
        try:
            go = os.open(f"{self._path}.go", os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno != errno.ENXIO:  # no process waits there
                raise
        else:
            try:
                os.write(go, b"\n")
            except BrokenPipeError:
                pass  # it has just ended
            finally:
                os.close(go)
        os.close(self._hit)
        self._hit = -1
        folder = os.path.dirname(self._path)
        prefix = f"{self.name}."
        for name in os.listdir(folder):
            if name == f"{prefix}go" or name == f"{prefix}hit" or name.startswith(f"{prefix}hit."):
                os.unlink(os.path.join(folder, name))

    def __enter__(self) -> Failpoint:
        self.arm()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

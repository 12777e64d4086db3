"""Which process is meant: (boot id, pid, start time), and ways to wait for and signal exactly that one."""

from __future__ import annotations

import os
import signal
import sys

from gpulayer_worker.keeper.eventloop import READ

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from gpulayer_worker.keeper.eventloop import Loop, Timer
    from gpulayer_worker.keeper.procs import Table

BOOT_ID = "/proc/sys/kernel/random/boot_id"
POLL_S = 0.25


def boot_id() -> str:
    """The name of this boot of the machine; empty where the system has none."""
    try:
        with open(BOOT_ID) as file:
            return file.read().strip()
    except OSError:  # not Linux
        return _boot_id_by_sysctl() if sys.platform == "darwin" else ""


def _boot_id_by_sysctl() -> str:
    import subprocess

    command = ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False, text=True)
    return done.stdout.strip()


def alive(table: Table, pid: int, start_time: int | str) -> bool:
    """Whether exactly this process still runs (a zombie does not)."""
    process = table.one(pid)
    return process is not None and not process.dead and process.start_time == start_time


def open_pidfd(pid: int) -> int | None:
    """A descriptor that becomes readable when the process ends; None where there is no such process or no pidfd."""
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:  # ended, or a kernel without pidfds: the caller looks again by pid
        return None


def send_signal(table: Table, pid: int, start_time: int | str, number: int) -> bool:
    """Send a signal to exactly this process; False when it is gone. Raises PermissionError when it may not."""
    pidfd = open_pidfd(pid)
    try:
        # the pidfd is held while the start time is compared, so the pid cannot pass to another process in between
        if not alive(table, pid, start_time):
            return False
        if pidfd is not None:
            signal.pidfd_send_signal(pidfd, number)
        else:
            os.kill(pid, number)
    except ProcessLookupError:
        return False
    finally:
        if pidfd is not None:
            os.close(pidfd)
    return True


class Watch:
    """Calls back once when a process that may not be our child has ended: by pidfd, else by looking every 0.25 s."""

    def __init__(
        self,
        loop: Loop,
        table: Table,
        pid: int,
        start_time: int | str,
        callback: Callable[[], None],
        *,
        polling: bool = False,
    ) -> None:
        self._loop = loop
        self._table = table
        self._pid = pid
        self._start_time = start_time
        self._callback = callback
        self._timer: Timer | None = None
        self._pidfd = None if polling else open_pidfd(pid)
        if self._pidfd is not None and alive(table, pid, start_time):
            loop.add(self._pidfd, READ, self._fire)
        else:
            self._timer = loop.call_later(0, self._poll)

    def cancel(self) -> None:
        """Stop watching; harmless when done."""
        if self._timer is not None:
            self._timer.cancel()
        if self._pidfd is not None:
            self._loop.remove(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None

    def _poll(self) -> None:
        if alive(self._table, self._pid, self._start_time):
            self._timer = self._loop.call_later(POLL_S, self._poll)
        else:
            self._fire()

    def _fire(self) -> None:
        self.cancel()
        self._callback()

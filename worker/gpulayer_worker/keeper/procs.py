"""What runs on this machine: one process by pid, all of them, and their environments.

Two tables with the same methods: `ProcFs` reads /proc, `Ps` asks ps(1) where there is no /proc (macOS).
"""

from __future__ import annotations

import contextlib
import os
import sys

PROC = "/proc"

_NOT_SEEN = (FileNotFoundError, ProcessLookupError, PermissionError)  # gone, gone while it was read, another user's


class Process:
    """One process as seen at one moment. `start_time` is in clock ticks since boot, or ps's `lstart` text."""

    __slots__ = ("dead", "pid", "ppid", "session", "start_time")

    def __init__(self, *, pid: int, ppid: int, session: int, start_time: int | str, dead: bool) -> None:
        self.pid = pid
        self.ppid = ppid
        self.session = session
        self.start_time = start_time
        self.dead = dead  # a zombie: its parent has not fetched its status yet

    @property
    def identity(self) -> tuple[int, int | str]:
        """(pid, start time): what tells this process from a later one with the same pid, within one boot."""
        return self.pid, self.start_time


class ProcFs:
    """The processes as /proc shows them."""

    def one(self, pid: int) -> Process | None:
        """The process with this pid, or None when there is none."""
        try:
            with open(f"{PROC}/{pid}/stat", "rb", buffering=0) as file:
                return parse_stat(file.read(4096))
        except _NOT_SEEN:  # anything else, like no free descriptor, must not pass for its end
            return None

    def all(self) -> list[Process]:
        """Every process that can be seen."""
        found = (self.one(int(name)) for name in os.listdir(PROC) if name.isdigit())
        return [process for process in found if process is not None]

    def children(self, pid: int) -> list[int] | None:
        """The children of a process of one thread, zombies too; None where the kernel does not tell."""
        try:
            fd = os.open(f"{PROC}/{pid}/task/{pid}/children", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # CONFIG_PROC_CHILDREN is off
            return None
        try:
            text = os.read(fd, 1 << 16)
            while part := os.read(fd, 1 << 16):
                text += part
        finally:
            os.close(fd)
        return [int(word) for word in text.split()]

    def environ(self, pid: int) -> list[bytes]:
        """The entries of the environment that the process was started with; empty when it can't be read."""
        try:
            with open(f"{PROC}/{pid}/environ", "rb") as file:
                return file.read().split(b"\0")
        except _NOT_SEEN:
            return []


def parse_stat(text: bytes) -> Process | None:
    """Read the content of /proc/PID/stat; None when it is cut short."""
    head, _, rest = text.rpartition(b")")  # the name in between may hold spaces and brackets
    fields = rest.split()
    if len(fields) < 20:
        return None
    threads = int(fields[17])
    return Process(
        pid=int(head.split(b" ", 1)[0]),
        ppid=int(fields[1]),
        session=int(fields[3]),
        start_time=int(fields[19]),
        # a leader whose main thread ended first is shown as Z while its other threads still run
        dead=fields[0] in (b"Z", b"X") and threads <= 1,
    )


class Ps:
    """The processes as ps(1) shows them. Start times have a resolution of one second."""

    FIELDS = ("-o", "pid=,ppid=,stat=,lstart=")

    def one(self, pid: int) -> Process | None:
        """The process with this pid, or None when there is none."""
        found = [parse_ps(line) for line in run_ps("-p", str(pid), *self.FIELDS).splitlines()]
        return next((process for process in found if process is not None and process.pid == pid), None)

    def all(self) -> list[Process]:
        """Every process that can be seen."""
        found = [parse_ps(line) for line in run_ps("-ax", *self.FIELDS).splitlines()]
        if not found:  # it shows itself at least; believing it would call every group gone
            raise OSError("ps(1) does not list the processes: see that it runs")
        return [process for process in found if process is not None]

    def children(self, _: int) -> list[int] | None:
        """None: ps(1) tells of no moment for sure."""
        return None

    def environs(self) -> dict[int, list[bytes]]:
        """The words of every process's command line and environment, by pid, as far as they can be read.

        All at once: a call of ps(1) for each would take seconds.
        """
        flags = "-axEww" if sys.platform == "darwin" else "axeww"
        lines = (line.split() for line in run_ps(flags, "-o", "pid=,command=").splitlines())
        return {int(words[0]): words[1:] for words in lines if words and words[0].isdigit()}


def parse_ps(line: bytes) -> Process | None:
    """Read one line of `ps -o pid=,ppid=,stat=,lstart=`; None when it is no such line."""
    words = line.split()
    if len(words) < 4 or not words[0].isdigit():
        return None
    pid = int(words[0])
    session = 0
    with contextlib.suppress(OSError):
        session = os.getsid(pid)
    return Process(
        pid=pid,
        ppid=int(words[1]),
        session=session,
        start_time=b" ".join(words[3:]).decode(),
        dead=words[2].startswith(b"Z"),
    )


def run_ps(*arguments: str) -> bytes:
    """Standard output of ps(1) in the C locale; ps answers 1 when it finds nothing."""
    import subprocess  # only where there is no /proc

    command = ["ps", *arguments]
    env = {**os.environ, "LC_ALL": "C", "COLUMNS": "100000"}
    return subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False).stdout


Table = ProcFs | Ps


def process_table() -> Table:
    """The table that works on this machine."""
    return ProcFs() if os.path.exists(f"{PROC}/self/stat") else Ps()


class Snapshot:
    """All living processes at one moment, read on first use; `environ` is read when asked for, once."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._processes: dict[int, Process] | None = None
        self._children: dict[int, list[Process]] | None = None
        self._environ: dict[int, list[bytes]] = {}

    @property
    def processes(self) -> dict[int, Process]:
        """Living processes by pid."""
        if self._processes is None:
            self._processes = {process.pid: process for process in self._table.all() if not process.dead}
        return self._processes

    def children(self, pid: int) -> list[Process]:
        """The living children of a process."""
        if self._children is None:
            self._children = {}
            for process in self.processes.values():
                self._children.setdefault(process.ppid, []).append(process)
        return self._children.get(pid, [])

    def environ(self, pid: int) -> list[bytes]:
        """The entries of a process's environment (see the table)."""
        if pid not in self._environ:
            if isinstance(self._table, ProcFs):
                self._environ[pid] = self._table.environ(pid)
            elif not self._environ:
                self._environ = self._table.environs()
        return self._environ.get(pid, [])

    def living(self, pid: int) -> Process | None:
        """One process, read now: no need to look at all the others."""
        process = self._table.one(pid)
        return None if process is None or process.dead else process

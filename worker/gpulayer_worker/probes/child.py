"""One probe's process: its own session, low priority, small thread pools, a deadline that starts anew at each step."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import psutil

from gpulayer_worker.environ import allowed
from gpulayer_worker.probes import scripts

LIMIT_S = 60.0
_LONGEST_S = 600.0  # all steps together, with what a busy machine adds
_TAIL_BYTES = 16 * 1024  # of standard error
_LINE_BYTES = 64 * 1024  # of standard output: a longer one is none of ours
_CORES = 2
_NICE = 10  # a tenth of a core where all of them are busy: less would take minutes to say the same
_MAIN = Path(scripts.__file__).with_name("main.py")
_POOLS = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
    "NPROC",  # XLA sizes its pools by it
)
_VARIABLES = {
    **dict.fromkeys(_POOLS, "1"),
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # it would take three quarters of a device's memory
    "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    "TF_CPP_MIN_LOG_LEVEL": "2",
}


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What came of a probe's process."""

    records: tuple[Mapping[str, Any], ...] = ()  # as the script said them, in order
    stage: str = "starting"  # where it was at its end: 'importing', 'computing on GPU-1'
    ended: str = ""  # why it ended before it was through, in words; '' where it was
    more: str = ""  # to be said behind that


@dataclass
class _Said:
    """What a process has said so far. The thread that reads owns it; another one only looks."""

    mark: bytes
    waited: Callable[[], float]
    records: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    stage: str = "starting"
    since: float = field(default_factory=time.monotonic)  # when the last step began
    waited_then: float = 0.0
    done: bool = False

    def take(self, line: bytes) -> None:
        """A line of standard output."""
        if not line.startswith(self.mark):
            return
        with suppress(ValueError):  # something was written into it: what it said is missing then, and told as that
            record = json.loads(line[len(self.mark) :])
            self.records.append(record)
            self.stage = record.get("stage", self.stage)
            self.done = self.done or bool(record.get("done"))
            self.since, self.waited_then = time.monotonic(), self.waited()

    def left_s(self, limit_s: float) -> float:
        """How long the step may still take; while it waited for a core, its time stood still."""
        return self.since + limit_s + (self.waited() - self.waited_then) - time.monotonic()


class Child:
    """Runs one probe. `run` blocks; `end` may be called from another thread."""

    def __init__(
        self, python: str, ask: Mapping[str, Any], variables: Mapping[str, str | None], *, limit_s: float = LIMIT_S
    ):
        """`ask` is what `scripts/main.py` is asked, but for what is the process's own; a variable None is unset."""
        self._mark = f"gpulayer-probe-{secrets.token_hex(8)} "
        asked = {**ask, "mark": self._mark, "longest_s": int(_LONGEST_S) + 60}
        self._argv = [python, str(_MAIN), json.dumps(asked)]
        merged = {**allowed(), **_VARIABLES, **variables}
        self._env = {name: value for name, value in merged.items() if value is not None}
        self._limit_s = limit_s
        self._pid: int | None = None
        self._ended = False
        self._lock = threading.Lock()

    def run(self) -> Answer:
        """Start it, wait for its end or its deadline, and leave no process of it."""
        try:
            process = self._start()
        except OSError as error:
            return Answer(ended=f"can't be started: {error.strerror or error}")
        said = _Said(self._mark.encode(), lambda: _waited_s(process.pid))
        stderr = bytearray()
        readers = [_reading(process.stdout, _lines(said.take)), _reading(process.stderr, _tail(stderr))]
        try:
            overdue = not self._wait(process, said)
        finally:
            self._kill(process.pid)
            process.wait()
            with self._lock:
                self._pid = None
            if process.stdin:
                process.stdin.close()
            for reader in readers:
                reader.join(1.0)  # a process that left the session may hold the pipe for longer
        ended, more = ("", "") if said.done else self._words(process.returncode, overdue, stderr)
        return Answer(records=tuple(said.records), stage=said.stage, ended=ended, more=more)

    def end(self) -> None:
        """Kill it, whatever it does; one that was not started yet won't be."""
        with self._lock:
            self._ended = True
            if self._pid is not None:
                self._kill(self._pid)

    def _start(self) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._ended:
                raise OSError("the agent ends")
            process = subprocess.Popen(
                self._argv,
                env=self._env,
                cwd="/",
                stdin=subprocess.PIPE,  # its closing, which our own end brings too, ends the process
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
            self._pid = process.pid
        _lower(process.pid)
        return process

    def _wait(self, process: subprocess.Popen[bytes], said: _Said) -> bool:
        """Until its end; False where its time was over before."""
        last = time.monotonic() + _LONGEST_S
        while (left_s := min(said.left_s(self._limit_s), last - time.monotonic())) > 0:
            with suppress(subprocess.TimeoutExpired):  # a new step began meanwhile, or it waited for a core
                process.wait(left_s)
                return True
        return False

    def _kill(self, pid: int) -> None:
        """All of its session, also what left its process group."""
        with suppress(ProcessLookupError, PermissionError):  # macOS: a group of only zombies
            os.killpg(pid, signal.SIGKILL)
        for other in psutil.pids():
            with suppress(OSError):
                if other != pid and os.getsid(other) == pid:
                    os.kill(other, signal.SIGKILL)

    def _words(self, code: int, overdue: bool, stderr: bytearray) -> tuple[str, str]:
        if self._ended:
            return "the agent ended", ""
        if overdue:
            return f"gave no answer in {self._limit_s:g} s", ""
        if code == -signal.SIGKILL:
            return "was killed (SIGKILL)", ", perhaps for want of memory"
        if code < 0:
            with suppress(ValueError):
                return f"crashed ({signal.Signals(-code).name})", ""
            return f"crashed (signal {-code})", ""
        lines = stderr.decode(errors="replace").strip().splitlines()
        return f"ended with exit code {code}", f": {lines[-1].strip()[:200]}" if lines else ""


def _reading(pipe: IO[bytes] | None, take: Callable[[bytes], None]) -> threading.Thread:
    """A thread that reads a pipe to its end, and closes it."""

    def read() -> None:
        if pipe is None:
            return
        with pipe:
            while data := os.read(pipe.fileno(), 64 * 1024):
                take(data)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    return thread


def _lines(take: Callable[[bytes], None]) -> Callable[[bytes], None]:
    """Gives whole lines on; of what is no line for too long nothing is kept."""
    rest = bytearray()

    def feed(data: bytes) -> None:
        rest.extend(data)
        *lines, last = rest.split(b"\n")
        rest[:] = last[:_LINE_BYTES]
        for line in lines:
            take(bytes(line))

    return feed


def _tail(kept: bytearray) -> Callable[[bytes], None]:
    def feed(data: bytes) -> None:
        kept.extend(data)
        del kept[:-_TAIL_BYTES]

    return feed


def _lower(pid: int) -> None:
    """A low priority and few cores, so that whatever else runs here goes first; as far as the system lets us."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, pid, max(_NICE, os.getpriority(os.PRIO_PROCESS, 0)))
    with suppress(OSError):  # where sessions share the machine evenly, the session's own weight counts
        Path(f"/proc/{pid}/autogroup").write_text(str(_NICE), encoding="ascii")
    if hasattr(os, "sched_setaffinity"):
        with suppress(OSError):
            os.sched_setaffinity(pid, sorted(os.sched_getaffinity(pid))[-_CORES:])


def _waited_s(pid: int) -> float:
    """How long a process's first thread was ready to run and had no core; 0 where the system doesn't tell."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[1]) / 1e9
    return 0.0

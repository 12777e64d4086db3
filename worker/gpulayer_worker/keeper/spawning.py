"""Starting a process in two steps: fork it, write down who it is, then let it become the program.

Between the steps the child waits on a pipe. If the keeper dies meanwhile, the child reads the pipe's end and exits: no
program ever runs that no record names.
"""

from __future__ import annotations

import contextlib
import os
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

GROUP_VARIABLE = "GPULAYER_GROUP"
KEEPER_VARIABLE = "GPULAYER_KEEPER"
AGENT_GROUP = "@agent"  # never a group's id

_GO = b"g"
_HIGHEST_FD = 1 << 20


class Program:
    """What to run. `stdout` and `stderr` are files to append to, None for nowhere."""

    __slots__ = ("argv", "cwd", "env", "stderr", "stdout")

    def __init__(
        self, *, argv: list[str], env: dict[str, str], cwd: str, stdout: str | None, stderr: str | None
    ) -> None:
        self.argv = argv
        self.env = env
        self.cwd = cwd
        self.stdout = stdout
        self.stderr = stderr


class Launch:
    """A forked child, leader of its own session, that waits for `go` before it executes its program."""

    def __init__(self, program: Program) -> None:
        go_read, go_write = os.pipe()
        error_read, error_write = os.pipe()
        # no handler of ours may run in the child
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            pid = os.fork()
            if pid == 0:
                _child(program, go_read, error_write)
        except OSError:
            os.close(go_write)
            os.close(error_read)
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            os.close(go_read)
            os.close(error_write)
        os.set_blocking(error_read, False)
        self.pid = pid
        self.error_fd = error_read  # becomes readable when the program runs or cannot
        self._go_fd: int | None = go_write
        self._error = b""

    def go(self) -> None:
        """Let the child become the program."""
        if self._go_fd is not None:
            with contextlib.suppress(BrokenPipeError):  # it was killed: its status will say so
                os.write(self._go_fd, _GO)
            self.abandon()

    def abandon(self) -> None:
        """Close the pipe; a child that was not told to go exits."""
        if self._go_fd is not None:
            os.close(self._go_fd)
            self._go_fd = None

    def outcome(self) -> str | None:
        """None while undecided, '' when the program runs, else one line that says why it can't."""
        while True:
            try:
                part = os.read(self.error_fd, 4096)
            except BlockingIOError:
                return None
            if not part:
                return os.fsdecode(self._error)
            self._error += part

    def discard(self) -> None:
        """End a child that was not told to go, and reap it."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self.close()

    def close(self) -> None:
        """Give the descriptors back."""
        self.abandon()
        os.close(self.error_fd)


def _child(program: Program, go_read: int, error_write: int) -> NoReturn:
    """The child's side; it never returns and never raises."""
    step = "make a session for"
    try:
        signal.set_wakeup_fd(-1)
        _reset_signals()
        os.setsid()
        _close_all_but(go_read, error_write)
        if os.read(go_read, 1) != _GO:
            os._exit(125)
        step = f"enter the folder {program.cwd!r} of"
        os.chdir(program.cwd)
        _redirect(0, os.devnull, os.O_RDONLY)
        for fd, path in ((1, program.stdout), (2, program.stderr)):
            step = f"open the output {path!r} of"
            _redirect(fd, path or os.devnull, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        step = "run"
        os.execvpe(program.argv[0], program.argv, program.env)
    except BaseException as error:  # noqa: BLE001 - the parent reports it
        reason = error.strerror if isinstance(error, OSError) else repr(error)
        with contextlib.suppress(OSError):
            os.write(error_write, os.fsencode(f"cannot {step} {program.argv[0]!r}: {reason}")[:4000])
    finally:
        os._exit(127)


def _reset_signals() -> None:
    """Default actions for all (Python ignores some, and ignoring outlives exec), none blocked."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        with contextlib.suppress(OSError, ValueError):  # some are the C library's own
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _close_all_but(*kept: int) -> None:
    low = 3
    for fd in sorted(kept):
        os.closerange(low, fd)
        low = fd + 1
    os.closerange(low, _HIGHEST_FD)


def _redirect(target: int, path: str, flags: int) -> None:
    fd = os.open(path, flags, 0o600)
    os.dup2(fd, target)  # inheritable, unlike fd
    if fd != target:
        os.close(fd)

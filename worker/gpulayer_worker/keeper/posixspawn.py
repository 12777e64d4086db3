"""Starting a program in one step, where nothing has to be written between its birth and its first instruction."""

from __future__ import annotations

import errno
import os
import signal
import sys

from gpulayer_worker.keeper.spawning import Launch, Program

_IGNORED = [signal.SIGPIPE, signal.SIGHUP, signal.SIGXFSZ]  # by Python or by us: ignoring outlives exec
_WRITE = os.O_WRONLY | os.O_APPEND | os.O_CREAT


class StartError(Exception):
    """A program that could not be started: at which step ('cwd', 'output', 'find', 'run'), and the error's number."""

    def __init__(self, step: str, number: int) -> None:
        super().__init__(step, number)
        self.step = step
        self.number = number


def start(program: Program) -> int:
    """Start a program in a session of its own; its pid. The caller's own working folder is the program's afterwards.

    Raises StartError.
    """
    try:
        os.chdir(program.cwd)
    except OSError as error:
        raise StartError("cwd", error.errno or 0) from error
    path = find(program.argv[0], program.env.get("PATH", os.defpath))
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, program.stdout or os.devnull, _WRITE, 0o600),
        (os.POSIX_SPAWN_OPEN, 2, program.stderr or os.devnull, _WRITE, 0o600),
    ]
    try:
        return os.posix_spawn(
            path, program.argv, program.env, file_actions=actions, setsid=True, setsigmask=(), setsigdef=_IGNORED
        )
    except NotImplementedError:  # a C library that can't make a session on the way
        return _forked(program)
    except OSError as error:
        for output in (program.stdout, program.stderr):
            _check_output(output)
        raise StartError("run", error.errno or 0) from error


def start_on(program: Program, cpus: list[int]) -> int:
    """As `start`, on these cores only: a program is born with the affinity of whoever starts it; its pid.

    Raises StartError.
    """
    if not cpus or not hasattr(os, "sched_setaffinity"):
        return start(program)
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, cpus)
    except OSError as error:  # none of them is ours any more
        raise StartError("run", error.errno or 0) from error
    try:
        return start(program)
    finally:
        os.sched_setaffinity(0, before)


def find(name: str, path: str) -> str:
    """The file that a command's name means, as execvp(3) looks for it. Raises StartError."""
    if "/" in name:
        return name
    denied = False
    for folder in path.split(":"):
        candidate = f"{folder or '.'}/{name}"
        if os.access(candidate, os.X_OK) and not os.path.isdir(candidate):
            return candidate
        denied = denied or os.path.isfile(candidate)
    raise StartError("find", errno.EACCES if denied else errno.ENOENT)


def keep_from_programs() -> None:
    """Let no descriptor that we were started with, but 0, 1 and 2, reach a program."""
    folder = "/proc/self/fd" if sys.platform == "linux" else "/dev/fd"
    for name in os.listdir(folder):
        if name.isdigit() and int(name) > 2:
            try:
                os.set_inheritable(int(name), False)
            except OSError:  # the one that listed the folder
                continue


def _check_output(path: str | None) -> None:
    if path is None:
        return
    try:
        os.close(os.open(path, _WRITE | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise StartError("output", error.errno or 0) from error


def _forked(program: Program) -> int:
    launch = Launch(program)
    launch.go()
    os.set_blocking(launch.error_fd, True)
    failure = launch.outcome()
    launch.close()
    if failure:
        os.waitpid(launch.pid, 0)
        raise StartError("run", errno.ENOEXEC)
    return launch.pid

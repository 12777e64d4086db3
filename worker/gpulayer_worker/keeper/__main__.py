"""`python -m gpulayer_worker.keeper --data DIR [--portable] [--containment KIND] [--detach] -- AGENT ARGV...`"""

from __future__ import annotations

import os
import sys

from gpulayer_worker.keeper import run
from gpulayer_worker.keeper.records import rotate_log

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

USAGE = (
    "usage: python -m gpulayer_worker.keeper --data DIR [--portable] [--containment cgroup|subreaper|marker] "
    "[--detach] -- AGENT ARGV..."
)


class Options:
    """The command line. `data` is absolute."""

    def __init__(self) -> None:
        self.data = ""
        self.portable = False
        self.detach = False
        self.containment: str | None = None
        self.agent_argv: list[str] = []


def parse(arguments: list[str]) -> Options | None:
    """Read the command line (by hand: argparse would be a tenth of this process); None when it is wrong."""
    options = Options()
    words = iter(arguments)
    for word in words:
        if word == "--":
            options.agent_argv = list(words)
        elif word == "--data":
            options.data = next(words, "")
        elif word == "--containment":
            options.containment = next(words, "")
        elif word in ("--portable", "--detach"):
            setattr(options, word[2:], True)
        else:
            return None
    if not options.data or not options.agent_argv or options.containment == "":
        return None
    options.data = os.path.abspath(options.data)
    return options


def main(arguments: list[str]) -> int:
    """Be the keeper; with --detach start it in a session of its own and return when its socket answers."""
    options = parse(arguments)
    if options is None:
        sys.stderr.write(USAGE + "\n")
        return 2
    if options.detach:
        return detach(options)
    return run(options.data, options.agent_argv, portable=options.portable, containment=options.containment)


def detach(options: Options) -> int:
    """Fork the keeper. Returns 0 once it serves, else its own exit code after its line on standard error."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        _serve_detached(options, write)
    os.close(write)
    if os.read(read, 1):
        return 0
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _serve_detached(options: Options, ready_fd: int) -> NoReturn:
    code = 1
    try:
        os.setsid()
        os.chdir("/")  # keep no file system busy

        def ready() -> None:
            _to_log(os.path.join(options.data, "logs", "keeper.log"))
            os.write(ready_fd, b"r")
            os.close(ready_fd)

        code = run(
            options.data,
            options.agent_argv,
            portable=options.portable,
            containment=options.containment,
            on_ready=ready,
        )
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        raise
    finally:
        sys.stderr.flush()
        os._exit(code)


def _to_log(path: str) -> None:
    """From here on nobody listens: the standard streams become nothing and the keeper's log."""
    rotate_log(path)
    null = os.open(os.devnull, os.O_RDWR)
    log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for fd, target in ((null, 0), (null, 1), (log, 2)):
        os.dup2(fd, target)
    os.close(null)
    os.close(log)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

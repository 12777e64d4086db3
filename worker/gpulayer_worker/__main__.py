"""`gpulayer-worker`: join a control plane with this machine."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
from pathlib import Path
from typing import Any

from gpulayer.protocol.localdisk import network_filesystem
from gpulayer.protocol.places import REMOTE, data_folder

_TOKEN_LETTERS = 4096  # what surely fits into a pipe
# With `-m` Python would look for modules in the current folder first: whoever may write there would get the token.
_ANEW = "import sys; sys.path[:] = filter(None, sys.path); from gpulayer_worker.__main__ import {0}; sys.exit({0}())"
_USAGE = """\
examples:
  {0} join https://HOST:PORT --token TOKEN --tls-fingerprint SHA256:…
                                    join a control plane on another machine, by the line that it shows
  {0} join                     the same worker again: it has a credential of its own now
  {0} join --slots 4           no more than four tasks at a time
  {0} join http://127.0.0.1:8765 --name b
                                    a second worker beside the one of this machine's own control plane

It stays until Ctrl-C, which ends what runs here too; a closed terminal ends neither. While the control plane is away,
what runs goes on, and the worker comes back to it by itself.

exit codes:
    0  told to end
    1  refused, or it could not begin
    2  the command line can't be understood
    3  another worker holds its data folder
"""


def main(argv: list[str] | None = None) -> int:
    """Exit codes: 0 told to end, 1 refused or failed, 2 wrong arguments, 3 another worker holds the folder.

    `argv`: what a program asks for; None: this process's own command line, in which no token stays.
    """
    return _main("gpulayer-worker", _without_token("main", sys.argv[1:]) if argv is None else argv)


def join_main(argv: list[str] | None = None) -> int:
    """`gpulayer join`: the same as `gpulayer-worker join`, with the words that follow; None: this process's own."""
    words = ["join", *(sys.argv[1:] if argv is None else argv)]
    return _main("gpulayer", _without_token("join_main", words))


def _main(program: str, words: list[str]) -> int:
    options = _parser(program).parse_args(words)
    options.program = program
    os.umask(0o077)
    if options.command == "agent":
        return _agent(options)
    return _join(options)


def _without_token(entry: str, words: list[str]) -> list[str]:
    """The words, if no token is among them; else this process begins anew without it: anybody may read command lines.

    The token goes by a pipe, of which its number is left. `entry`: the function here that is called then.
    """
    kept: list[str] = []
    token: str | None = None
    rest = iter(words)
    for word in rest:
        if word == "--token":
            token = next(rest, None)
            if token is None:
                return words  # argparse says what is missing
        elif word.startswith("--token="):
            token = word.partition("=")[2]
        else:
            kept.append(word)
    if token is None or len(token) > _TOKEN_LETTERS:
        return words
    reading, writing = os.pipe()
    os.write(writing, token.encode(errors="surrogateescape"))
    os.close(writing)
    os.set_inheritable(reading, True)
    kept = kept[1:] if entry == "join_main" else kept
    command = [sys.executable, "-c", _ANEW.format(entry), *kept, "--token-fd", str(reading)]
    return os.execv(sys.executable, command)


def _parser(program: str) -> argparse.ArgumentParser:
    shown: dict[str, Any] = {
        "epilog": _USAGE.format(program),
        "formatter_class": argparse.RawDescriptionHelpFormatter,
    }
    parser = argparse.ArgumentParser(prog=program, description=__doc__, **shown)
    commands = parser.add_subparsers(dest="command", required=True, metavar="join")
    about = "Give this machine to a control plane: it takes work from there until it is told to end."
    for name in ("join", "agent"):
        help = {"help": "join, and stay until told to end"} if name == "join" else {}
        command = commands.add_parser(name, description=about, allow_abbrev=False, **help, **shown)
        command.add_argument("url", nargs="?", help="the control plane's address")
        if name == "join":
            command.add_argument("--token", help="of a join line: exchanged at once for a credential of this worker's "
                                 "own, which is kept in its data folder; later joins need none")  # fmt: skip
            command.add_argument("--tls-fingerprint", metavar="SHA256:…", help="of a join line: the certificate that "
                                 "must answer there; it is compared before the token is sent")  # fmt: skip
            command.add_argument("--token-fd", type=int, help=argparse.SUPPRESS)
        else:
            command.add_argument("--joined", action="store_true")  # the credential in --data counts, and nothing else
        command.add_argument("--control-plane", type=Path, metavar="FOLDER",
                             help="the data folder of a control plane on this machine, with endpoint.json")  # fmt: skip
        command.add_argument("--data", type=Path, help="this worker's own data folder")
        command.add_argument("--name", default=os.uname().nodename or "worker", help="the name that people see")
        command.add_argument("--slots", type=int, help="how many tasks at a time; by default the usable cores")
        command.add_argument("--python", default=sys.executable, help="the interpreter of cells; it needs ipykernel")
        command.add_argument("--warm", type=int, default=1, help="kernels kept ready")
        command.add_argument("--reserve-bytes", type=int, default=1 << 30, help="free disk below which output waits")
        command.add_argument("--cache-bytes", type=int, help="of files that jobs were given, kept for later ones; by "
                             "default 20 GB, or a tenth of the disk if that is less")  # fmt: skip
        command.add_argument("--label", action="append", default=[], metavar="KEY=VALUE", help="what jobs can ask for "
                             "by --worker-label; gpulayer.dev/network-group=NAME for near machines")  # fmt: skip
        command.add_argument("--region", default="", help="where the machine is; by default GPULAYER_REGION, or what "
                             "Google's cloud says of its own machines")  # fmt: skip
        command.add_argument("--zone", default="", help="likewise, by default GPULAYER_ZONE")
        command.add_argument("--portable", action="store_true", help="use nothing that only Linux has")
        command.add_argument("--local", action="store_true", help=argparse.SUPPRESS)
    return parser


def _data(options: argparse.Namespace) -> Path:
    if options.data is not None:
        return options.data.absolute()
    name = re.sub(r"[^A-Za-z0-9._-]", "_", options.name)
    return data_folder().parent / f"worker-{name}"


def _plane(options: argparse.Namespace) -> Path:
    """The data folder of a control plane on this machine."""
    return (options.control_plane or data_folder()).absolute()


def _say(options: argparse.Namespace, line: str) -> None:
    with contextlib.suppress(OSError):  # the terminal is gone
        print(f"{options.program}: {line}", file=sys.stderr, flush=True)  # noqa: T201 a command's own output


def _join(options: argparse.Namespace) -> int:
    """Become the keeper, which starts the agent, and starts it again."""
    for name in REMOTE:
        os.environ.pop(name, None)  # neither the keeper nor its agent, nor what they start, is a client
    if options.token_fd is not None:
        with open(options.token_fd, encoding="utf-8", errors="surrogateescape") as pipe:
            options.token = pipe.read()
    problem, code = _trouble(options)
    if problem:
        _say(options, problem)
        return code
    flags = ["--portable"] if options.portable else []
    command = [sys.executable, "-m", "gpulayer_worker.keeper", "--data", str(_data(options)), *flags]
    # A new program, not a call: the keeper stays for as long as the worker, and what was imported here is half of it.
    agent = agent_argv(options)
    os.chdir("/")  # nothing of the folder where somebody typed this is theirs, and nobody has to keep it for them
    return os.execv(sys.executable, [*command, "--", *agent])


def _trouble(options: argparse.Namespace) -> tuple[str, int]:
    """Why it can't begin, or is not wanted, and the exit code; '' for nothing."""
    problem = _check(options)
    if problem or options.local:  # whoever started a local one wants it
        return problem, 2
    from gpulayer_worker.admission import admit
    from gpulayer_worker.credential import JoinError

    try:
        return admit(options, _data(options), lambda line: _say(options, line)), 2
    except JoinError as error:
        return str(error), error.code


def _check(options: argparse.Namespace) -> str:
    """What is wrong with the command line; '' for nothing."""
    if options.slots is not None and options.slots < 1:
        return f"--slots {options.slots}: a worker offers at least one"
    try:
        _labels(options.label)
    except ValueError as error:
        return str(error)
    kind = network_filesystem(_data(options))
    if kind:
        text = f"{_data(options)} lies on a network file system ({kind}), where locks and sockets are not safe"
        return f"{text}; give --data a folder on a local disk"
    options.joined = False
    return ""


def _labels(words: list[str]) -> dict[str, str]:
    """Raises ValueError."""
    if not words:
        return {}
    from gpulayer_worker.inventory import location

    return location.labels(words)


def agent_argv(options: argparse.Namespace) -> list[str]:
    """The command line of an agent with the same options."""
    argv = [sys.executable, "-m", "gpulayer_worker", "agent"]
    argv += ["--joined"] if options.joined else ["--control-plane", str(_plane(options))]
    python = str(Path(options.python).absolute()) if os.sep in options.python else options.python
    argv += ["--data", str(_data(options)), "--name", options.name, "--python", python]
    argv += ["--warm", str(options.warm), "--reserve-bytes", str(options.reserve_bytes)]
    if options.slots is not None:
        argv += ["--slots", str(options.slots)]
    if options.cache_bytes is not None:
        argv += ["--cache-bytes", str(options.cache_bytes)]
    for flag, words in (("--region", [options.region]), ("--zone", [options.zone]), ("--label", options.label)):
        argv += [f"{flag}={word}" for word in words if word]
    argv += [flag for flag, on in (("--portable", options.portable), ("--local", options.local)) if on]
    return argv


def _agent(options: argparse.Namespace) -> int:
    from gpulayer_worker.agentmain import run

    return run(options, agent_argv(options), _labels(options.label))


if __name__ == "__main__":
    sys.exit(main())

"""`gpulayer up`: let other machines join, by a line that is pasted there."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import re
import shlex
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from gpulayer.protocol.endpoint import data_folder
from gpulayer_server.commands.fleet import Fleet, say
from gpulayer_server.commands.holding import Holding, UpError
from gpulayer_server.datafolder import DataFolderError
from gpulayer_server.listening import ListenError
from gpulayer_server.store.database import StoreError

DEFAULT_PORT = 8443

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd])?")
_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, None: 1.0}
_USAGE = """\
examples:
  gpulayer up                          listen on this machine's address, port 8443; shows the line for the others
  gpulayer up --host 10.0.0.5          on another of its addresses, or by a name: --host box.lab.example
  gpulayer up --no-worker              this machine takes no work itself
  gpulayer up --join-expires 7d        the line may be pasted for so long

It shows a new line for each machine after the first. Ctrl-C ends it, a second one at once; jobs go on at their
machines, and 'gpulayer up' again is back with them.

exit codes:
    0  ended by Ctrl-C, SIGTERM or a closed terminal
    1  it could not begin or go on: one line says why
    2  the command line can't be understood
  130  ended by a second Ctrl-C, which waits for nothing
"""


def main(argv: list[str]) -> int:
    """Run until Ctrl-C. Exit codes: 0 ended, 1 could not begin or go on, 2 wrong arguments, 130 a second Ctrl-C."""
    options = _parser().parse_args(argv)
    os.umask(0o077)
    try:
        return asyncio.run(_run(options))
    except (UpError, DataFolderError, ListenError, StoreError, OSError) as error:
        with contextlib.suppress(OSError):  # the terminal is gone
            print(f"gpulayer: {error}", file=sys.stderr, flush=True)  # noqa: T201 a command's own output
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gpulayer up",
        description="Let other machines join this one: shows the line to paste there.",
        epilog=_USAGE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--host", type=_host, help="the address or name by which the others reach this machine; "
                        "by default the one with the default route")  # fmt: skip
    parser.add_argument("--port", type=_port, help=f"by default the one of before, or {DEFAULT_PORT}")
    parser.add_argument("--data", type=Path, help="the data folder; by default GPULAYER_DATA, or this user's own")
    parser.add_argument("--name", help="the name of this machine's own worker; by default the machine's")
    parser.add_argument("--slots", type=_slots, help="how many tasks it takes at a time; by default its usable cores")
    parser.add_argument("--no-worker", action="store_true", help="start no worker on this machine")
    parser.add_argument("--join-expires", type=_seconds, default=86_400.0, metavar="DURATION",
                        help="how long a join line is good for: 90s, 30m, 24h (the default), 7d")  # fmt: skip
    return parser


def _host(text: str) -> str:
    bare = text.strip().removeprefix("[").removesuffix("]")
    if not bare:
        raise argparse.ArgumentTypeError("it is empty; name an address or name of this machine, or 0.0.0.0 for all")
    return bare


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65_535:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a port; name one of 1 to 65535, or 0 for any")
    return int(text)


def _slots(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text[:40]!r}: a worker offers at least one slot")
    return int(text)


def _seconds(text: str) -> float:
    found = _DURATION.fullmatch(text.strip())
    if found is None or float(found[1]) <= 0:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a duration such as 90s, 30m, 24h or 7d")
    return float(found[1]) * _UNITS_S[found[2]]


def _worker_arguments(options: argparse.Namespace) -> list[str] | None:
    """Of this machine's own worker; None for no worker."""
    if options.no_worker:
        return None
    arguments = shlex.split(os.environ.get("GPULAYER_LOCAL_WORKER", ""))
    if options.name is not None:
        arguments += ["--name", options.name]
    if options.slots is not None:
        arguments += ["--slots", str(options.slots)]
    return arguments


def _log_to(data: Path) -> None:
    """What is logged goes to the data folder: the terminal shows what a person needs."""
    logs = data / "logs"
    try:
        logs.mkdir(mode=0o700, parents=True, exist_ok=True)
        logging.basicConfig(
            filename=logs / "control-plane.log",
            level=logging.INFO,
            format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        )
    except OSError as error:
        raise DataFolderError(f"{data} can't be the data folder: {error.strerror}; name another with --data") from error


async def _run(options: argparse.Namespace) -> int:
    data = (options.data or data_folder()).expanduser().absolute()
    _log_to(data)
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, _told_to_end, number, stopping)
    holding = Holding(data, options.host, options.port, DEFAULT_PORT, _worker_arguments(options))
    fleet = Fleet(holding, options.join_expires)
    try:
        await _until_told(stopping, holding.begin())
        await _until_told(stopping, fleet.begin())
        await _until_told(stopping, fleet.tell(), holding.run())
    finally:
        last = await holding.end()
    say(last)
    return 0


def _told_to_end(number: int, stopping: asyncio.Event) -> None:
    """Begin to end. Who says so twice by hand waits for nothing more: what is committed outlives any kill."""
    if stopping.is_set() and number == signal.SIGINT:
        os._exit(128 + number)
    stopping.set()


async def _until_told(stopping: asyncio.Event, *work: Coroutine[Any, Any, None]) -> None:
    """Do this, until one part of it is done or this process is told to end. An error of it is raised."""
    ended = asyncio.ensure_future(stopping.wait())
    tasks = [asyncio.ensure_future(each) for each in work]
    await asyncio.wait({ended, *tasks}, return_when=asyncio.FIRST_COMPLETED)
    done = [task for task in tasks if task.done()]
    for task in (ended, *tasks):
        task.cancel()
    await asyncio.gather(ended, *tasks, return_exceptions=True)
    for task in done:
        task.result()

"""`python -m gpulayer_server`: a control plane as a process of its own, such as an embedded one.

It takes its folder and starts its worker before it imports what it is made of: both come up at the same time.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from gpulayer.protocol.places import data_folder
from gpulayer_server.folderlock import DataFolderError, FolderHeld, Taken, take
from gpulayer_server.localworker import Begun, begin

if TYPE_CHECKING:
    from gpulayer_server.datafolder import Listen


def main(argv: list[str] | None = None) -> int:
    """Run until a signal, or with `--idle-exit` until unused. Exit codes: 0 ended, 3 the folder is held, 1 failed."""
    options = _parser().parse_args(argv)
    os.umask(0o077)
    try:
        return _serve(options, _take(options))
    except DataFolderError as error:
        print(f"gpulayer: {error}", file=sys.stderr)  # noqa: T201 a command's own output
        return 3 if isinstance(error, FolderHeld) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m gpulayer_server", description=__doc__)
    parser.add_argument("--data", type=Path, default=data_folder(), help="the data folder")
    parser.add_argument("--port", type=int, default=0, help="the port on loopback; by default the last one, or any")
    parser.add_argument("--listen", type=_listen, metavar="HOST:PORT", help="where other machines find it, by TLS; "
                        "the next holder of the folder listens there too")  # fmt: skip
    parser.add_argument("--local-worker", action="store_true", help="start a worker on this machine too")
    parser.add_argument("--worker-arguments", default="", help="further arguments of that worker, separated by spaces")
    parser.add_argument("--announce", action="store_true", help="print the address once it listens")
    parser.add_argument("--stand-by", action="store_true", help="wait until the folder's holder ends, then take over")
    parser.add_argument("--idle-exit", type=float, metavar="SECONDS", help="end when unused for so long")
    for name, kind, text in (
        ("--keep-jobs", int, "so many jobs that ended are kept"),
        ("--keep-days", float, "for so long jobs are kept after their end"),
        ("--keep-blobs-bytes", int, "of files that no kept job names, and of those that they do, so much is kept"),
    ):
        parser.add_argument(name, type=kind, help=f"{text}; else as settings.json in the data folder says")
    return parser


def _listen(text: str) -> Listen:
    from gpulayer_server.datafolder import read_listen

    try:
        return read_listen(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _take(options: argparse.Namespace) -> Taken | None:
    """The folder; None with `--stand-by` where another one holds it. Raises `DataFolderError`."""
    try:
        return take(options.data)
    except FolderHeld:
        if not options.stand_by:
            raise
        return None


def _serve(options: argparse.Namespace, taken: Taken | None) -> int:
    """Start the worker, then the control plane. Raises `DataFolderError`; neither is left then."""
    worker: Begun | None = None
    signal.signal(signal.SIGTERM, _end)
    try:
        if options.local_worker and taken is not None:
            worker = begin(options.data, options.worker_arguments.split())
        from gpulayer_server.serving import serve

        return serve(options, taken, worker)
    finally:
        if worker is not None:
            worker.close()
        if taken is not None:
            taken.close()


def _end(number: int, frame: object) -> NoReturn:
    """Told to end before there is a loop that is told."""
    raise SystemExit(0)


if __name__ == "__main__":
    sys.exit(main())

"""`python -m gpulayer_server`: a control plane as a process of its own, such as an embedded one."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import sys
from pathlib import Path

from gpulayer.protocol.endpoint import data_folder
from gpulayer_server.datafolder import DataFolder, DataFolderError, FolderHeld, Listen, read_listen, when_free
from gpulayer_server.garbage import collect_seldom
from gpulayer_server.listening import ListenError
from gpulayer_server.service import Service
from gpulayer_server.settings import Kept, read_settings
from gpulayer_server.store.database import StoreError

log = logging.getLogger("gpulayer.server")


def main(argv: list[str] | None = None) -> int:
    """Run until a signal, or with `--idle-exit` until unused. Exit codes: 0 ended, 3 the folder is held, 1 failed."""
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
    options = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    os.umask(0o077)
    try:
        return asyncio.run(_run(options))
    except (DataFolderError, StoreError, ListenError) as error:
        print(f"gpulayer: {error}", file=sys.stderr)  # noqa: T201 a command's own output
        return 3 if isinstance(error, FolderHeld) else 1


def _listen(text: str) -> Listen:
    try:
        return read_listen(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


async def _run(options: argparse.Namespace) -> int:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    folder = await _take(options, stopping)
    if folder is None:
        return 0
    flags = Kept(keep_jobs=options.keep_jobs, keep_days=options.keep_days, keep_blobs_bytes=options.keep_blobs_bytes)
    try:
        settings = read_settings(folder.path, flags)
    except DataFolderError:
        folder.close()
        raise
    service = Service(folder, port=options.port, listen=options.listen, settings=settings)
    endpoint = await service.start()
    collect_seldom()
    if options.announce:
        with contextlib.suppress(BrokenPipeError):  # whoever waited for it is gone
            print(endpoint.url, flush=True)  # noqa: T201
    if options.local_worker:
        service.start_local_worker(*options.worker_arguments.split())
    told = asyncio.ensure_future(stopping.wait())
    unused = asyncio.ensure_future(service.until_unused(options.idle_exit or float("inf")))
    await asyncio.wait({told, unused}, return_when=asyncio.FIRST_COMPLETED)
    told.cancel()
    unused.cancel()
    await service.stop(with_local_worker=not stopping.is_set())
    return 0


async def _take(options: argparse.Namespace, stopping: asyncio.Event) -> DataFolder | None:
    """The folder, with `--stand-by` once its holder has ended; None when told to end before."""
    try:
        return DataFolder(options.data)
    except FolderHeld as held:
        if not options.stand_by:
            raise
        log.info("standing by: %s", held)
    told = asyncio.ensure_future(stopping.wait())
    waiting = asyncio.ensure_future(when_free(options.data))
    await asyncio.wait({told, waiting}, return_when=asyncio.FIRST_COMPLETED)
    told.cancel()
    if waiting.done():
        return waiting.result()
    waiting.cancel()
    return None


if __name__ == "__main__":
    sys.exit(main())

"""One control plane as a process: from the taken folder to its end."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import signal

from gpulayer_server.datafolder import DataFolder, DataFolderError, FolderHeld, Taken, when_free
from gpulayer_server.garbage import collect_seldom
from gpulayer_server.listening import ListenError
from gpulayer_server.localworker import Begun
from gpulayer_server.service import Service
from gpulayer_server.settings import Kept, read_settings
from gpulayer_server.store.database import StoreError

log = logging.getLogger("gpulayer.server")


def serve(options: argparse.Namespace, taken: Taken | None, worker: Begun | None) -> int:
    """Run until a signal, or with `--idle-exit` until unused; the exit code.

    Arguments:
        options: the command line's.
        taken: the folder, where it was taken already.
        worker: the local worker, where it was started already; it is taken once the control plane listens.

    Raises `DataFolderError`.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        return asyncio.run(_run(options, taken, worker))
    except (StoreError, ListenError) as error:
        raise DataFolderError(str(error)) from error


async def _run(options: argparse.Namespace, taken: Taken | None, worker: Begun | None) -> int:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    folder = await _take(options, taken, stopping)
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
    if worker is not None:
        service.expect_local_worker(worker.take())
    elif options.local_worker:
        service.start_local_worker(*options.worker_arguments.split())
    told = asyncio.ensure_future(stopping.wait())
    unused = asyncio.ensure_future(service.until_unused(options.idle_exit or float("inf")))
    await asyncio.wait({told, unused}, return_when=asyncio.FIRST_COMPLETED)
    told.cancel()
    unused.cancel()
    await service.stop(with_local_worker=not stopping.is_set())
    return 0


async def _take(options: argparse.Namespace, taken: Taken | None, stopping: asyncio.Event) -> DataFolder | None:
    """The folder, with `--stand-by` once its holder has ended; None when told to end before."""
    try:
        return DataFolder(options.data, taken=taken)
    except FolderHeld as held:
        log.info("standing by: %s", held)
    told = asyncio.ensure_future(stopping.wait())
    waiting = asyncio.ensure_future(when_free(options.data))
    await asyncio.wait({told, waiting}, return_when=asyncio.FIRST_COMPLETED)
    told.cancel()
    if waiting.done():
        return waiting.result()
    waiting.cancel()
    return None

"""`python -m gpulayer_server`: a control plane as a process of its own, such as an embedded one."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from pathlib import Path

from gpulayer.protocol.endpoint import data_folder
from gpulayer_server.datafolder import DataFolderError
from gpulayer_server.service import Service
from gpulayer_server.store.database import StoreError


def main(argv: list[str] | None = None) -> int:
    """Run until a signal, or with `--idle-exit` until unused. Exit codes: 0 ended, 3 the folder is held, 1 failed."""
    parser = argparse.ArgumentParser(prog="python -m gpulayer_server", description=__doc__)
    parser.add_argument("--data", type=Path, default=data_folder(), help="the data folder")
    parser.add_argument("--port", type=int, default=0, help="the port on loopback; by default the last one, or any")
    parser.add_argument("--local-worker", action="store_true", help="start a worker on this machine too")
    parser.add_argument("--worker-arguments", default="", help="further arguments of that worker, separated by spaces")
    parser.add_argument("--announce", action="store_true", help="print the address once it listens")
    parser.add_argument("--idle-exit", type=float, metavar="SECONDS", help="end when unused for so long")
    options = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    os.umask(0o077)
    try:
        return asyncio.run(_run(options))
    except DataFolderError as error:
        print(f"gpulayer: {error}", file=sys.stderr)  # noqa: T201 a command's own output
        return 3
    except StoreError as error:
        print(f"gpulayer: {error}", file=sys.stderr)  # noqa: T201
        return 1


async def _run(options: argparse.Namespace) -> int:
    service = Service(options.data, port=options.port)
    endpoint = await service.start()
    if options.announce:
        print(endpoint.url, flush=True)  # noqa: T201
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    if options.local_worker:
        service.start_local_worker(*options.worker_arguments.split())
    told = asyncio.ensure_future(stopping.wait())
    unused = asyncio.ensure_future(service.until_unused(options.idle_exit or float("inf")))
    await asyncio.wait({told, unused}, return_when=asyncio.FIRST_COMPLETED)
    told.cancel()
    unused.cancel()
    await service.stop(with_local_worker=not stopping.is_set())
    return 0


if __name__ == "__main__":
    sys.exit(main())

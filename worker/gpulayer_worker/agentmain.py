"""The agent as a process."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal

from gpulayer.protocol.endpoint import Endpoint, read_endpoint
from gpulayer_worker.agent import Agent, Options
from gpulayer_worker.credential import joined_endpoint
from gpulayer_worker.inventory.limits import usable_cores


def run(options: argparse.Namespace, argv: list[str], labels: dict[str, str]) -> int:
    """Be the agent until it is told to end; the exit code for the keeper. `argv`: of an agent with the same options."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")

    def endpoint() -> Endpoint | None:
        return joined_endpoint(options.data) if options.joined else read_endpoint(options.control_plane)

    given = Options(
        data=options.data,
        name=options.name,
        slots=options.slots or usable_cores(),
        python=options.python,
        control_plane=None if options.joined else options.control_plane,
        agent_argv=argv,
        local=options.local,
        portable=options.portable,
        warm=options.warm,
        reserve_bytes=options.reserve_bytes,
        cache_bytes=options.cache_bytes,
        region=options.region,
        zone=options.zone,
        labels=labels,
    )

    signal.signal(signal.SIGIO, signal.SIG_IGN)  # of a lease that somebody wants back while `rooms` has it

    async def work() -> int:
        agent = Agent(given, endpoint)
        loop = asyncio.get_running_loop()
        task = asyncio.ensure_future(agent.run())
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, agent.stop)
        return await task

    return asyncio.run(work())

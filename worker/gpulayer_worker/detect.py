"""`gpulayer resources detect`: what a worker here would tell of this machine, without any control plane."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import tempfile
from pathlib import Path

from msgspec.structs import replace

from gpulayer.protocol.types import Inventory, Sample
from gpulayer_worker.layout import Layout
from gpulayer_worker.machine import Machine
from gpulayer_worker.options import Options
from gpulayer_worker.probes import Probes, probe_all

_BETWEEN_S = 0.5  # two looks at the counters, of which rates are made


def detect(python: str = sys.executable) -> tuple[Inventory, Sample]:
    """Look at this machine, take a sample, probe its frameworks. Blocks; every step has a deadline of its own.

    `python`: the interpreter for jobs.
    """
    logging.getLogger("gpulayer.worker").addHandler(logging.NullHandler())  # what it would say is in the inventory
    inventory, sample = asyncio.run(_look())
    asked = Probes(python, None).packages()
    problems = (asked.problem, *inventory.problems) if asked.problem else inventory.problems
    inventory = replace(inventory, python=asked.python or inventory.python, problems=problems)
    return replace(inventory, frameworks=probe_all(python, inventory)), sample


async def _look() -> tuple[Inventory, Sample]:
    with tempfile.TemporaryDirectory(prefix="gpulayer-detect-") as folder:
        data = Path(folder)
        machine = Machine(Options(data=data, name="", slots=1, python=sys.executable), Layout(data), os.environ)
        try:
            await machine.start()
            await machine.settled()
            await machine.sample()
            await asyncio.sleep(_BETWEEN_S)
            sample = await machine.sample()
            return machine.inventory, sample
        finally:
            await machine.close()

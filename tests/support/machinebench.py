"""A machine as a worker tells of it, over an NVML and probes that are made up, all in this process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from gpulayer.protocol.types import Framework, Inventory, Outcome, Sample, State
from gpulayer_worker.inventory.nvml import Nvml
from gpulayer_worker.inventory.nvmlchild import answer
from gpulayer_worker.inventory.nvmlguard import NvmlGuard, NvmlTrouble
from gpulayer_worker.layout import Layout
from gpulayer_worker.machine import Machine
from gpulayer_worker.options import Options
from tests.support import fakenvml
from tests.support.fakenvml import Fake, card

FIRST, SECOND = card(0)["uuid"], card(1)["uuid"]
FAILED = Outcome(state=State.FAILED, error="CUDA error: uncorrectable ECC error encountered")


class Guard(NvmlGuard):
    """Asks a made-up NVML in this process."""

    def __init__(self, of: fakenvml.Machine):
        super().__init__()
        self.fake = Fake(of)
        self.nvml: Nvml | None = None
        self.open = asyncio.Event()  # until it is set nobody is answered
        self.open.set()
        self.starts = asyncio.Event()  # until it is set it is not even known whether there are devices
        self.starts.set()
        self.cut_off = 0  # questions

    async def ask(self, question: dict[str, Any], deadline_s: float) -> dict[str, Any]:
        await self.starts.wait()
        self.present = self.fake.of["present"]
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.cut_off += 1
            raise
        try:
            self.nvml = self.nvml or Nvml(self.fake)
            return json.loads(json.dumps(answer(self.nvml, question)))
        except fakenvml.NVMLError as error:
            self.nvml = None
            raise NvmlTrouble(str(error)) from error


class Prober:
    """Probes as it is told to."""

    def __init__(self) -> None:
        self.verdicts: dict[str, str] = {}  # by UUID; '' works
        self.probed: list[str] = []
        self.anew: list[str] = []
        self.seen: list[str] = [FIRST, SECOND]  # devices of which something is known
        self.tell: Callable[[Framework], None] = lambda _: None
        self.tell_asked: Callable[[], None] = lambda: None
        self.pending = {"torch"}
        self.asked: Any = SimpleNamespace(python="3.12.1", problem="")
        self.hold = asyncio.Event()  # until it is set no probe of a device ends
        self.hold.set()

    def packages(self) -> Any:
        return self.asked

    def probing(self, inventory: Inventory) -> tuple[str, ...]:
        late = {device.uuid for device in inventory.devices} - set(self.seen)
        return tuple(sorted(self.pending | ({"late"} if late else set())))

    def known(self, inventory: Inventory) -> tuple[Framework, ...]:
        return (Framework(name="mlx", version="0.30"),)

    async def watch(
        self, inventory: Callable[[], Inventory], tell: Callable[[Framework], None], asked: Callable[[], None]
    ) -> None:
        self.tell, self.tell_asked = tell, asked
        await asyncio.Event().wait()

    def again(self, uuid: str) -> None:
        self.anew.append(uuid)

    async def probe_device(self, uuid: str) -> str:
        self.probed.append(uuid)
        await self.hold.wait()
        return self.verdicts.get(uuid, "")


class Bench:
    """A machine, and what it told."""

    def __init__(self, folder: Path, of: fakenvml.Machine, **options: Any):
        self.guard, self.prober = Guard(of), Prober()
        self.told: list[Inventory] = []
        self.samples: list[Sample] = []
        self.news = asyncio.Event()
        self.machine = Machine(
            Options(data=folder, name="w", slots=1, python="python", **options),
            Layout(folder),
            {"NO_GCE_CHECK": "true"},
            changed=self._changed,
            measured=self._measured,
            prober=self.prober,
            guard=self.guard,
        )

    def _changed(self, inventory: Inventory) -> None:
        self.told.append(inventory)
        self.news.set()

    def _measured(self, sample: Sample) -> None:
        self.samples.append(sample)
        self.news.set()

    async def start(self) -> None:
        await self.machine.start()
        self.machine.open()

    async def until(self, what: Callable[[], Any]) -> None:
        """Wait for news until it is so."""
        while not what():
            self.news.clear()
            await self.news.wait()

    async def ticked(self) -> None:
        """One second, and all that comes of it."""
        before = set(self.machine._tasks)
        self.machine.tick(connected=True)
        await asyncio.gather(*(self.machine._tasks - before))

    @property
    def sick(self) -> dict[str, str]:
        return {device.uuid: device.sick for device in self.machine.inventory.devices if device.sick}


def run(
    folder: Path,
    of: fakenvml.Machine,
    test: Callable[[Bench], Awaitable[None]],
    *,
    started: bool = True,
    **options: Any,
) -> None:
    async def go() -> None:
        bench = Bench(folder, of, **options)
        try:
            if started:
                await bench.start()
            await test(bench)
        finally:
            bench.guard.starts.set()
            bench.guard.open.set()
            await bench.machine.close()

    asyncio.run(go())

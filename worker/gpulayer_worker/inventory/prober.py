"""What the machine asks of `gpulayer_worker.probes.Probes(python, data, tell)`.

`python` is the interpreter for jobs, `data` the worker's folder (for the cache), `tell` is called without arguments
whenever `names`, `found` or `sick` gives something else than before. All of it happens on the agent's loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from gpulayer.protocol.types import Device, Framework, Inventory


class Prober(Protocol):
    """Finds out which frameworks work, and on which devices, in child processes with deadlines."""

    def names(self) -> tuple[str, ...]:
        """Frameworks whose probes are not through: `Inventory.probing`. Right from the start, before any `look`."""
        ...

    def found(self) -> tuple[Framework, ...]:
        """What the probes that are through showed: `Inventory.frameworks`."""
        ...

    def sick(self) -> Mapping[str, str]:
        """Devices, by UUID, that the last `look` found sick, with the reason: others of the same kind work."""
        ...

    async def look(self, inventory: Inventory) -> None:
        """Probe whatever is not known for these devices, this driver and these packages; returns when all is through.

        Called at the start, and again when devices or the driver are others. A call while one runs follows it.
        """
        ...

    async def device(self, device: Device) -> str | None:
        """Probe one device now: '' it works, else why not; None: no framework here can probe it."""
        ...

    async def close(self) -> None:
        """End the children."""
        ...

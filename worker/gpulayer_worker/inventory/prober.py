"""What the machine asks of `gpulayer_worker.probes.Probes`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from gpulayer.protocol.types import Framework, Inventory


class Asked(Protocol):
    """The interpreter for jobs, as far as the inventory tells of it."""

    @property
    def python(self) -> str:
        """Its version; '' where it does not say."""
        ...

    @property
    def problem(self) -> str:
        """Why it could not be asked; '' where it could."""
        ...


class Prober(Protocol):
    """Finds out which frameworks work, and on which devices, in child processes with deadlines."""

    def packages(self) -> Asked:
        """What the interpreter has. Blocks for tens of milliseconds."""
        ...

    @property
    def asked(self) -> Asked | None:
        """What it said when it was asked last. Never blocks."""
        ...

    def probing(self, inventory: Inventory) -> tuple[str, ...]:
        """Frameworks of which more is told soon: `Inventory.probing`. Never blocks; `packages` was asked before."""
        ...

    def known(self, inventory: Inventory) -> tuple[Framework, ...]:
        """What a start before us found and still holds: `Inventory.frameworks` at first. Blocks as `packages` does."""
        ...

    async def watch(
        self, inventory: Callable[[], Inventory], tell: Callable[[Framework], None], asked: Callable[[], None]
    ) -> None:
        """Probe for ever; `tell` hears of each framework whose probe is through, or of which something else holds.

        `asked` is called when the interpreter is another one, or fails, or is back.
        """
        ...

    def again(self, uuid: str) -> None:
        """Compute on a device anew."""
        ...

    async def probe_device(self, uuid: str) -> str:
        """Whether a device computes now: '' or why it is sick. Jobs may run there meanwhile."""
        ...

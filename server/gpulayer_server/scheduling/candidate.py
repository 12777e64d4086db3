"""A worker, as everything that places work sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

from gpulayer.protocol.types import Device, Inventory, Sample


class Candidate(Protocol):
    """A worker: what its machine is, and what of it no job and no session holds."""

    @property
    def id(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def inventory(self) -> Inventory: ...

    @property
    def slots(self) -> int: ...

    @property
    def slots_free(self) -> int: ...

    @property
    def room_ahead(self) -> int:
        """How many more commands without devices may wait there for a slot."""
        ...

    @property
    def devices_free(self) -> Sequence[Device]:
        """Devices that are not sick and that nobody holds, not even a share of them; in the inventory's order."""
        ...

    @property
    def vram_left(self) -> Mapping[str, int]:
        """Of devices in shared use, by UUID: the bytes of memory that none of those who share one declared."""
        ...

    @property
    def ram_left_bytes(self) -> int:
        """Memory that no job there declared."""
        ...

    @property
    def cpu_left(self) -> float:
        """Cores that no job there declared."""
        ...

    @property
    def sample(self) -> Sample | None:
        """How it fares now; None where that is not known."""
        ...

    @property
    def reachable(self) -> bool: ...

    @property
    def full(self) -> str:
        """Why it takes no more work; '' where it does."""
        ...


Each = TypeVar("Each", bound=Candidate)

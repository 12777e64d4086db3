"""A worker as the plane knows it: its machine, and who holds what of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

import msgspec

from gpulayer.protocol.types import Device, Inventory, Requirements, Sample


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """What an attempt or a session holds of a worker until its processes are gone: a slot, and what it declared."""

    devices: tuple[Device, ...] = ()
    vram_share_bytes: int | None = None  # of its one device; None: its devices are its own
    ram_bytes: int = 0
    cpu_cores: float = 0.0
    owner: str = ""
    job: str = ""  # id; '' for a session
    session: str = ""  # its name; '' for an attempt without one
    name: str = ""  # of the job, as lists show it
    since: float = 0.0  # Unix time, seconds

    @property
    def plain(self) -> bool:
        """Whether it is a slot and nothing else."""
        return not (self.devices or self.ram_bytes or self.cpu_cores)


def claim(
    requirements: Requirements,
    devices: tuple[Device, ...],
    *,
    owner: str,
    job: str = "",
    session: str = "",
    name: str = "",
    since: float = 0.0,
) -> Claim:
    """The claim of one who asked for `requirements` and got `devices`."""
    return Claim(
        devices=devices,
        vram_share_bytes=requirements.vram_share_bytes if devices else None,
        ram_bytes=requirements.ram_bytes or 0,
        cpu_cores=requirements.cpu_cores or 0.0,
        owner=owner,
        job=job,
        session=session,
        name=name,
        since=since,
    )


@dataclass(kw_only=True)
class Worker:
    """An agent on a machine, connected or not. What of it is free is counted when something changes, not when read."""

    id: str
    name: str
    slots: int
    local: bool
    inventory: Inventory
    last_seen_at: float
    nonce: str = ""
    conn: int | None = None
    gone_since: float | None = None  # set while not connected
    notes: tuple[str, ...] = ()
    full: str = ""  # why it takes no more work
    ahead: int = 0  # small commands that may wait there for a slot; its own word, on this connection
    claims: dict[str, Claim] = field(default_factory=dict[str, Claim])  # by attempt or session: `take`, `free`
    sample: Sample | None = field(default=None, compare=False, repr=False)  # how it fares, on this connection
    sampled_at: float | None = field(default=None, compare=False, repr=False)
    ram_declared_bytes: int = field(default=0, init=False, compare=False, repr=False)
    cpu_declared: float = field(default=0.0, init=False, compare=False, repr=False)
    _counted: Inventory | None = field(default=None, init=False, compare=False, repr=False)
    _free: list[Device] = field(default_factory=list[Device], init=False, compare=False, repr=False)
    _shared: dict[str, int] = field(default_factory=dict[str, int], init=False, compare=False, repr=False)

    def take(self, holder: str, claim: Claim) -> None:
        """Let an attempt or a session hold something until `free`."""
        self.claims[holder] = claim
        if claim.devices or claim.ram_bytes or claim.cpu_cores:
            self._count_anew()

    def free(self, holder: str) -> Claim | None:
        """What it held, which is free now; None where it held nothing."""
        claim = self.claims.pop(holder, None)
        if claim is not None and (claim.devices or claim.ram_bytes or claim.cpu_cores):
            self._count_anew()
        return claim

    def without(self, holders: Collection[str]) -> Worker:
        """The worker as it would be if these held nothing."""
        other = replace(self, claims={name: claim for name, claim in self.claims.items() if name not in holders})
        other._count_anew()
        return other

    @property
    def holders(self) -> dict[str, tuple[Device, ...]]:
        """Who holds a slot, and which devices."""
        return {holder: claim.devices for holder, claim in self.claims.items()}

    @property
    def slots_free(self) -> int:
        """Slots that no attempt and no session holds."""
        left = self.slots - len(self.claims)
        return left if left > 0 else 0

    @property
    def room_ahead(self) -> int:
        """How many more small commands may be assigned, though no slot is free for them yet."""
        more = len(self.claims) - self.slots
        return self.ahead - more if more > 0 else self.ahead

    @property
    def reachable(self) -> bool:
        """Whether it is connected."""
        return self.conn is not None

    @property
    def devices_free(self) -> list[Device]:
        """Devices that are not sick and that nobody holds, not even a share of them; in the inventory's order."""
        if self._counted is not self.inventory:
            self._count()
        return self._free

    @property
    def vram_left(self) -> Mapping[str, int]:
        """Of devices in shared use, by UUID: the bytes of memory that none of those who share one declared."""
        if self._counted is not self.inventory:
            self._count()
        return self._shared

    @property
    def ram_left_bytes(self) -> int:
        """Memory that no job there declared."""
        return self.inventory.ram_bytes - self.ram_declared_bytes

    @property
    def cpu_left(self) -> float:
        """Cores that no job there declared."""
        return self.inventory.cpu_cores - self.cpu_declared

    def _count_anew(self) -> None:
        self._counted = None
        # Summed, not added up: fractions of cores would leave a trace.
        self.ram_declared_bytes = sum([claim.ram_bytes for claim in self.claims.values()])
        self.cpu_declared = sum([claim.cpu_cores for claim in self.claims.values()])

    def _count(self) -> None:
        whole: set[str] = set()
        shares: dict[str, int] = {}
        for claim in self.claims.values():
            for device in claim.devices:
                if claim.vram_share_bytes is None:
                    whole.add(device.uuid)
                else:
                    shares[device.uuid] = shares.get(device.uuid, 0) + claim.vram_share_bytes
        inventory = self.inventory
        well = [device for device in inventory.devices if not device.sick and device.uuid not in whole]
        self._free = [device for device in well if device.uuid not in shares]
        self._shared = {
            device.uuid: memory_bytes(device, inventory) - shares[device.uuid]
            for device in well
            if device.uuid in shares
        }
        self._counted = inventory


def memory_bytes(device: Device, inventory: Inventory) -> int:
    """The memory of a device that shares of it are taken from; 0 where it is not known."""
    if device.vram_bytes is not None:
        return device.vram_bytes
    return inventory.ram_bytes if device.unified else 0

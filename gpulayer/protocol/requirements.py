"""What a job needs of a machine."""

from __future__ import annotations

from gpulayer.protocol.base import Struct

#: How a job on many machines is spread over network groups, zones and regions.
LOCALITIES = ("prefer", "require", "spread", "none")


class Requirements(Struct, frozen=True, kw_only=True):
    """What a job needs of a machine; of each machine, where it takes many. Hashable: equal ones are matched once.

    `accelerator` None or 'cpu' means that any worker fits; `devices` counts accelerators.
    """

    accelerator: str | None = None  # cuda, rocm, mps
    devices: int = 0
    worker: str | None = None  # a worker's name
    min_vram_bytes: int | None = None  # of each device
    device_names: tuple[str, ...] = ()  # globs, any of which fits, without regard to case: 'A100*'
    min_capability: str = ""  # compute capability, like '8.0'
    min_driver: str = ""  # like '535.104'
    frameworks: tuple[str, ...] = ()  # names with PEP 440 versions, like 'torch>=2.4'; each must work on the devices
    python: str = ""  # PEP 440 specifiers, like '>=3.11'
    ram_bytes: int | None = None  # declared: taken from what the worker has left
    cpu_cores: float | None = None  # likewise
    os: str = ""  # linux, darwin
    arch: str = ""  # x86_64, arm64 (aarch64 is the same)
    labels: tuple[str, ...] = ()  # 'key=value' that the worker carries
    vram_share_bytes: int | None = None  # so much of one device, beside others that declare theirs; else exclusive
    nodes: int = 1  # machines, all taken in one step, or none
    locality: str = "prefer"  # one of LOCALITIES; matters with nodes
    bind_cpus: bool = False  # its processes run on the cores next to its devices

    @property
    def device_kind(self) -> str | None:
        """The kind of device that must be there, or None where none is needed."""
        return None if self.accelerator in (None, "cpu") else self.accelerator

    @property
    def device_count(self) -> int:
        """How many devices of that kind: at least one where a kind is named."""
        return max(1, self.devices) if self.device_kind else 0

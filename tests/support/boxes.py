"""Machines as the matcher sees them, of few words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpulayer.protocol.types import Device, DeviceSample, Framework, Inventory, Process, Sample

GB = 10**9
RTX_4090 = 24_564 * 2**20  # what cards report that are sold as ones of 24, 40, 16 GB
A100_40GB = 42_405_855_232
T4 = 15_843_721_216


@dataclass(frozen=True, kw_only=True)
class Box:
    """A worker."""

    id: str
    name: str
    inventory: Inventory
    slots: int
    slots_free: int
    devices_free: Sequence[Device]
    reachable: bool = True
    full: str = ""
    room_ahead: int = 0
    vram_left: Mapping[str, int] = field(default_factory=dict[str, int])
    ram_left_bytes: int = 0
    cpu_left: float = 0.0
    sample: Sample | None = None


def card(index: int = 0, **changed: Any) -> Device:
    """An RTX 4090 with a driver for CUDA 12.2."""
    about: dict[str, Any] = {
        "uuid": f"GPU-{index}",
        "kind": "cuda",
        "index": index,
        "name": "NVIDIA GeForce RTX 4090",
        "vram_bytes": RTX_4090,
        "capability": "8.9",
        "driver": "535.104.05",
    }
    return Device(**{**about, **changed})


def cards(count: int, **changed: Any) -> tuple[Device, ...]:
    """As many cards."""
    return tuple(card(index, **changed) for index in range(count))


def torch(version: str = "2.13.0+cu126", works: tuple[str, ...] = ("cpu", "cuda"), **changed: Any) -> Framework:
    """A torch that works on CUDA."""
    return Framework(**{"name": "torch", "version": version, "built_for": "12.6", "works": works, **changed})


def inventory(devices: tuple[Device, ...] = (), **changed: Any) -> Inventory:
    """A Linux machine with 16 cores and 64 GB."""
    about: dict[str, Any] = {
        "host": "box",
        "os": "linux",
        "arch": "x86_64",
        "cpu_cores": 16,
        "ram_bytes": 64 * GB,
        "python": "3.11.9",
        "devices": devices,
        "cuda": "12.2" if any(device.kind == "cuda" for device in devices) else "",
    }
    return Inventory(**{**about, **changed})


def box(
    *devices: Device,
    name: str = "gpu-box-1",
    slots: int = 2,
    slots_free: int | None = None,
    free: Sequence[Device] | None = None,
    reachable: bool = True,
    full: str = "",
    room_ahead: int = 0,
    vram_left: Mapping[str, int] | None = None,
    ram_left_bytes: int | None = None,
    cpu_left: float | None = None,
    sample: Sample | None = None,
    **changed: Any,
) -> Box:
    """A worker on which nothing runs; `changed` are fields of its inventory."""
    machine = inventory(devices, **changed)
    shared = vram_left or {}
    idle = [device for device in devices if not device.sick and device.uuid not in shared]
    return Box(
        id=f"id-{name}",
        name=name,
        inventory=machine,
        slots=slots,
        slots_free=slots if slots_free is None else slots_free,
        devices_free=tuple(idle if free is None else free),
        reachable=reachable,
        full=full,
        room_ahead=room_ahead,
        vram_left=shared,
        ram_left_bytes=machine.ram_bytes if ram_left_bytes is None else ram_left_bytes,
        cpu_left=machine.cpu_cores if cpu_left is None else cpu_left,
        sample=sample,
    )


def used(index: int, free_bytes: int | None, *processes: Process) -> DeviceSample:
    """A card on which others than we run."""
    return DeviceSample(uuid=f"GPU-{index}", free_bytes=free_bytes, foreign=processes)


def alice(held: int | None) -> Process:
    """Her training."""
    return Process(pid=4121, name="python", user="alice", bytes=held)

"""Machines of which the links between devices matter, and who holds or uses which device."""

from __future__ import annotations

from collections.abc import Sequence

from gpulayer.protocol.types import Device, DeviceSample, Link, Process, Sample
from tests.support import boxes
from tests.support.boxes import GB, Box


def linked_box(
    devices: Sequence[Device],
    links: Sequence[Link] = (),
    free: Sequence[int] | None = None,
    vram_left: dict[str, int] | None = None,
    foreign: dict[str, int] | None = None,
) -> Box:
    """A machine of which those with the numbers `free` are free. `foreign`: bytes of others' processes by UUID."""
    measured = [
        DeviceSample(
            uuid=device.uuid,
            free_bytes=device.vram_bytes - used if device.vram_bytes is not None else None,
            foreign=(Process(pid=9, bytes=used),),
        )
        for device in devices
        if (used := (foreign or {}).get(device.uuid)) is not None
    ]
    return boxes.box(
        *devices,
        slots=8,
        free=[device for at, device in enumerate(devices) if free is None or at in free],
        vram_left=vram_left,
        sample=Sample(devices=tuple(measured)),
        links=tuple(links),
    )


def like_cards(count: int, vram_gb: int = 24, numas: Sequence[int | None] | None = None) -> list[Device]:
    """So many equal cards, on these NUMA nodes."""
    return [
        Device(
            uuid=f"GPU-{at:02}",
            kind="cuda",
            index=at,
            name="NVIDIA RTX 4090",
            vram_bytes=vram_gb * GB,
            numa=numas[at] if numas else None,
        )
        for at in range(count)
    ]

"""AMD's devices, from what `amdsmi` said."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from gpulayer.protocol.types import Device
from gpulayer_worker.inventory.nvidia import Found, masked, numa_node
from gpulayer_worker.inventory.nvmlguard import NvmlGuard, NvmlTrouble

_DEADLINE_S = 20.0
_CHILD = (sys.executable, "-m", "gpulayer_worker.inventory.amdchild")


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """A card, as the child tells of it."""

    uuid: str
    index: int
    name: str = ""
    vram_bytes: int | None = None
    driver: str = ""
    pci: str = ""


class Amd(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to 'machine'."""

    cards: tuple[Card, ...] = ()


async def amd_devices(
    present: bool, environ: Mapping[str, str], root: Path = Path("/"), guard: NvmlGuard | None = None
) -> Found:
    """AMD's devices that the agent may use, or why those that are present can't be used.

    `present`: see `amdchild.devices_present`.
    """
    if not present:
        return Found()
    guard = guard or NvmlGuard(_CHILD)
    try:
        answer = msgspec.convert(await guard.ask({"ask": "machine"}, _DEADLINE_S), Amd)
    except (NvmlTrouble, msgspec.ValidationError) as error:
        text = f"AMD devices present, amdsmi failed: {error}"
        return Found(problems=(f"{text}; install ROCm's amdsmi for {sys.executable}",))
    finally:
        await guard.close()
    devices = [
        Device(
            uuid=card.uuid,
            kind="rocm",
            index=card.index,
            name=card.name,
            vram_bytes=card.vram_bytes,
            unified=card.vram_bytes is None,
            driver=card.driver,
            pci=card.pci,
            numa=numa_node(card.pci, root),
        )
        for card in answer.cards
    ]
    return Found(devices=masked(devices, environ.get("ROCR_VISIBLE_DEVICES", environ.get("HIP_VISIBLE_DEVICES"))))

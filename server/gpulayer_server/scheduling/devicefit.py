"""Which devices of a machine a job could use, however busy they are. What is asked holds for each of them."""

from __future__ import annotations

import re
from functools import lru_cache

from gpulayer.protocol.types import Device, Framework, Inventory
from gpulayer_server.scheduling import figures, versions
from gpulayer_server.scheduling.asked import Asked


def usable(asks: Asked, device: Device, inventory: Inventory) -> bool:
    """Whether a job could use this device."""
    if device.kind != asks.kind or device.sick:
        return False
    return not asks.choosy or (
        named(asks, device)
        and large(asks, inventory, device)
        and shareable(asks, inventory, device)
        and capable(asks, device)
        and driven(asks, device)
        and (not asks.frameworks or all(computes(each, device) for each in tried(asks, inventory)))
    )


def enough(asks: Asked, inventory: Inventory) -> bool:
    """Whether a machine has as many devices as are asked for."""
    left = asks.count
    for device in inventory.devices:
        if left <= 0:
            break
        left -= usable(asks, device, inventory)
    return left <= 0


def named(asks: Asked, device: Device) -> bool:
    """Whether its name fits, from any word on: 'A100*' fits 'NVIDIA A100-SXM4-40GB'."""
    return asks.names is None or _fits_name(asks.names, device.name)


@lru_cache(maxsize=16384)
def _fits_name(names: re.Pattern[str], name: str) -> bool:
    words = name.lower().split()
    return any(names.match(" ".join(words[at:])) is not None for at in range(max(1, len(words))))


def large(asks: Asked, inventory: Inventory, device: Device) -> bool:
    """Whether it is a device of the size that is asked for."""
    if asks.vram_bytes is None:
        return True
    has = figures.memory(device, inventory)
    return has is not None and figures.is_size(has, asks.vram_bytes)


def shareable(asks: Asked, inventory: Inventory, device: Device) -> bool:
    """Whether the share fits on it where nobody else has one; to the byte: shares are added up."""
    if asks.share_bytes is None:
        return True
    has = figures.memory(device, inventory)
    return has is not None and has >= asks.share_bytes


def capable(asks: Asked, device: Device) -> bool:
    """Whether its compute capability suffices; an unknown one does not."""
    return asks.capability is None or versions.at_least(device.capability, asks.capability)


def driven(asks: Asked, device: Device) -> bool:
    """Whether its driver is new enough; an unknown one is not."""
    return asks.driver is None or versions.at_least(device.driver, asks.driver)


def tried(asks: Asked, inventory: Inventory) -> list[Framework]:
    """Of the frameworks that are asked for: those of which it is known on which devices they compute."""
    return [
        each
        for each in inventory.frameworks
        if each.devices
        and each.version
        and each.name in asks.framework_names
        and asks.kind in each.works
        and each.name not in inventory.probing
    ]


def computes(framework: Framework, device: Device) -> bool:
    """Whether a framework that computes on devices of this kind did so on this one."""
    return device.uuid in framework.devices

"""NVIDIA devices, their slices and the links between them, from what NVML said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path

import msgspec

from gpulayer.protocol.types import Device, Link

#: Levels of NVML's common ancestors: the same board, one switch, many, the host bridge, the node, the system.
_LEVELS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}


class Slice(msgspec.Struct, frozen=True, kw_only=True):
    """A MIG slice, as the child tells of it."""

    uuid: str
    name: str = ""
    vram_bytes: int | None = None


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """A card, as the child tells of it."""

    uuid: str
    index: int
    name: str = ""
    vram_bytes: int | None = None
    capability: str = ""
    pci: str = ""
    sick: str = ""
    mig: bool = False
    slices: tuple[Slice, ...] = ()
    nvlinks: tuple[str, ...] = ()  # the bus id at the other end, 'switch', or '' unknown


class Nvidia(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to 'machine'."""

    driver: str = ""
    cuda: str = ""
    cards: tuple[Card, ...] = ()
    levels: tuple[tuple[int, int, int], ...] = ()  # places of two cards in `cards`, and their common ancestor's level
    problems: tuple[str, ...] = ()


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What a machine has of one vendor's devices."""

    devices: tuple[Device, ...] = ()
    links: tuple[Link, ...] = ()
    problems: tuple[str, ...] = ()
    cuda: str = ""


def found(nvidia: Nvidia, environ: Mapping[str, str], root: Path = Path("/")) -> Found:
    """Devices and links that the agent may use, by its own CUDA_VISIBLE_DEVICES, and what is wrong.

    A card in MIG mode counts by its slices only, and without any not at all.
    """
    devices = [device for card in nvidia.cards for device in _devices(card, nvidia.driver, root)]
    problems = list(nvidia.problems)
    for card in nvidia.cards:
        if card.mig and not card.slices:
            text = f"{card.name or 'NVIDIA device'} {card.index} is in MIG mode and has no slices"
            problems.append(f"{text}: make some (nvidia-smi mig -cgi PROFILE -C), or turn MIG off")
    mask = environ.get("CUDA_VISIBLE_DEVICES")
    chosen, ended = _read_mask(devices, mask.rstrip(" ,") if mask is not None else None)
    if mask is not None and _depends_on_order(mask, nvidia.cards, environ):
        text = f"CUDA_VISIBLE_DEVICES={mask} counts unlike cards, and not in bus order"
        problems.append(f"{text}: set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name them by UUID; bus order was taken")
    elif devices and not chosen:
        text = f"CUDA_VISIBLE_DEVICES={mask.strip() if mask and mask.strip() else repr('')}"
        problems.append(f"{text} of the worker leaves none of {len(devices)} NVIDIA devices")
    elif chosen and ended not in (None, "-1"):
        text = f"CUDA_VISIBLE_DEVICES={mask} of the worker ends at {ended!r}, which names no other NVIDIA device"
        problems.append(f"{text}: {len(chosen)} of {len(devices)} are left")
    return Found(devices=chosen, links=links(nvidia, chosen), problems=tuple(problems), cuda=nvidia.cuda)


def _devices(card: Card, driver: str, root: Path) -> list[Device]:
    whole = Device(
        uuid=card.uuid,
        kind="cuda",
        index=card.index,
        name=card.name,
        vram_bytes=card.vram_bytes,
        unified=card.vram_bytes is None,
        capability=card.capability,
        driver=driver,
        pci=card.pci,
        numa=numa_node(card.pci, root),
        sick=card.sick,
    )
    if not card.mig:
        return [whole]
    return [
        msgspec.structs.replace(
            whole, uuid=part.uuid, name=part.name, vram_bytes=part.vram_bytes, unified=False, parent=card.uuid
        )
        for part in card.slices
    ]


def numa_node(pci: str, root: Path = Path("/")) -> int | None:
    """The NUMA node of a device on the bus; None where the machine has one only, or does not say."""
    try:
        number = int((root / "sys/bus/pci/devices" / pci / "numa_node").read_text()) if pci else -1
    except (OSError, ValueError):
        return None
    return number if number >= 0 else None


# ---------------------------------------------------------------- links


def links(nvidia: Nvidia, devices: Sequence[Device]) -> tuple[Link, ...]:
    """How each two of these devices reach each other, as far as NVML says. NVLinks end where slices begin."""
    places = {card.uuid: place for place, card in enumerate(nvidia.cards)}
    levels = {frozenset((a, b)): _LEVELS.get(level, "") for a, b, level in nvidia.levels}
    found: list[Link] = []
    for first, second in combinations(sorted(devices, key=lambda device: device.uuid), 2):
        a, b = (places.get(device.parent or device.uuid) for device in (first, second))
        if a is None or b is None:
            continue
        kind, count = "PIX" if a == b else levels.get(frozenset((a, b)), ""), 1
        bonded = 0 if first.parent or second.parent else _nvlinks(nvidia.cards[a], nvidia.cards[b])
        if bonded:
            kind, count = "NV", bonded
        if kind:
            found.append(Link(a=first.uuid, b=second.uuid, kind=kind, count=count))
    return tuple(found)


def _nvlinks(first: Card, second: Card) -> int:
    """Links that end at each other, or as many as both have to switches."""
    direct = sum(bool(end) and end == second.pci for end in first.nvlinks)
    return direct or min(first.nvlinks.count("switch"), second.nvlinks.count("switch"))


# ---------------------------------------------------------------- the agent's own mask


def masked(devices: Sequence[Device], mask: str | None) -> tuple[Device, ...]:
    """What CUDA itself would show under a mask: indices or UUID prefixes, up to the first that names nothing.

    Where a card is in MIG mode its index, or its UUID, means all of its slices: the worker gives them out one by one.
    """
    return _read_mask(devices, mask)[0]


def _read_mask(devices: Sequence[Device], mask: str | None) -> tuple[tuple[Device, ...], str | None]:
    """What it shows, and what ended it before its own end: it names nothing, or something once more."""
    if mask is None:
        return tuple(devices), None
    chosen: list[Device] = []
    for part in (piece.strip() for piece in mask.split(",")):
        named = _named(devices, part)
        if not named or any(device in chosen for device in named):
            return tuple(chosen), part
        chosen += named
    return tuple(chosen), None


def _named(devices: Sequence[Device], part: str) -> list[Device]:
    if part.isdecimal():
        if len(part) > 4:
            return []
        return [device for device in devices if device.index == int(part)]
    if not part:
        return []
    exact = [device for device in devices if device.uuid == part]
    alike = exact or [device for device in devices if device.uuid.startswith(part)]
    if not alike:
        alike = [device for device in devices if device.parent.startswith(part)]
        return alike if len({device.parent for device in alike}) == 1 else []
    return alike if len(alike) == 1 else []


def _depends_on_order(mask: str, cards: Sequence[Card], environ: Mapping[str, str]) -> bool:
    """Whether indices mean something only in CUDA's own order, the fastest first: the cards differ."""
    by_index = any(part.strip().isdecimal() for part in mask.split(","))
    return by_index and environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID" and len({card.name for card in cards}) > 1

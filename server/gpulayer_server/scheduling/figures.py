"""Figures in the words of reasons. One GB is 10^9 bytes, as in everything that a person types and reads."""

from __future__ import annotations

from collections.abc import Iterable

from gpulayer.protocol.types import Device, Inventory

#: A card may report so much less than it is sold with (a T4 of 16 GB reports 15.8, an A40 of 48 GB 47.8), and still be
#: one of that size: whoever asks for 16 GB is not sent away by a T4. An 11 GB card is none of 12 GB.
SHORTFALL = 0.0125
#: How a machine is added.
JOIN = "`gpulayer up` prints the line with which a machine joins"
#: As cards and slices are sold. Makers count in GiB, so that a card of '24 GB' reports 25.8e9 bytes.
_SOLD_GB = (2, 3, 4, 5, 6, 8, 10, 11, 12, 16, 20, 24, 32, 40, 48, 64, 80, 94, 96, 128, 141, 180, 192, 256, 288)
_GIB = 1024**3
_MAKERS = frozenset({"nvidia", "geforce", "tesla", "quadro", "amd", "radeon", "instinct", "apple"})


def size(count: float) -> str:
    """'500 MB', '6.2 GB', '24 GB': one digit behind the point, where it says something."""
    for unit in ("B", "kB", "MB", "GB"):
        if round(count, 1) < 1000:
            return f"{count:.1f}".removesuffix(".0") + f" {unit}"
        count /= 1000
    return f"{count:.1f}".removesuffix(".0") + " TB"


def sold_as(count: int) -> str:
    """The memory of a device as its maker names it, '24 GB' for 25.8e9 bytes; as `size` where no maker does."""
    gb = count / 1e9
    names = [each for each in _SOLD_GB if each * (1 - SHORTFALL) <= gb <= each * 1.08]
    return f"{min(names, key=lambda each: abs(count / _GIB - each))} GB" if names else size(count)


def is_size(has: int, wanted: int) -> bool:
    """Whether a device with so many bytes is one of the size that is asked for, with the maker's `SHORTFALL`."""
    return has >= wanted * (1 - SHORTFALL)


def memory(device: Device, inventory: Inventory) -> int | None:
    """The bytes of memory that a device has, the machine's where it has none of its own; None where unknown."""
    if device.vram_bytes is not None:
        return device.vram_bytes
    return inventory.ram_bytes if device.unified else None


def short_name(device: Device) -> str:
    """A device's name without the maker's: 'RTX 4090'."""
    words = device.name.split()
    while len(words) > 1 and words[0].lower() in _MAKERS:
        words.pop(0)
    return " ".join(words)


def place(device: Device) -> str:
    """'cuda:0'."""
    return f"{device.kind}:{device.index}"


def placed_name(device: Device) -> str:
    """'cuda:0 RTX 4090'."""
    return f"{place(device)} {short_name(device)}".rstrip()


def count(number: int, what: str) -> str:
    """'1 device', '2 devices'."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def cores(number: float) -> str:
    """'1 core', '0.5 cores', '16 cores'."""
    return f"{number:g} core{'' if number == 1 else 's'}"


def tally(names: Iterable[str]) -> str:
    """'2 RTX 4090, 1 T4': of many names each once."""
    counted: dict[str, int] = {}
    for name in names:
        counted[name] = counted.get(name, 0) + 1
    return ", ".join(name if number == 1 else f"{number} × {name}" for name, number in counted.items())


def in_gb(amount: int) -> str:
    """'0.8 GB': of device memory, which is told in GB; 'less than 0.1 GB' for the least."""
    return f"{amount / 1e9:.1f}".removesuffix(".0") + " GB" if amount == 0 or amount >= 5e7 else "less than 0.1 GB"

"""What of a machine is free now, as jobs declared and as was measured, and every reason why it is too little."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gpulayer.protocol.types import Device, DeviceSample, Process, Reason, Requirements
from gpulayer_server.scheduling import devicefit, figures
from gpulayer_server.scheduling.asked import Asked
from gpulayer_server.scheduling.candidate import Candidate
from gpulayer_server.scheduling.figures import cores, count, in_gb, place, size, sold_as

#: Of a device that somebody else's processes are on too, so much has to be free where a job names no size.
_FREE_SHARE = 0.5
#: And never more than this: the driver and the screen take a little of every card.
_MOST_FREE = 0.9
#: Of the memory that no job declared so much has to be free as measured: the system takes some of it.
_FREE_RAM = 0.75
_SLACK = 1e-9  # cores are added and taken away as fractions


def vacant(requirements: Requirements, asks: Asked, worker: Candidate) -> bool:
    """Whether devices, memory and cores are free: the quick form of `vacancy_reasons`."""
    if requirements.ram_bytes is not None and requirements.ram_bytes > ram_left(worker):
        return False
    if requirements.cpu_cores is not None and requirements.cpu_cores > worker.cpu_left + _SLACK:
        return False
    if asks.kind is None:
        return True
    if asks.share_bytes is not None:
        return any(share_left(worker, device) >= asks.share_bytes for device in shareable_devices(asks, worker))
    left = asks.count
    for device in worker.devices_free:
        if left <= 0:
            break
        left -= devicefit.usable(asks, device, worker.inventory) and not shortage(asks, worker, device)
    return left <= 0


def free_devices(asks: Asked, worker: Candidate) -> list[Device]:
    """The devices that a job could take whole now, in the inventory's order."""
    return [
        device
        for device in worker.devices_free
        if devicefit.usable(asks, device, worker.inventory) and not shortage(asks, worker, device)
    ]


def shareable_devices(asks: Asked, worker: Candidate) -> list[Device]:
    """The devices on which a share could be: usable, and free or in shared use."""
    free = {device.uuid for device in worker.devices_free}
    return [
        device
        for device in worker.inventory.devices
        if (device.uuid in free or device.uuid in worker.vram_left) and devicefit.usable(asks, device, worker.inventory)
    ]


def share_left(worker: Candidate, device: Device) -> int:
    """The bytes of a device that a further share can have now: what is not declared, less what strangers hold."""
    left = undeclared(worker, device)
    measured = _measured(worker, device)
    if measured is None or not measured.foreign:
        return max(0, left)
    left -= _foreign_bytes(measured)
    if measured.free_bytes is not None:  # of some of them it is not known what they hold
        left = min(left, measured.free_bytes)
    return max(0, left)


def undeclared(worker: Candidate, device: Device) -> int:
    """The bytes of a device that none of those who share it declared."""
    shared = worker.vram_left.get(device.uuid)
    return (figures.memory(device, worker.inventory) or 0) if shared is None else shared


def shortage(asks: Asked, worker: Candidate, device: Device) -> int:
    """The bytes that somebody else's processes would have to free before a job takes the device; 0: it can."""
    measured = _measured(worker, device)
    if measured is None or not measured.foreign:
        return 0
    wanted, free = _free_wanted(asks, worker, device), _free(worker, device, measured)
    return max(0, wanted - free) if free is not None else 0


def _free_wanted(asks: Asked, worker: Candidate, device: Device) -> int:
    total = figures.memory(device, worker.inventory) or 0
    return int(min(asks.vram_bytes or total * _FREE_SHARE, total * _MOST_FREE))


def _free(worker: Candidate, device: Device, measured: DeviceSample) -> int | None:
    if measured.free_bytes is not None:
        return measured.free_bytes
    total = figures.memory(device, worker.inventory)
    if total is None:
        return None
    used = measured.used_bytes if measured.used_bytes is not None else _foreign_bytes(measured)
    return max(0, total - used)


def _foreign_bytes(measured: DeviceSample) -> int:
    return sum(process.bytes or 0 for process in measured.foreign)


def _measured(worker: Candidate, device: Device) -> DeviceSample | None:
    sample = worker.sample
    if sample is None:
        return None
    return next((each for each in sample.devices if each.uuid == device.uuid), None)


def ram_left(worker: Candidate) -> int:
    """The memory that a job can have now: undeclared, and measured to be free but for what the system takes."""
    declared = worker.ram_left_bytes
    free = worker.sample.ram_free_bytes if worker.sample is not None else None
    return declared if free is None or free >= declared * _FREE_RAM else min(declared, free)


# ---------------------------------------------------------------- reasons


def vacancy_reasons(
    requirements: Requirements, asks: Asked, worker: Candidate, who: Mapping[str, str]
) -> Iterator[Reason]:
    """Everything that is taken: `who` holds devices, by UUID, in words."""
    ram = requirements.ram_bytes
    if ram is not None and ram > (left := ram_left(worker)):
        how = "free now" if left < worker.ram_left_bytes else "that no other job declared"
        text = f"needs {size(ram)} of memory, {size(left)} of {size(worker.inventory.ram_bytes)} {how}"
        yield _taken(worker, "ram_busy", text, ram, left)
    cpus = requirements.cpu_cores
    if cpus is not None and cpus > worker.cpu_left + _SLACK:
        text = f"needs {cores(cpus)}, {worker.cpu_left:g} of {worker.inventory.cpu_cores} that no other job declared"
        yield _taken(worker, "cpu_busy", text, cpus, worker.cpu_left)
    if asks.kind is None:
        return
    if asks.share_bytes is not None:
        yield from _share_reasons(asks, asks.share_bytes, worker, who)
    elif len(free_devices(asks, worker)) < asks.count:
        yield from _device_reasons(asks, worker, who)


def _device_reasons(asks: Asked, worker: Candidate, who: Mapping[str, str]) -> Iterator[Reason]:
    free = [device for device in worker.devices_free if devicefit.usable(asks, device, worker.inventory)]
    if len(free) < asks.count:
        text = f"needs {count(asks.count, f'free {asks.kind} device')}, {len(free)} free now"
        text += _holders(asks, worker, free, who)
        yield _taken(worker, "devices_busy", text, asks.count, len(free))
    for device in free:
        short = shortage(asks, worker, device)
        if short:
            yield _foreign(worker, device, short)


def _share_reasons(asks: Asked, wanted: int, worker: Candidate, who: Mapping[str, str]) -> Iterator[Reason]:
    there = shareable_devices(asks, worker)
    lefts = [(share_left(worker, device), device) for device in there]
    if any(left >= wanted for left, _ in lefts):
        return
    if not lefts:
        text = f"needs a share of {size(wanted)} of a {asks.kind} device, all are taken whole"
        yield _taken(worker, "devices_busy", text + _holders(asks, worker, (), who), 1, 0)
        return
    in_the_way = [(left, device) for left, device in lefts if undeclared(worker, device) >= wanted]
    for left, device in in_the_way:
        yield _foreign(worker, device, wanted - left)
    if not in_the_way:
        left, device = max(lefts, key=lambda each: each[0])
        text = f"needs a share of {size(wanted)}, {size(left)} left on {place(device)}"
        yield _taken(worker, "vram_busy", text + _holders(asks, worker, (), who), wanted, left)


def _taken(worker: Candidate, code: str, text: str, wanted: float, found: float) -> Reason:
    return Reason(worker=worker.name, code=code, text=text, temporary=True, wanted=wanted, found=found)


def _holders(asks: Asked, worker: Candidate, free: Sequence[Device], who: Mapping[str, str]) -> str:
    """' (cuda:0,3: train.py by ana, 14 min)'; '' where nobody is known."""
    held: dict[str, list[Device]] = {}
    for device in worker.inventory.devices:
        if device.kind == asks.kind and device.uuid in who and device not in free:
            held.setdefault(who[device.uuid], []).append(device)
    told = [f"{_places(devices)}: {holder}" for holder, devices in held.items()]
    return f" ({'; '.join(told)})" if told else ""


def _places(devices: Sequence[Device]) -> str:
    """'cuda:0,3' of devices of one kind; slices of one card count once."""
    first, *others = dict.fromkeys(place(device) for device in devices)
    return ",".join((first, *(other.partition(":")[2] for other in others)))


def _foreign(worker: Candidate, device: Device, short: int) -> Reason:
    """'0.8 GB of 24 GB free on cuda:0: python pid 4121 by alice holds 22 GB'."""
    measured = _measured(worker, device) or DeviceSample(uuid=device.uuid)
    free, total = _free(worker, device, measured), figures.memory(device, worker.inventory)
    of = f" of {sold_as(total)}" if total is not None else ""
    largest = sorted(measured.foreign, key=lambda process: process.bytes or 0, reverse=True)
    listed = [_process(process) + _holding(process) for process in largest[:2]]
    more = f" and {len(largest) - 2} more" if len(largest) > 2 else ""
    names = " and ".join(_process(process) for process in largest[:2])
    hold = "holds" if len(largest) == 1 else "hold"
    return Reason(
        worker=worker.name,
        code="foreign",
        text=f"{in_gb(free or 0)}{of} free on {place(device)}: {', '.join(listed)}{more}",
        temporary=True,
        wanted=(free or 0) + short,
        found=free,
        remedy=f"free {in_gb(short)} on {worker.name}: {names}{more} {hold} it",
    )


def _process(process: Process) -> str:
    name = process.name or "a process"
    return f"{name} pid {process.pid}" + (f" by {process.user}" if process.user else "")


def _holding(process: Process) -> str:
    return f" holds {size(process.bytes)}" if process.bytes is not None else " is on it"

"""A machine that is mended as reasons say, and in nothing else."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from msgspec.structs import replace as changed
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from gpulayer.protocol.types import Device, Framework, Inventory, Reason, Requirements
from tests.support.boxes import GB, Box

VERSIONS = ("1.0", "2.0", "2.4", "2.13.0", "3.0")
PYTHONS = ("3.10.1", "3.11.9", "3.12.4", "3.13.0")
CAPABLE = "99.0"


def mend(worker: Box, asked: Requirements, reasons: Iterable[Reason]) -> Box:
    """The machine with what each reason says that it lacks; a device that is added is one as is asked for."""
    machine = worker.inventory
    for reason in reasons:
        if reason.code == "worker_name":
            worker = replace(worker, name=str(reason.wanted))
        elif reason.code == "slots":
            worker = replace(worker, slots=int(reason.wanted or 0))
        else:
            machine = _mended(machine, asked, reason)
    return replace(worker, inventory=machine, devices_free=machine.devices)


def _mended(machine: Inventory, asked: Requirements, reason: Reason) -> Inventory:
    wanted = reason.wanted
    match reason.code:
        case "os" | "arch":
            return changed(machine, **{reason.code: wanted})
        case "python":
            return changed(machine, python=_meets(str(wanted), PYTHONS))
        case "ram":
            return changed(machine, ram_bytes=int(wanted or 0))
        case "cpu":
            return changed(machine, cpu_cores=-int(-float(wanted or 0) // 1))
        case "label":
            key, _, value = str(wanted).partition("=")
            return changed(machine, labels={**machine.labels, key: value})
        case "framework" | "framework_version" | "framework_device":
            return _with_framework(machine, asked, reason)
        case "device_kind":
            return _with_devices(machine, asked, asked.device_count)
        case "device_count":
            return _with_enough(machine, asked, int(wanted or 0), int(reason.found or 0))
        case _:
            return changed(machine, devices=tuple(_device(device, asked, reason) for device in machine.devices))


def _device(device: Device, asked: Requirements, reason: Reason) -> Device:
    wanted = reason.wanted
    if device.kind != asked.device_kind:
        return device
    match reason.code:
        case "vram" | "vram_share":
            return changed(device, vram_bytes=max(int(wanted or 0), device.vram_bytes or 0))
        case "capability" | "driver":
            return changed(device, **{reason.code: wanted})
        case "device_name":
            return changed(device, name=str(wanted).split("|")[0].replace("*", "x"))
        case other:
            raise AssertionError(f"a code that nobody knows: {other}")


def _with_enough(machine: Inventory, asked: Requirements, wanted: int, found: int) -> Inventory:
    of_kind = [device for device in machine.devices if device.kind == asked.device_kind]
    healthy = [device for device in of_kind if not device.sick]
    if len(healthy) >= wanted:  # there are enough, but too few that are all that is asked for at once
        return _with_devices(machine, asked, wanted - found)
    well = tuple(changed(each, sick="") if each.kind == asked.device_kind else each for each in machine.devices)
    return _with_devices(changed(machine, devices=well), asked, max(0, wanted - len(of_kind)))


def _with_devices(machine: Inventory, asked: Requirements, count: int) -> Inventory:
    if not count:
        return machine
    new = tuple(
        Device(
            uuid=f"new-{len(machine.devices) + n}",
            kind=asked.device_kind or "",
            index=len(machine.devices) + n,
            name=(asked.device_names or ("any",))[0].replace("*", "x"),
            vram_bytes=max(asked.min_vram_bytes or 0, asked.vram_share_bytes or 0, 1 * GB),
            capability=asked.min_capability,
            driver=asked.min_driver,
        )
        for n in range(count)
    )
    first = not any(device.kind == asked.device_kind for device in machine.devices)
    names = [Requirement(text).name for text in asked.frameworks]
    frameworks = [
        # where none is named, it was taken to work on all that were there
        _works(each, asked, new if each.devices else (*machine.devices, *new))
        if each.name in names and (first or asked.device_kind in each.works)
        else each
        for each in machine.frameworks
    ]
    return changed(machine, devices=machine.devices + new, frameworks=tuple(frameworks))


def _works(framework: Framework, asked: Requirements, devices: Iterable[Device]) -> Framework:
    """One that works there too."""
    kind = asked.device_kind or "cpu"
    there = [device.uuid for device in devices if device.kind == kind]
    works = tuple(dict.fromkeys((*framework.works, kind)))
    return changed(framework, works=works, devices=tuple(dict.fromkeys((*framework.devices, *there))))


def _with_framework(machine: Inventory, asked: Requirements, reason: Reason) -> Inventory:
    if reason.code == "framework_device":
        name = next(each.name for each in machine.frameworks if reason.text.startswith(f"{each.name} "))
        found = next(each for each in machine.frameworks if each.name == name)
        new = _works(found, asked, machine.devices)
    else:
        wanted = Requirement(str(reason.wanted))
        name, version = wanted.name, _meets(str(wanted.specifier), VERSIONS)
        there = next((each for each in machine.frameworks if each.name == name), None)
        if reason.code == "framework" or there is None:
            new = _works(Framework(name=name, version=version), asked, machine.devices)
        else:
            new = changed(there, version=version)
    return changed(machine, frameworks=(*[each for each in machine.frameworks if each.name != name], new))


def _meets(conditions: str, versions: Iterable[str]) -> str:
    return next(version for version in versions if SpecifierSet(conditions).contains(version))
